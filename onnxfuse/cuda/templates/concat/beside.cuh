// Sources of several inputs side by side, by a table: an entry for each run of neighbours along dimension ALONG that lie in
// one input. The threads of a block make the entries, by a comparison with where each input begins.

template <class T> struct Start {
  const T* from;  // the input
  Index offset;   // of its elements there against the output's coordinates
  Index step;     // along dimension ACROSS
};

template <class R> DEVICE auto* starts() {
  SHARED Start<typename R::Type> table[R::ENTRIES];
  return table;
}

template <class R> DEVICE void find_starts(const Pointers& from, const Parameters& p) {
  static_assert(R::ENTRIES <= THREADS);
  const int n = thread_index();
  if (n < R::ENTRIES) starts<R>()[n] = R::start(from, n * R::run(p).value, p);
}

template <class R, int W> DEVICE auto load_beside(const Place& at, const Parameters& p) {
  const auto start = starts<R>()[quotient(at.coordinate[R::ALONG], R::run(p))];
  return load<W>(start.from + (at.coordinate[R::ACROSS] * start.step + R::along(at, p) + start.offset));
}
