// y[r, c] = body(x[r, c], ..., reductions of row r): normalizations, softmax and what stands before and after them.
// Each input is read once and each output is written once: the row stays in registers.
//
// Inputs: rows [rows, columns], column vectors [columns], row scalars [rows, 1], any outer broadcast of these.
// Outputs: the same kinds.
// Accuracy: float accumulators for 16-bit floats and float, double for double; per vector in order, then a tree
// (Harris, Optimizing parallel reduction in CUDA, 2007).
//
// ROW_THREADS threads share a row, each holding ITEMS vectors of WIDTH elements, ROW_THREADS vectors apart.
// Up to 32 threads per row a block takes THREADS / ROW_THREADS rows. EXACT: the threads' vectors are just the row.
//
// The rows of dense operands are fetched first, all of them: they come from memory, the rest mostly from the caches.
// An output may lie exactly over an input of the same shape and type: an element that a thread reads and does not own is
// never used, whatever its owner has made of it by then.
//
// EXTREMES: of an output the smallest and the largest element are left, a part for each block.
//
// CLUSTER: so many blocks share a row, each with a part of its vectors: few, long rows keep more multiprocessors busy,
// and rows too long for the registers of one block fit those of several.

// Vector number i of a thread. SHIFTED: all but the first one, up to INNER_ITEMS, lie inside the row wherever it begins.
DEVICE Span item(int i, int thread, const OuterPlace& at, const Parameters& p) {
  return Span(thread, i, at, p, 0 < i && i < INNER_ITEMS);
}

template <int P> DEVICE void reduce(const Held (&held)[ITEMS], const RowHeld& scalars, int thread, const OuterPlace& at,
                                    const Parameters& p, Reduced& done) {
  if constexpr (P < PHASES) {
    // A sum for each vector, then in pairs: terms added one after the other lose more digits, and wait for each other.
    // Positions in one go: arg max over 32000 columns 22 us, with one for each vector 26 (float16, 64 MB, H200, 2026-11).
    constexpr int SUMS = Phase<P>::IN_ORDER ? 1 : ITEMS;
    Phase<P> partial[SUMS];
    UNROLLED for (int i = 0; i < SUMS; ++i) partial[i] = Phase<P>::identity();
    UNROLLED for (int i = 0; i < ITEMS; ++i) {
      const Span span = item(i, thread, at, p);
      if (MASKED || span.present()) accumulate(partial[i % SUMS], held[i], scalars, span, done, at);
    }
    UNROLLED for (int apart = 1; apart < SUMS; apart *= 2) UNROLLED for (int i = 0; i + apart < SUMS; i += 2 * apart)
        partial[i]
            .combine(partial[i + apart]);
    across_row<ROW_THREADS / CLUSTER>(partial[0]).finish(done, p.columns);
    reduce<P + 1>(held, scalars, thread, at, p, done);
  }
}

DEVICE void leave(const SeenExtremes<true>& extremes, const Pointers& to) {
  const Extremes all = extremes_of_block<THREADS / 32>(extremes.seen);
  if (thread_index() == 0) write((Extremes*)to.scratch + block_index(), all);
}
DEVICE void leave(const SeenExtremes<false>&, const Pointers&) {}

// Row `index`, by threads of which each knows its number.
DEVICE void row_at(const Pointers& pointers, Index index, int thread, const Parameters& p) {
  // Threads past the last row work on it again, for the warp's exchanges, and store nothing.
  const bool live = index < p.rows;
  const OuterPlace at(live ? index : p.rows - 1, p);
  const Pointers row = pointers_at(pointers, thread, at, p);

  const RowHeld scalars = load_scalars(row);
  Held held[ITEMS] = {};
  UNROLLED for (int i = 0; i < ITEMS; ++i) {
    const Span span = item(i, thread, at, p);
    if (span.present()) load_dense(held[i], row, span);
  }
  UNROLLED for (int i = 0; i < ITEMS; ++i) {
    const Span span = item(i, thread, at, p);
    if (MASKED || span.present()) load_shared_operands(held[i], row, span, at, p);
  }

  Reduced done;
  reduce<0>(held, scalars, thread, at, p, done);
  if (!EXTREMES && !live) return;

  SeenExtremes<EXTREMES> extremes;
  UNROLLED for (int i = 0; i < ITEMS; ++i) {
    const Span span = item(i, thread, at, p);
    if ((!EXTREMES || live) && (MASKED || span.present())) {
      const Late late = load_late(row, span, at, p);
      Result result[WIDTH];
      UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(held[i], late, scalars, w), done);
      store_all(row, result, span, at, p);
      UNROLLED for (int w = 0; w < WIDTH; ++w) extremes.take(ranged(result[w]), span.owns(w));
    }
  }
  leave(extremes, pointers);
  if ((!EXTREMES || live) && thread == 0) store_scalars(row, apply(element(held[0], Late(), scalars, 0), done), at, p);
}

DEVICE void row(const Pointers& pointers, const Parameters& p) {
  const int thread = rank_of_block() * THREADS + thread_index() % ROW_THREADS;
  const Index index = CLUSTER > 1 ? block_from_end() / CLUSTER
                                  : (Index)block_from_end() * (THREADS / ROW_THREADS) + thread_index() / ROW_THREADS;
  row_at(pointers, index, thread, p);
  leave_together();
}
