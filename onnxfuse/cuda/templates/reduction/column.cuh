// y[o, r, i] = body(x[o, r, i], ..., reductions of x[o, :, i] over r): means over the pixels of NHWC, sums over the batch,
// normalizations and softmax over the channels of NCHW. Neighbours in memory belong to different results.
//
// Inputs, outputs: dense tensors that broadcast over [outer, reduced, inner], each of several dimensions.
// Accuracy: float accumulators for 16-bit floats and float, double for double; per thread in order of r, then threads,
// warps and blocks in an order that never changes (Harris, Optimizing parallel reduction in CUDA, 2007).
//
// A block takes ACROSS vectors of WIDTH neighbours; ROWS threads below each other share the reduced axis, and CLUSTER
// blocks. ITEMS: vectors that a thread keeps in registers, so that each input is read once; 0: it walks along the
// reduced axis, AHEAD vectors at a time, once per round of reductions and once more for full-size outputs. EARLY: these
// need no reduction, and are written in the last round.
//
// SPLIT: `parts` blocks share the reduced axis of one round, through `scratch`: a counter for each place along the
// columns, all 0 before and after a launch, then what each block has found.

struct Parameters {
  Index reduced, inner;                     // elements
  Divisor<Index> tiles;                     // of ACROSS * WIDTH elements along inner
  Divisor<Index> places;                    // tiles of all outer dimensions
  Index parts, counters;                    // words of scratch before the partial results
  Divisor<Index> outer_extent[OUTER_RANK];  // outermost first
  Divisor<Index> reduced_extent[REDUCED_RANK];
  Divisor<Index> inner_extent[INNER_RANK];
  Index outer_stride[OPERANDS][OUTER_RANK];  // 0 = broadcast
  Index reduced_stride[OPERANDS][REDUCED_RANK];
  Index inner_stride[OPERANDS][INNER_RANK];
};

using Outer = Coordinates<OUTER_RANK>;
using Reach = Coordinates<REDUCED_RANK>;
using Inner = Coordinates<INNER_RANK>;

template <class T>
DEVICE Pack<T, WIDTH> load_gather(const T* from, Index column, const Index* stride, const Parameters& p) {
  Pack<T, WIDTH> pack = {};
  UNROLLED for (int w = 0; w < WIDTH; ++w)
      pack.set_bits(w, load_bits(from + Inner(column + w, p.inner_extent).offset(stride)));
  return pack;
}
template <class T> DEVICE void store_first(T* to, const typename Stored<T>::Value (&value)[WIDTH], Index column,
                                           const Index* stride, const Parameters& p) {
  UNROLLED for (int w = 0; w < WIDTH; ++w) {
    const Inner at(column + w, p.inner_extent);
    const typename Stored<T>::Value one[1] = {value[w]};
    if (at.first(stride)) store_values<1>(to + at.offset(stride), one);
  }
}
