// What a prologue reads of a row: WIDE neighbours, `left` of which are there, where rows begin on every ALONG elements.

// The bytes that one copy of them may take.
template <class T, int WIDE, int ALONG> struct Copies {
  static constexpr int MANY = int(sizeof(T)) * (WIDE < ALONG ? WIDE : ALONG);
  static constexpr int BYTES = MANY < 16 ? MANY : 16, ELEMENTS = BYTES / int(sizeof(T));
  static constexpr bool AHEAD = BYTES >= 4;  // else they are read when they are needed
};

template <int WIDE, int ALONG, class T> DEVICE Pack<T, WIDE> load_neighbours(const T* from, int left) {
  Pack<T, WIDE> pack = {};
  if constexpr (ALONG >= WIDE) {
    if (left > 0) pack = load<WIDE>(from);
  } else {
    UNROLLED for (int i = 0; i < WIDE; ++i) if (i < left) pack.set_bits(i, load_bits(from + i));
  }
  return pack;
}
