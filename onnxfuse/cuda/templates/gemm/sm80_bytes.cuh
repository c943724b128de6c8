// Tiles of sm80.cuh of elements of one byte, whose lines begin at no multiple of four: the elements are copied one by one.

DEVICE void copy_single_bytes(SharedAddress to, const Factor* at, int left) {
  unsigned word[4] = {};
  UNROLLED for (int i = 0; i < 16; ++i)
    if (i < left) word[i / 4] |= (unsigned)load_bits(at + i) << i % 4 * 8;
  store_shared(to, word);
}
template <> DEVICE void Side<TILE_M, false, 1, false>::copy_piece(SharedAddress to, const Factor* at, int left) {
  copy_single_bytes(to, at, left);
}
template <> DEVICE void Side<TILE_N, false, 1, true>::copy_piece(SharedAddress to, const Factor* at, int left) {
  copy_single_bytes(to, at, left);
}
