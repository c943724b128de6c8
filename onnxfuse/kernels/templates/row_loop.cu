// y[r, c] = body(x[r, c], ..., reductions of row r), for rows too long for registers: a block walks along its row
// once per reduction phase and once more for the outputs, so what the reductions read is read PHASES + 1 times (from L2
// where it fits). A row is one block's work: a few rows of a million elements leave most of the GPU idle.
//
// Inputs, outputs, accuracy: as in row.cu.

DEVICE void load_early(Held& held, const Pointers& row, const Span& span, const OuterPlace& at, const Parameters& p) {
  load_dense(held, row, span);
  load_shared_operands(held, row, span, at, p);
}

// How many vectors this thread has of the row.
DEVICE Index steps(const OuterPlace& at, const Parameters& p) {
  const Index vectors = (p.columns + at.shift + WIDTH - 1) / WIDTH;
  return (vectors + ROW_THREADS - 1 - thread_index()) / ROW_THREADS;
}

template <int P> DEVICE void reduce(const Pointers& row, const RowHeld& scalars, const OuterPlace& at,
                                    const Parameters& p, Reduced& done) {
  if constexpr (P < PHASES) {
    Phase<P> partial = Phase<P>::identity();
    for (Index step = 0; step < steps(at, p); ++step) {
      const Span span(thread_index(), step, at, p);
      Held held;
      load_early(held, row, span, at, p);
      accumulate(partial, held, scalars, span, done);
    }
    across_row<ROW_THREADS>(partial).finish(done, p.columns);
    reduce<P + 1>(row, scalars, at, p, done);
  }
}

DEVICE void row(const Pointers& pointers, const Parameters& p) {
  const OuterPlace at(block_index(), p);
  const Pointers row = pointers_at(pointers, thread_index(), at, p);
  const RowHeld scalars = load_scalars(row);
  Reduced done;
  reduce<0>(row, scalars, at, p, done);

  for (Index step = 0; step < steps(at, p); ++step) {
    const Span span(thread_index(), step, at, p);
    Held held;
    load_early(held, row, span, at, p);
    const Late late = load_late(row, span, at, p);
    Result result[WIDTH];
    UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(held, late, scalars, w), done);
    store_all(row, result, span, at, p);
    // Values that are one per row do not depend on the column.
    if (span.position == 0) store_scalars(row, result[0], at, p);
  }
}
