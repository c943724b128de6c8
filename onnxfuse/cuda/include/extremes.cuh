// The smallest and the largest element of a value, in parts: each is what some threads have seen of it. NaN is both, as
// soon as an element is.

struct alignas(8) Extremes {
  float most, least;

  DEVICE void take(float value) {
    most = greater(most, value);
    least = lesser(least, value);
  }
  DEVICE void combine(const Extremes& other) {
    most = greater(most, other.most);
    least = lesser(least, other.least);
  }
};

// Of no element.
DEVICE Extremes no_extremes() { return {float_of_bits(0xff800000u), float_of_bits(0x7f800000u)}; }

DEVICE Extremes extremes_of_warp(Extremes mine) {
  UNROLLED for (int distance = 16; distance > 0; distance /= 2)
      mine.combine({float_of_bits(exchange(bits_of_float(mine.most), distance)),
                    float_of_bits(exchange(bits_of_float(mine.least), distance))});
  return mine;
}

// What a thread has seen of an output of which the op asks for the extremes (EXTREMES); of none otherwise.
template <bool ASKED> struct SeenExtremes {
  DEVICE void take(float, bool = true) {}
  DEVICE void combine(const SeenExtremes&, bool) {}
  DEVICE void leave_of_warp(void*, unsigned) const {}
};
template <> struct SeenExtremes<true> {
  Extremes seen = no_extremes();

  // Where it counts.
  DEVICE void take(float value, bool counts = true) {
    seen.combine({counts ? value : no_extremes().most, counts ? value : no_extremes().least});
  }
  DEVICE void combine(const SeenExtremes& other, bool counts) {
    seen.combine({counts ? other.seen.most : no_extremes().most, counts ? other.seen.least : no_extremes().least});
  }
  // All lanes of a warp, whose part of those in scratch memory has this number.
  DEVICE void leave_of_warp(void* parts, unsigned number) const {
    const Extremes all = extremes_of_warp(seen);
    if (thread_index() % 32 == 0) write((Extremes*)parts + number, all);
  }
};
