// An element of the output of a pointwise kernel: its linear index, and its coordinates in the RANK merged dimensions.

struct Place {
  Index linear;
  Index coordinate[RANK];

  template <class Parameters> DEVICE Place(Index index, const Parameters& p) : linear(index) {
    Index rest = index;
    UNROLLED for (int d = RANK - 1; d > 0; --d) {
      const Index outer = p.extent[d].quotient(rest);
      coordinate[d] = rest - outer * p.extent[d].value;
      rest = outer;
    }
    coordinate[0] = rest;
  }

  // N elements onward. No vector leaves the last TAIL dimensions.
  template <int N, class Parameters> DEVICE void advance(const Parameters& p) {
    linear += N;
    if constexpr (TAIL == 1) {
      coordinate[RANK - 1] += N;
    } else {
      UNROLLED for (int i = 0; i < N; ++i) {
        ++coordinate[RANK - 1];
        UNROLLED for (int d = RANK - 1; d > RANK - TAIL; --d) {
          if (coordinate[d] == p.extent[d].value) {
            coordinate[d] = 0;
            ++coordinate[d - 1];
          }
        }
      }
    }
  }

  DEVICE Index offset(const Index* stride) const {
    Index sum = 0;
    UNROLLED for (int d = 0; d < RANK; ++d) sum += coordinate[d] * stride[d];
    return sum;
  }
  // A smaller output is written where the coordinate on each of its broadcast dimensions is 0.
  DEVICE bool first(const Index* stride) const {
    bool first = true;
    UNROLLED for (int d = 0; d < RANK; ++d) first = first && (stride[d] != 0 || coordinate[d] == 0);
    return first;
  }
};
