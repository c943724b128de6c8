// The same, copied to shared memory while the thread goes on; it is the thread itself that takes them from there.

template <int WIDE, int ALONG, class T> DEVICE void copy_neighbours(SharedAddress to, const T* from, int left) {
  using How = Copies<T, WIDE, ALONG>;
  if constexpr (How::AHEAD)
    UNROLLED for (int part = 0; part < WIDE / How::ELEMENTS; ++part)
        copy_async<How::BYTES>(to + part * How::BYTES, from + part * How::ELEMENTS, part * How::ELEMENTS < left);
}
template <class T, int WIDE, int ALONG>
DEVICE Pack<T, WIDE> take_neighbours(SharedAddress held, const T* from, int left) {
  using How = Copies<T, WIDE, ALONG>;
  if constexpr (!How::AHEAD) {
    return load_neighbours<WIDE, ALONG>(from, left);
  } else {
    Pack<T, WIDE> pack;
    UNROLLED for (int i = 0; i < pack.CHUNKS; ++i) {
      if constexpr (pack.CHUNK == 16) load_shared(pack.chunk[i].word, held + i * 16);
      else UNROLLED for (int w = 0; w < pack.WORDS; ++w) pack.chunk[i].word[w] = load_shared(held + w * 4);
    }
    return pack;
  }
}
