// y[r, c] = body(x[r, c], ..., reductions of row r): normalizations, softmax and what stands before and after them.
// Each input is read once and each output is written once: the row stays in registers.
//
// Inputs: rows [rows, columns], column vectors [columns], row scalars [rows, 1], any outer broadcast of these.
// Outputs: the same kinds.
// Accuracy: float accumulators for 16-bit floats and float, double for double; per thread in order, then a tree.
//
// ROW_THREADS threads share a row, each holding ITEMS vectors of WIDTH elements, ROW_THREADS vectors apart.
// Up to 32 threads per row a block takes THREADS / ROW_THREADS rows. EXACT: the threads' vectors are just the row.

template <int P> DEVICE void reduce(const Held (&held)[ITEMS], const RowHeld& scalars, int lane, int vectors,
                                    Index columns, Reduced& done) {
  if constexpr (P < PHASES) {
    Phase<P> partial = Phase<P>::identity();
    UNROLLED for (int i = 0; i < ITEMS; ++i) {
      if (EXACT || lane + i * ROW_THREADS < vectors) {
        UNROLLED for (int w = 0; w < WIDTH; ++w) partial.accumulate(element(held[i], scalars, w), done);
      }
    }
    across_row<ROW_THREADS>(partial).finish(done, columns);
    reduce<P + 1>(held, scalars, lane, vectors, columns, done);
  }
}

DEVICE void row(const Pointers& pointers, const Parameters& p) {
  const int lane = thread_index() % ROW_THREADS;
  const Index index = (Index)block_index() * (THREADS / ROW_THREADS) + thread_index() / ROW_THREADS;
  // Threads past the last row work on it again, for the warp's exchanges, and store nothing.
  const bool live = index < p.rows;
  const OuterPlace at(live ? index : p.rows - 1, p);
  const Pointers row = pointers_at(pointers, at, p);
  const int vectors = (int)(p.columns / WIDTH);

  const RowHeld scalars = load_scalars(row);
  Held held[ITEMS] = {};
  UNROLLED for (int i = 0; i < ITEMS; ++i) {
    const int vector = lane + i * ROW_THREADS;
    if (EXACT || vector < vectors) load_all<WIDTH>(held[i], row, (Index)vector * WIDTH, p);
  }

  Reduced done;
  reduce<0>(held, scalars, lane, vectors, p.columns, done);
  if (!live) return;

  UNROLLED for (int i = 0; i < ITEMS; ++i) {
    const int vector = lane + i * ROW_THREADS;
    if (EXACT || vector < vectors) {
      Result result[WIDTH];
      UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(held[i], scalars, w), done);
      store_all<WIDTH>(row, result, (Index)vector * WIDTH, at, p);
    }
  }
  if (lane == 0) store_scalars(row, apply(element(held[0], scalars, 0), done), at, p);
}
