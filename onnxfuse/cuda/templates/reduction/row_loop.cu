// y[r, c] = body(x[r, c], ..., reductions of row r), for rows too long for registers: a block, or a cluster of blocks,
// walks along its row once per reduction phase and once more for the outputs, so what the reductions read is read
// PHASES + 1 times (from L2 where it fits), and once where only reductions of one phase leave the kernel.
//
// Inputs, outputs, accuracy: as in row.cu.

DEVICE void load_early(Held& held, const Pointers& row, const Span& span, const OuterPlace& at, const Parameters& p) {
  load_dense(held, row, span);
  load_shared_operands(held, row, span, at, p);
}

// How many vectors this thread has of the row.
DEVICE Index steps(int thread, const OuterPlace& at, const Parameters& p) {
  const Index vectors = (p.columns + at.shift + WIDTH - 1) / WIDTH;
  return (vectors + ROW_THREADS - 1 - thread) / ROW_THREADS;
}

template <int P> DEVICE void reduce(const Pointers& row, const RowHeld& scalars, int thread, const OuterPlace& at,
                                    const Parameters& p, Reduced& done) {
  if constexpr (P < PHASES) {
    Phase<P> partial = Phase<P>::identity();
    const Index all = steps(thread, at, p);
    for (Index step = 0; step < all; step += AHEAD) {
      Held held[AHEAD] = {};
      UNROLLED for (int i = 0; i < AHEAD; ++i) if (step + i < all)
          load_early(held[i], row, Span(thread, step + i, at, p), at, p);
      UNROLLED for (int i = 0; i < AHEAD; ++i) if (step + i < all)
          accumulate(partial, held[i], scalars, Span(thread, step + i, at, p), done, at);
    }
    across_row<ROW_THREADS / CLUSTER>(partial).finish(done, p.columns);
    reduce<P + 1>(row, scalars, thread, at, p, done);
  }
}

DEVICE void row(const Pointers& pointers, const Parameters& p) {
  const int thread = rank_of_block() * THREADS + thread_index();
  const OuterPlace at(block_from_end() / CLUSTER, p);
  const Pointers row = pointers_at(pointers, thread, at, p);
  const RowHeld scalars = load_scalars(row);
  Reduced done;
  reduce<0>(row, scalars, thread, at, p, done);

  if (ALONG) {
    for (Index step = 0; step < steps(thread, at, p); ++step) {
      const Span span(thread, step, at, p);
      Held held;
      load_early(held, row, span, at, p);
      const Late late = load_late(row, span, at, p);
      Result result[WIDTH];
      UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(held, late, scalars, w), done);
      store_all(row, result, span, at, p);
    }
  }
  // Values that are one per row do not depend on the column.
  if (thread == 0) store_scalars(row, apply(element(Held{}, Late{}, scalars, 0), done), at, p);
  leave_together();
}
