// Tiles in shared memory whose rows of ROW_BYTES (128 or 64) are swizzled as TMA writes and wgmma reads them: the pieces of
// 16 bytes of a row are exchanged by its number, so that a column of pieces lies in different banks. PTX, "Shared memory
// layout" of wgmma and "Swizzling modes" of tensors; NVIDIA CUTLASS, Swizzle<3, 4, 3> and <2, 4, 3>.

// Where in its row a piece lies, in bytes.
template <int ROW_BYTES> DEVICE constexpr int swizzled_piece(int row, int piece) {
  return (piece ^ row / (128 / ROW_BYTES) % (ROW_BYTES / 16)) << 4;
}
// The same from the tile's start on, of rows of 128 bytes.
DEVICE constexpr int swizzled(int row, int piece) { return row * 128 + swizzled_piece<128>(row, piece); }

// A tile as wgmma takes it. `leading` and `stride`: bytes from one block of columns (64 elements of 16 bits where the terms
// go down the rows) to the next, and from eight rows to the next eight.
template <int ROW_BYTES = 128>
DEVICE unsigned long long descriptor(unsigned address, unsigned leading, unsigned stride) {
  constexpr unsigned long long SWIZZLE = ROW_BYTES == 128 ? 1 : 2;
  return (unsigned long long)((address & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | SWIZZLE << 62;
}
// The same so many bytes on: an address is in its low word, where it does not overflow.
DEVICE unsigned long long advanced(unsigned long long descriptor, unsigned bytes) {
  return (descriptor & ~0xffffffffull) | ((unsigned)descriptor + bytes / 16);
}
