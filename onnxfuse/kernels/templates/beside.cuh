// Sources of several inputs side by side: an entry of a table for each GRAIN neighbours of dimension ALONG, which lie in
// one input. The threads of a block find the entries once, by the comparisons of `find` and `input`.

template <class T> struct Start {
  const T* from;  // the first of them, where all other coordinates are 0
  Index step;     // along dimension ACROSS
};

template <class R> DEVICE auto* starts() {
  using T = decltype(element_of(R::input(Pointers(), Place(0, Parameters()), Parameters())));
  SHARED Start<T> table[R::ENTRIES];
  return table;
}

template <class R> DEVICE void find_starts(const Pointers& from, const Parameters& p) {
  for (int n = thread_index(); n < R::ENTRIES; n += THREADS) {
    Place at(0, p);
    at.coordinate[R::ALONG] = n * R::grain(p).value;
    Index first, second;
    R::find(at, p, first);
    at.coordinate[R::ACROSS] = 1;
    R::find(at, p, second);
    starts<R>()[n] = {R::input(from, at, p) + first, second - first};
  }
}

template <class R, int W> DEVICE auto load_beside(const Place& at, const Parameters& p) {
  const Index along = at.coordinate[R::ALONG], n = quotient(along, R::grain(p));
  const auto start = starts<R>()[n];
  const Index inside = (along - n * R::grain(p).value) * R::step(p) + R::rest(at, p);
  return load<W>(start.from + (at.coordinate[R::ACROSS] * start.step + inside));
}
