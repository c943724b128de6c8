// A right factor [n, k] in few bits, with a scale and a zero point for each block of terms of a column.
//
// The numbers [n, k], BITS each, the first of a byte in its low bits; BLOCK terms to a block, of which k is a multiple.
// Scales [n, k / BLOCK]. Zero points: none (MIDDLE of the numbers), PACKED like the numbers with the rest of a column's last
// byte unused, or REAL, of the type of the scales. A number stands for (number - zero point) * scale.

template <int BITS_, int BLOCK_, Zeros ZEROS_, class Factor> struct PackedMatrix {
  static constexpr int BITS = BITS_, BLOCK = BLOCK_;
  static constexpr Zeros ZEROS = ZEROS_;
  static constexpr unsigned MASK = (1u << BITS) - 1;
  static constexpr float MIDDLE = 1 << (BITS - 1);
  const unsigned char* numbers;
  const Factor* scales;
  const void* zeros;

  // The byte in which the packed zero point of a block of a column lies, and how far up in it.
  static DEVICE unsigned long long zero_byte(Index column, Index block, Index blocks) {
    return (unsigned long long)column * ((blocks * BITS + 7) / 8) + block * BITS / 8;
  }
  static DEVICE int zero_shift(Index block) { return block * BITS % 8; }
};

// The same matrix: there is one, for all products of a batch.
template <int BITS, int BLOCK, Zeros ZEROS, class Factor>
DEVICE PackedMatrix<BITS, BLOCK, ZEROS, Factor> matrix_at(const PackedMatrix<BITS, BLOCK, ZEROS, Factor>& of,
                                                          unsigned long long) {
  return of;
}
