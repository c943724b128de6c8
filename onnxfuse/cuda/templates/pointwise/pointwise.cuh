// Where an element lies in each operand of a pointwise kernel, and how W neighbours of it are fetched.
//
// The output is one linear space of p.count elements; its dimensions are collapsed to RANK. An operand is
//   linear   as big as the output: the same linear index, always one full-width access;
//   uniform  one element for all;
//   splat    the same element along the inner dimension, which W divides: one element per vector;
//   inner    contiguous along the inner dimension, which W divides: one full-width access;
//   seam     contiguous along the inner dimension, at least W long, which W does not divide: element by element, and a
//            vector crosses at most once into the next inner row, where the operand goes on elsewhere;
//   seam_splat  the same with one element per inner row: two elements per vector;
//   gather   anything else: element by element, one decomposition per vector and then carries.

struct Parameters {
  Index count;
  Divisor<Index> extent[RANK];        // outermost first
  Index stride[STRIDED_SLOTS][RANK];  // of every operand that is neither linear nor uniform; 0 = broadcast
};

// The elements of a vector that come before the next inner row begins.
DEVICE Index before_seam(const Place& at, const Parameters& p) {
  return p.extent[RANK - 1].value - at.coordinate[RANK - 1];
}
// The offset where the next inner row begins.
DEVICE Index offset_after_seam(const Place& at, const Index* stride, const Parameters& p) {
  Place next = at;
  next.coordinate[RANK - 1] = p.extent[RANK - 1].value - 1;
  next.advance<1>(p);
  return next.offset(stride);
}

template <int W, class T> DEVICE Pack<T, W> load_linear(const T* from, const Place& at) {
  return load<W>(from + at.linear);
}
template <int W, class T> DEVICE Splat<T> load_uniform(const T* from, const Place&) { return load_splat(from); }
template <int W, class T> DEVICE Splat<T> load_strided_splat(const T* from, const Place& at, const Index* stride) {
  return load_splat(from + at.offset(stride));
}
template <int W, class T> DEVICE Pack<T, W> load_inner(const T* from, const Place& at, const Index* stride) {
  return load<W>(from + at.offset(stride));
}
// Where no element lies behind the seam, nothing is read there: it may be behind the tensor.
template <int W, class T>
DEVICE Pack<T, W> load_seam(const T* from, const Place& at, const Index* stride, const Parameters& p) {
  const Index before = before_seam(at, p), here = at.offset(stride), there = offset_after_seam(at, stride, p) - before;
  Pack<T, W> pack = {};
  UNROLLED for (int w = 0; w < W; ++w) pack.set_bits(w, load_bits(from + (Index)((w < before ? here : there) + w)));
  return pack;
}
template <int W, class T>
DEVICE Pack<T, W> load_seam_splat(const T* from, const Place& at, const Index* stride, const Parameters& p) {
  const Index before = before_seam(at, p), here = at.offset(stride);
  const auto left = load_bits(from + here);
  const auto right = load_bits(from + (before < W ? offset_after_seam(at, stride, p) : here));
  Pack<T, W> pack = {};
  UNROLLED for (int w = 0; w < W; ++w) pack.set_bits(w, w < before ? left : right);
  return pack;
}
template <int W, class T>
DEVICE Pack<T, W> load_gather(const T* from, Place at, const Index* stride, const Parameters& p) {
  Pack<T, W> pack = {};
  UNROLLED for (int w = 0; w < W; ++w) {
    pack.set_bits(w, load_bits(from + at.offset(stride)));
    if (w + 1 < W) at.advance<1>(p);
  }
  return pack;
}

template <int W, class T>
DEVICE void store_linear(T* to, const typename Stored<T>::Value (&value)[W], const Place& at) {
  store_values<W>(to + at.linear, value);
}
template <int W, class T> DEVICE void store_first(T* to, const typename Stored<T>::Value (&value)[W], Place at,
                                                  const Index* stride, const Parameters& p) {
  UNROLLED for (int w = 0; w < W; ++w) {
    const typename Stored<T>::Value one[1] = {value[w]};
    if (at.first(stride)) store_values<1>(to + at.offset(stride), one);
    if (w + 1 < W) at.advance<1>(p);
  }
}
