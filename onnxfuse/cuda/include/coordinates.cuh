// A position in a space of RANK dimensions, outermost first, and where it lies in operands that are broadcast over it.

template <int RANK> struct Coordinates {
  Index coordinate[RANK];

  DEVICE Coordinates(Index index, const Divisor<Index>* extent) {
    UNROLLED for (int d = RANK - 1; d > 0; --d) {
      const Index outer = extent[d].quotient(index);
      coordinate[d] = index - outer * extent[d].value;
      index = outer;
    }
    coordinate[0] = index;
  }
  DEVICE Index offset(const Index* stride) const {
    Index sum = 0;
    UNROLLED for (int d = 0; d < RANK; ++d) sum += coordinate[d] * stride[d];
    return sum;
  }
  // An output that is broadcast along a dimension is written at its coordinate 0.
  DEVICE bool first(const Index* stride) const {
    bool first = true;
    UNROLLED for (int d = 0; d < RANK; ++d) first = first && (stride[d] != 0 || coordinate[d] == 0);
    return first;
  }
};
