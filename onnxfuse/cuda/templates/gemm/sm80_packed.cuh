// The right factor of sm80.cu where it lies in few bits (packed.cuh). `elements_of` makes 16 bytes of elements of numbers and
// the bits of their scale and zero point: packed_pairs.cuh, packed_floats.cuh.

// Columns of a matrix in few bits (packed.cuh). The thread that has fetched numbers, scale and zero point to where 16 bytes
// of the tile will lie computes these once they have arrived: its own copies are there before the block's barrier.
// COPIED: by asynchronous copies of words, in which scales and zero points lie; else it reads them as it computes.
template <class Packed, bool COPIED> struct Unpacked : Side<TILE_N, FactorOf::RIGHT, false, 16> {
  using Base = Side<TILE_N, FactorOf::RIGHT, false, 16>;
  static constexpr int WIDE = Base::WIDE;
  static constexpr int NUMBER_BYTES = WIDE * Packed::BITS / 8, SCALE = 8, ZERO = 12;  // where in the 16 bytes words lie
  Packed packed;

  DEVICE Unpacked() {}
  DEVICE Unpacked(const Packed& packed, Index first_row, Index rows, Index terms, Index, const Source&)
      : packed(packed) {
    this->row = first_row + thread_index() / 8;
    this->term = thread_index() % 8 * WIDE;
    this->rows = rows;
    this->terms = terms;
  }
  DEVICE void next() { this->term += STAGE_TERMS; }
  static DEVICE bool inside(int turn) {
    return TILE_N % Base::AT_ONCE == 0 || (int)thread_index() / 8 + turn * Base::AT_ONCE < TILE_N;
  }
  static DEVICE SharedAddress place(SharedAddress tile, int turn) {
    return typename Base::Lines{tile}.like(thread_index() / 8, thread_index() / 8 + turn * Base::AT_ONCE,
                                           thread_index() % 8);
  }
  DEVICE unsigned long long number_byte(Index column, Index term) const {
    return ((unsigned long long)column * this->terms + term) * Packed::BITS / 8;
  }
  // Copies the word in which something lies; it is OFFSET bytes behind the word's beginning.
  static DEVICE void copy_word(SharedAddress to, const void* bytes, unsigned long long at, bool there) {
    copy_async<4>(to, (const char*)bytes + (at & ~3ull), there);
  }
  DEVICE void fetch(SharedAddress tile, int group, int turn) const {
    if constexpr (COPIED) {
      if (!inside(turn)) return;
      const Index column = this->row + turn * Base::AT_ONCE, term = this->term + group * TERMS;
      const bool there = column < this->rows && term < this->terms;
      const Index blocks = this->terms / Packed::BLOCK, block = term / Packed::BLOCK;
      const SharedAddress to = place(tile, turn);
      copy_async<NUMBER_BYTES>(to, packed.numbers + number_byte(column, term), there);
      const unsigned long long scale = ((unsigned long long)column * blocks + block) * sizeof(Factor);
      copy_word(to + SCALE, packed.scales, scale, there);
      if constexpr (Packed::ZEROS == Zeros::PACKED)
        copy_word(to + ZERO, packed.zeros, Packed::zero_byte(column, block, blocks), there);
      if constexpr (Packed::ZEROS == Zeros::REAL) copy_word(to + ZERO, packed.zeros, scale, there);
    }
  }
  // The bits of an element of the scales' type in a copied word.
  static DEVICE unsigned element_of(unsigned word, Index index) {
    return sizeof(Factor) < 4 ? word >> index % 2 * 16 & 0xffffu : word;
  }
  // The numbers, and the bits of the scale and of the zero point.
  DEVICE void take(unsigned (&number)[2], unsigned& scale, unsigned& zero, SharedAddress from, Index column,
                   Index term) const {
    const Index blocks = this->terms / Packed::BLOCK, block = term / Packed::BLOCK;
    if constexpr (COPIED) {
      unsigned word[4];
      load_shared(word, from);
      const Index index = column * blocks + block;  // its last bit counts
      number[0] = word[0];
      number[1] = word[1];
      scale = element_of(word[2], index);
      if constexpr (Packed::ZEROS == Zeros::PACKED) {
        const Index byte = column * ((blocks * Packed::BITS + 7) / 8) + block * Packed::BITS / 8;  // its last two bits
        zero = word[3] >> (byte % 4 * 8 + Packed::zero_shift(block)) & Packed::MASK;
      }
      if constexpr (Packed::ZEROS == Zeros::REAL) zero = element_of(word[3], index);
    } else {
      const unsigned char* bytes = packed.numbers + number_byte(column, term);
      UNROLLED for (int i = 0; i < NUMBER_BYTES; ++i) number[i / 4] |= (unsigned)load_bits(bytes + i) << i % 4 * 8;
      const unsigned long long index = (unsigned long long)column * blocks + block;
      scale = load_bits(packed.scales + index);
      if constexpr (Packed::ZEROS == Zeros::PACKED)
        zero = load_bits((const unsigned char*)packed.zeros + Packed::zero_byte(column, block, blocks)) >>
                   Packed::zero_shift(block) &
               Packed::MASK;
      if constexpr (Packed::ZEROS == Zeros::REAL) zero = load_bits((const Factor*)packed.zeros + index);
    }
  }
  DEVICE void compute(SharedAddress tile, Index step) const {
    UNROLLED for (int group = 0; group < WARPS_K; ++group) {
      const Index term = step * STAGE_TERMS + group * TERMS + thread_index() % 8 * WIDE;
      _Pragma("unroll 2") for (int turn = 0; turn < Base::TURNS; ++turn) {
        if (!inside(turn)) break;
        const Index column = this->row + turn * Base::AT_ONCE;
        const SharedAddress to = place(tile + group * PART_BYTES, turn);
        unsigned number[2] = {};
        unsigned scale = 0, zero = 0, word[4];
        if (column < this->rows && term < this->terms) take(number, scale, zero, to, column, term);
        elements_of(word, number, scale, zero);
        store_shared(to, word);
      }
    }
  }
};
