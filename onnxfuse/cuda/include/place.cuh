// An element of the output of a pointwise kernel: its linear index, and its coordinates in the RANK merged dimensions.

struct Place : Coordinates<RANK> {
  Index linear;

  template <class Parameters> DEVICE Place(Index index, const Parameters& p)
      : Coordinates<RANK>(index, p.extent), linear(index) {}

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
};
