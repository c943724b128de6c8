// Sources of a pointwise kernel whose inputs are read through index maps, and how W neighbours of them are fetched.
//
// The output is one linear space of p.count elements; its dimensions are merged to RANK. A read is
//   splat   the same for all elements of a vector;
//   pieces  contiguous in accesses of G elements, each of which lies in one piece;
//           G = 1: anything at all, element by element.
// `find` of its generated struct gives the position of an element in the input, or false where nothing is to be read.
// Of several inputs side by side, `input` of its struct tells in which one: `from` is then all pointers.
// A guard tells which piece an element comes from: for all elements alike, or a bit for each element.

struct Parameters {
  Index count;
  Divisor<Index> extent[RANK];  // outermost first
  Divisor<Index> divisor[DIVISORS];
  Index number[NUMBERS];
};

DEVICE Index quotient(Index n, const Divisor<Index>& by) { return by.quotient(n); }
DEVICE Index remainder(Index n, const Divisor<Index>& by) { return n - by.quotient(n) * by.value; }

// The element of an axis that stands at an index around it. What lies before the axis has wrapped around.
DEVICE Index folded_reflect(Index n, Index extent) {
  const Index last = extent - 1, distance = n < Index(0) - n ? n : Index(0) - n;
  return distance > last ? last + last - distance : distance;
}
DEVICE Index folded_edge(Index n, Index extent) {
  const bool before = n > Index(0) - n;
  return before ? 0 : n < extent ? n : extent - 1;
}

struct Flag {
  bool holds;
  DEVICE bool get(int) const { return holds; }
};
struct Flags {
  unsigned elements;
  DEVICE bool get(int w) const { return elements >> w & 1; }
};

template <class R, class T> DEVICE const T* input(const T* from, const Place&, const Parameters&) { return from; }
template <class R, class P> DEVICE auto input(const P& from, const Place& at, const Parameters& p) {
  return R::input(from, at, p);
}
template <class T> T element_of(const T*);

template <class R, class F> DEVICE auto load_mapped_splat(const F& from, const Place& at, const Parameters& p) {
  Splat<decltype(element_of(input<R>(from, at, p)))> splat = {};
  Index position;
  if (R::find(at, p, position)) splat = load_splat(input<R>(from, at, p) + position);
  return splat;
}

template <class R, int G, int W, class F> DEVICE auto load_pieces(const F& from, Place at, const Parameters& p) {
  using T = decltype(element_of(input<R>(from, at, p)));
  Pack<T, W> pack = {};
  if constexpr (G >= W) {
    Index position;
    if (R::find(at, p, position)) pack = load<W>(input<R>(from, at, p) + position);
  } else {
    UNROLLED for (int w = 0; w < W; w += G) {
      Index position;
      if (R::find(at, p, position)) {
        const Pack<T, G> piece = load<G>(input<R>(from, at, p) + position);
        UNROLLED for (int i = 0; i < G; ++i) pack.set_bits(w + i, piece.bits(i));
      }
      if (w + G < W) at.template advance<G>(p);
    }
  }
  return pack;
}

template <class R> DEVICE Flag load_flag(const Place& at, const Parameters& p) { return {R::holds(at, p)}; }
template <class R, int W> DEVICE Flags load_flags(Place at, const Parameters& p) {
  Flags flags = {0};
  UNROLLED for (int w = 0; w < W; ++w) {
    flags.elements |= (unsigned)R::holds(at, p) << w;
    if (w + 1 < W) at.template advance<1>(p);
  }
  return flags;
}

template <int W, class T>
DEVICE void store_linear(T* to, const typename Stored<T>::Value (&value)[W], const Place& at) {
  store_values<W>(to + at.linear, value);
}
