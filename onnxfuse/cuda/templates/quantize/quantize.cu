// y[i] = body(x[i], largest, smallest element of x): x in 8 bits, and the scale and the zero point by which it is.
//
// x of p.count float32, in vectors of WIDTH; the extremes in p.parts parts from p.first on, which each block combines while
// its elements are on their way. Outputs: elements as many as x, and scalars, which one thread writes. Accuracy: the
// extremes are exact, the body is computed in float32 (ONNX, DynamicQuantizeLinear of operator set 11, 2019).

struct Parameters { Index count, first, parts; };

// What all elements have in common.
struct Known {
  Extremes of;
  Scalars by;
};

// One thread computes it: by each, as many instructions as for eight elements.
DEVICE Known known(const Extremes* parts, Index count) {
  constexpr int AT_ONCE = 4;
  Extremes mine = no_extremes();
  for (Index begin = thread_index(); begin < count; begin += AT_ONCE * THREADS) {
    Extremes held[AT_ONCE];
    UNROLLED for (int i = 0; i < AT_ONCE; ++i) held[i] =
        begin + i * THREADS < count ? read(parts + begin + i * THREADS) : no_extremes();
    UNROLLED for (int i = 0; i < AT_ONCE; ++i) mine.combine(held[i]);
  }
  const Extremes of = extremes_of_block<WARPS>(mine);
  SHARED Shared<Known, 1> all;
  if (thread_index() == 0) all.mine()[0] = {of, scalars_of(of.most, of.least)};
  wait_for_block();
  return all.mine()[0];
}

template <int W>
DEVICE void quantize_elements(Result (&result)[W], const Pack<float, W>& held, const Extremes& of, const Scalars& by) {
  UNROLLED for (int w = 0; w < W; ++w) result[w] = apply(element(held.get(w), of, by));
}

DEVICE void quantize(const Pointers& pointers, const Parameters& p) {
  const Index vectors = p.count / WIDTH;
  const Index first = (Index)block_from_end() * (THREADS * UNROLL) + thread_index();
  Pack<float, WIDTH> held[UNROLL] = {};
  UNROLLED for (int u = 0; u < UNROLL; ++u) {
    const Index vector = first + u * THREADS;
    if (vector < vectors) held[u] = load<WIDTH>(pointers.x + vector * WIDTH);
  }
  const Known all = known((const Extremes*)pointers.scratch + p.first, p.parts);
  const Scalars by[1] = {all.by};
  Result result[UNROLL][WIDTH];
  UNROLLED for (int u = 0; u < UNROLL; ++u) quantize_elements<WIDTH>(result[u], held[u], all.of, all.by);
  UNROLLED for (int u = 0; u < UNROLL; ++u) {
    const Index vector = first + u * THREADS;
    if (vector < vectors) store_elements<WIDTH>(pointers, result[u], vector * WIDTH);
  }
  if (block_index() != 0) return;
  // What is left after the last whole vector: fewer than WIDTH elements.
  const Index rest = vectors * WIDTH + thread_index();
  if (WIDTH > 1 && rest < p.count) {
    Result last[1];
    quantize_elements<1>(last, load<1>(pointers.x + rest), all.of, all.by);
    store_elements<1>(pointers, last, rest);
  }
  if (thread_index() == 0) store_scalars(pointers, by);
}
