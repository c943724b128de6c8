// y = body(A B0, A B1, ..., operands), the obvious way: one thread computes one element of the output.
//
// For pointers that the bulk copy engine does not take, and for sizes that are no multiples of 8; and what the fast
// kernel is compared with. A [m, k] or what a window sees; B [k, n], or [n, k] (B_TRANSPOSED). Accuracy: float
// accumulators, in order of k.

struct Parameters : Source, Stores, Groups, Products {
  Sides<SIBLINGS, EVEN> sides;
  Index m, k, lines;
  Index widest;  // columns, of all groups, of the body that has most
};

template <int SIBLING, int PRODUCT> DEVICE void multiply(float (&sums)[ACCUMULATED], const Operands& from, Index row,
                                                      Index column, const Parameters& p) {
  if constexpr (PRODUCT < ACCUMULATED) {
    const auto* b = from.template b<SIBLING + PRODUCT>() + (B_TRANSPOSED ? (unsigned long long)column * p.k : column);
    const Index n = p.sides.columns_of(SIBLING);
    float sum = 0.0f;
    for (Index k = 0; k < p.k; ++k)
      sum += left_element(from.a(), row, k, p.k, column / n, p) *
             load_splat(b + (B_TRANSPOSED ? k : (unsigned long long)k * n)).get(0);
    sums[PRODUCT] = sum;
    multiply<SIBLING, PRODUCT + 1>(sums, from, row, column, p);
  }
}

template <int SIBLING> DEVICE void finish(const Operands& from, const Results& to, Index row, Index column,
                                          const Parameters& p) {
  if constexpr (SIBLING < SIBLINGS) {
    const Index pitch = p.products() * p.sides.columns_of(SIBLING);
    if (column < pitch) {
      const Place at{row, column, p.m, pitch, p.lines, pitch};
      float sums[ACCUMULATED];
      multiply<SIBLING, 0>(sums, from, row, column, p);
      const Pointers operands = from.of(SIBLING);
      const Result result[1] = {apply(element(sums, load_column<1>(operands, at, 0), load_cell<1>(operands, at, 0, 0),
                                              load_rows(operands, at, 0), 0, 0))};
      store_results<1>(to, p, SIBLING, at, result);
    }
    finish<SIBLING + 1>(from, to, row, column, p);
  }
}

DEVICE void gemm(const Operands& from, const Results& to, const Parameters& p) {
  const unsigned long long index = (unsigned long long)block_index() * THREADS + thread_index();
  const Index row = index / p.widest, column = index - (unsigned long long)row * p.widest;
  if (row < p.m) finish<0>(from, to, row, column, p);
}
