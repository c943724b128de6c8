// y[i] = body(a[i], b[i], ...) for every element i of the broadcast shape: one read and one write per element.
//
// Inputs, outputs: dense tensors, any shapes that broadcast (numpy) to the shape with p.count elements.
// Accuracy: computed in the body's types (float for 16-bit floats, double for double), rounded once when stored.
//
// A thread holds UNROLL vectors of WIDTH elements. All their loads are issued before the first result is computed:
// that keeps enough bytes in flight to cover the latency of memory (Volkov, Better performance at lower occupancy,
// 2010). Each element is loaded before it is stored, by
// the same thread, so an output may lie exactly over an input of the same shape and type.

template <int W>
DEVICE void store_results(const Pointers& to, const Held<W>& held, const Place& at, const Parameters& p) {
  Result result[W];
  UNROLLED for (int w = 0; w < W; ++w) result[w] = apply(element(held, w));
  store_all<W>(to, result, at, p);
}

// UNROLL vectors, THREADS apart. WHOLE: all of them are there.
template <bool WHOLE>
DEVICE void work_on_tile(Index first, Index vectors, const Pointers& pointers, const Parameters& p) {
  Held<WIDTH> held[UNROLL];
  UNROLLED for (int u = 0; u < UNROLL; ++u) {
    const Index vector = first + u * THREADS;
    if (WHOLE || vector < vectors) load_all<WIDTH>(held[u], pointers, Place(vector * WIDTH, p), p);
  }
  UNROLLED for (int u = 0; u < UNROLL; ++u) {
    const Index vector = first + u * THREADS;
    if (WHOLE || vector < vectors) store_results<WIDTH>(pointers, held[u], Place(vector * WIDTH, p), p);
  }
}

DEVICE void pointwise(const Pointers& pointers, const Parameters& p) {
  const Index vectors = p.count / WIDTH;
  const Index tile = (Index)block_from_end() * (THREADS * UNROLL);
  if (UNROLL > 1 && tile + THREADS * UNROLL <= vectors) {
    work_on_tile<true>(tile + thread_index(), vectors, pointers, p);
  } else {
    work_on_tile<false>(tile + thread_index(), vectors, pointers, p);
  }

  // What is left after the last whole vector: fewer than WIDTH elements, one thread each.
  if (WIDTH > 1 && block_from_end() == last_block() && thread_index() < p.count - vectors * WIDTH) {
    const Place at(vectors * WIDTH + thread_index(), p);
    Held<1> one;
    load_all<1>(one, pointers, at, p);
    store_results<1>(pointers, one, at, p);
  }
}
