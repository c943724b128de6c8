// Numbers of 4 or 8 bits (packed.cuh) as pairs of 16-bit elements, less their zero point, in a few instructions each: exact,
// or with zero points that are REAL rounded to the elements' type.

constexpr int WORD_TERMS = 32 / RightFactor::BITS;  // of a word
constexpr int WORD_PAIRS = WORD_TERMS / 2;
static_assert(RightFactor::BITS == 4 || RightFactor::BITS == 8, "a word holds eight or four terms");

// A pair of elements less another one.
DEVICE unsigned minus_pair(unsigned a, unsigned b, f16*) { return minus_f16x2(a, b); }
DEVICE unsigned minus_pair(unsigned a, unsigned b, bf16*) { return minus_bf16x2(a, b); }

// 1024 as float16, and 128 as bfloat16: their last bits count by one, so that a number in place of them is added.
template <class> struct Base {
  static constexpr unsigned BITS = 0x6400;
};
template <> struct Base<bf16> {
  static constexpr unsigned BITS = 0x4300;
};
// A float whose last bits count by one, 2^23: eight bits are too many for those of bfloat16.
constexpr unsigned WIDE_BASE = 0x4b000000;
constexpr bool BY_FLOATS = RightFactor::BITS == 8 && Base<Factor>::BITS == 0x4300;

// What is subtracted from the numbers of a block: the base and the zero point.
struct Zero {
  unsigned base;  // of a pair; BY_FLOATS of one number
  unsigned more;  // a pair, REAL

  DEVICE Zero() : base(with((unsigned)RightFactor::MIDDLE)), more(0) {}
  static DEVICE unsigned with(unsigned zero) {
    return BY_FLOATS ? WIDE_BASE + zero : (Base<Factor>::BITS + zero) * 0x10001u;
  }
  DEVICE unsigned less(unsigned pair) const {
    const unsigned number = minus_pair(pair, base, (Factor*)nullptr);
    return RightFactor::ZEROS == Zeros::REAL ? minus_pair(number, more, (Factor*)nullptr) : number;
  }
  // Of two numbers in the lowest bytes of words.
  DEVICE unsigned less(unsigned low, unsigned high) const {
    const float zero = float_of_bits(base);
    const unsigned pair =
        floats_to_bf16x2(float_of_bits(WIDE_BASE | low) - zero, float_of_bits(WIDE_BASE | high) - zero);
    return RightFactor::ZEROS == Zeros::REAL ? minus_pair(pair, more, (Factor*)nullptr) : pair;
  }
};

// The pairs of a word, in the order in which they are had: of eight numbers 0 and 4, 1 and 5, 2 and 6, 3 and 7; of four
// 0 and 1, 2 and 3.
DEVICE void pairs_of(unsigned (&pair)[WORD_PAIRS], unsigned word, const Zero& zero) {
  if constexpr (RightFactor::BITS == 4) {
    constexpr unsigned BASE = Base<Factor>::BITS * 0x10001u;
    UNROLLED for (int i = 0; i < 4; ++i) pair[i] = zero.less((word >> 4 * i & 0x000f000fu) | BASE);
  } else if constexpr (BY_FLOATS) {
    UNROLLED for (int i = 0; i < 2; ++i) pair[i] = zero.less(word >> 16 * i & 0xffu, word >> (16 * i + 8) & 0xffu);
  } else {
    constexpr unsigned HIGH = Base<Factor>::BITS >> 8;
    pair[0] = zero.less(select_bytes(word, HIGH, 0x4140));
    pair[1] = zero.less(select_bytes(word, HIGH, 0x4342));
  }
}
