// y[i] = body(x[i], largest, smallest element of x): x in 8 bits, and the scale and the zero point by which it is.
//
// x of p.count float32, in vectors of WIDTH; the extremes in p.parts parts from p.first on, which each block combines while
// its elements are on their way. Outputs: elements as many as x, and scalars, which one thread writes.

struct Parameters {
  Index count, first, parts;
};

DEVICE Extremes combined(const Extremes* parts, Index count) {
  constexpr int AT_ONCE = 4;
  Extremes mine = no_extremes();
  for (Index begin = thread_index(); begin < count; begin += AT_ONCE * THREADS) {
    Extremes held[AT_ONCE];
    UNROLLED for (int i = 0; i < AT_ONCE; ++i)
      held[i] = begin + i * THREADS < count ? read(parts + begin + i * THREADS) : no_extremes();
    UNROLLED for (int i = 0; i < AT_ONCE; ++i) mine.combine(held[i]);
  }
  return extremes_of_block(mine);
}

template <int W, class X> DEVICE void quantize_elements(const Pointers& to, const X& held, const Extremes& of, Index first) {
  Result result[W];
  UNROLLED for (int w = 0; w < W; ++w) result[w] = apply(element(held.get(w), of));
  store_elements<W>(to, result, first);
}

DEVICE void quantize(const Pointers& pointers, const Parameters& p) {
  const Index vectors = p.count / WIDTH;
  const Index first = (Index)block_from_end() * (THREADS * UNROLL) + thread_index();
  Pack<float, WIDTH> held[UNROLL] = {};
  UNROLLED for (int u = 0; u < UNROLL; ++u) {
    const Index vector = first + u * THREADS;
    if (vector < vectors) held[u] = load<WIDTH>(pointers.x + vector * WIDTH);
  }
  const Extremes of = combined((const Extremes*)pointers.scratch + p.first, p.parts);
  UNROLLED for (int u = 0; u < UNROLL; ++u) {
    const Index vector = first + u * THREADS;
    if (vector < vectors) quantize_elements<WIDTH>(pointers, held[u], of, vector * WIDTH);
  }
  if (block_index() != 0) return;
  // What is left after the last whole vector: fewer than WIDTH elements.
  const Index rest = vectors * WIDTH + thread_index();
  if (WIDTH > 1 && rest < p.count) quantize_elements<1>(pointers, load<1>(pointers.x + rest), of, rest);
  if (thread_index() == 0) {
    const Result result[1] = {apply(element(0.0f, of))};
    store_scalars(pointers, result);
  }
}
