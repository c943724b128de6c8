// y[r, c] = body(x[r, c], ..., reductions of row r), for rows too long for registers: a block walks along its row
// once per reduction phase and once more for the outputs, so each input is read PHASES + 1 times (from L2 where it fits).
//
// Inputs, outputs, accuracy: as in row.cu.

template <int P> DEVICE void reduce(const Pointers& row, const RowHeld& scalars, const Parameters& p, Reduced& done) {
  if constexpr (P < PHASES) {
    Phase<P> partial = Phase<P>::identity();
    for (Index column = (Index)thread_index() * WIDTH; column < p.columns; column += ROW_THREADS * WIDTH) {
      Held held;
      load_all<WIDTH>(held, row, column, p);
      UNROLLED for (int w = 0; w < WIDTH; ++w) partial.accumulate(element(held, scalars, w), done);
    }
    across_row<ROW_THREADS>(partial).finish(done, p.columns);
    reduce<P + 1>(row, scalars, p, done);
  }
}

DEVICE void row(const Pointers& pointers, const Parameters& p) {
  const OuterPlace at(block_index(), p);
  const Pointers row = pointers_at(pointers, at, p);
  const RowHeld scalars = load_scalars(row);
  Reduced done;
  reduce<0>(row, scalars, p, done);

  // Row scalars first: their value is taken at column 0, which an output may overwrite in place.
  if (thread_index() == 0) {
    Held held;
    load_all<WIDTH>(held, row, 0, p);
    store_scalars(row, apply(element(held, scalars, 0), done), at, p);
  }
  for (Index column = (Index)thread_index() * WIDTH; column < p.columns; column += ROW_THREADS * WIDTH) {
    Held held;
    load_all<WIDTH>(held, row, column, p);
    Result result[WIDTH];
    UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(held, scalars, w), done);
    store_all<WIDTH>(row, result, column, at, p);
  }
}
