// Numbers of 4 or 8 bits (packed.cuh) as pairs of 16-bit elements, less their zero point, in a few instructions each: exact,
// or with zero points that are REAL rounded to the elements' type.

constexpr int WORD_TERMS = 32 / RightFactor::BITS;  // of a word
constexpr int WORD_PAIRS = WORD_TERMS / 2;
static_assert(RightFactor::BITS == 4 || RightFactor::BITS == 8, "a word holds eight or four terms");

// A pair of elements less another one.
DEVICE unsigned minus_pair(unsigned a, unsigned b, f16*) { return minus_f16x2(a, b); }
DEVICE unsigned minus_pair(unsigned a, unsigned b, bf16*) { return minus_bf16x2(a, b); }

// 1024 as float16, and 128 as bfloat16: their last bits count by one, so that a number in place of them is added. Eight bits
// are too many for those of bfloat16.
template <class> struct Base {
  static constexpr unsigned BITS = 0x6400;
  static constexpr float VALUE = 1024.0f;
};
template <> struct Base<bf16> {
  static constexpr unsigned BITS = RightFactor::BITS == 8 ? 0 : 0x4300;
  static constexpr float VALUE = RightFactor::BITS == 8 ? 0.0f : 128.0f;
};
constexpr unsigned BASE = Base<Factor>::BITS;

// The pairs of a word, BASE added to each number, in the order in which they are had: of eight numbers 0 and 4, 1 and 5, 2
// and 6, 3 and 7; of four 0 and 1, 2 and 3.
DEVICE void raw_pairs(unsigned (&pair)[WORD_PAIRS], unsigned word) {
  if constexpr (RightFactor::BITS == 4) {
    UNROLLED for (int i = 0; i < 4; ++i) pair[i] = masked_onto(word >> 4 * i, 0x000f000fu, BASE * 0x10001u);
  } else if constexpr (BASE == 0) {
    constexpr unsigned WIDE = 0x4b000000;  // 2^23, whose last bits count by one
    float number[4];
    UNROLLED for (int i = 0; i < 4; ++i) number[i] =
        float_of_bits(WIDE | (word >> 8 * i & 0xffu)) - float_of_bits(WIDE);
    UNROLLED for (int i = 0; i < 2; ++i) pair[i] = floats_to_bf16x2(number[i * 2], number[i * 2 + 1]);
  } else {
    pair[0] = select_bytes(word, BASE >> 8, 0x4140);
    pair[1] = select_bytes(word, BASE >> 8, 0x4342);
  }
}

// What is subtracted from the numbers of a block: the base and the zero point.
struct Zero {
  unsigned base, more;  // pairs; `more` of zero points that are REAL

  DEVICE Zero() : base(with((unsigned)RightFactor::MIDDLE)), more(0) {}
  static DEVICE unsigned with(unsigned zero) {
    return BASE == 0 ? floats_to_bf16x2((float)zero, (float)zero) : (BASE + zero) * 0x10001u;
  }
  DEVICE unsigned less(unsigned pair) const {
    const unsigned number = minus_pair(pair, base, (Factor*)nullptr);
    return RightFactor::ZEROS == Zeros::REAL ? minus_pair(number, more, (Factor*)nullptr) : number;
  }
};

DEVICE void pairs_of(unsigned (&pair)[WORD_PAIRS], unsigned word, const Zero& zero) {
  raw_pairs(pair, word);
  UNROLLED for (int i = 0; i < WORD_PAIRS; ++i) pair[i] = zero.less(pair[i]);
}

DEVICE unsigned product_of_pairs(unsigned a, unsigned b, f16*) { return product_f16x2(a, b); }
DEVICE unsigned product_of_pairs(unsigned a, unsigned b, bf16*) { return product_bf16x2(a, b); }

// Eight elements in the order of their numbers, from these and the bits of their scale and zero point: a number if it is
// packed.
DEVICE void elements_of(unsigned (&word)[4], const unsigned* number, unsigned scale, unsigned zero) {
  Zero less;
  if constexpr (RightFactor::ZEROS == Zeros::PACKED) less.base = Zero::with(zero);
  if constexpr (RightFactor::ZEROS == Zeros::REAL) {
    less.base = Zero::with(0);
    less.more = zero * 0x10001u;
  }
  unsigned pair[4];
  if constexpr (RightFactor::BITS == 4) {
    unsigned apart[WORD_PAIRS];
    pairs_of(apart, number[0], less);
    UNROLLED for (int i = 0; i < 4; ++i) pair[i] =
        select_bytes(apart[i % 2 * 2], apart[i % 2 * 2 + 1], i < 2 ? 0x5410 : 0x7632);
  } else {
    UNROLLED for (int i = 0; i < 2; ++i) {
      unsigned next[WORD_PAIRS];
      pairs_of(next, number[i], less);
      UNROLLED for (int p = 0; p < 2; ++p) pair[i * 2 + p] = next[p];
    }
  }
  UNROLLED for (int i = 0; i < 4; ++i) word[i] = product_of_pairs(pair[i], scale * 0x10001u, (Factor*)nullptr);
}
