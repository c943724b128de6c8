// Matrix products of a warp by mma.sync (sm_80 and later), one face over the types of factors and sums:
// d[16, 8] += a[16, TERMS] b[TERMS, 8], with 32 bytes of terms. How the lanes hold fragments: PTX, mma.m16n8k16.
//
// Element            TERMS  products                       sums
// f16, bf16          16     exact                          float
// float              8      of factors rounded to TF32     float
// float, SPLIT       8      within 2^-22 (split.cuh)       float, rounded after every 8 terms
// Bytes<A, B>        32     exact (integers.cuh)           int32, whose bits the registers of d hold
// e4m3               32     exact (float8.cuh)             float; sm_89, sm_120: within 32 terms of fewer bits

template <class Element, bool SPLIT = false> struct MmaSync {
  static constexpr int TERMS = 32 / int(sizeof(Element));
  static_assert(!SPLIT || sizeof(Element) == 4, "only float32 is split");

  // A word of a factor as the instruction reads it, from how it lies in memory. Split ones stay whole until they are
  // multiplied.
  static DEVICE unsigned operand(unsigned word) {
    if constexpr (sizeof(Element) == 4 && !SPLIT) return round_to_tf32(word);
    else return word;
  }
  template <int WORDS> static DEVICE void convert(unsigned (&fragment)[WORDS]) {
    UNROLLED for (int i = 0; i < WORDS; ++i) fragment[i] = operand(fragment[i]);
  }
  // Of split factors: of one part of each.
  static DEVICE void multiply(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    mma(d, a, b0, b1, (Element*)nullptr);
  }
};

// Factors of float32 as sums of two TF32 numbers: left fragments, ROWS below each other, or words of a right one.
template <int ROWS, int WORDS = 4> struct SplitFragments {
  unsigned high[ROWS][WORDS], low[ROWS][WORDS];

  DEVICE explicit SplitFragments(const unsigned (&whole)[ROWS][WORDS]) {
    UNROLLED for (int i = 0; i < ROWS; ++i) split(high[i], low[i], whole[i]);
  }
  DEVICE explicit SplitFragments(const unsigned (&whole)[WORDS]) { split(high[0], low[0], whole); }

  // d(i) += a[i] b for each row of fragments, with two words of b from `word` on: three products, the small parts first, of
  // AT_ONCE rows next to each other.
  template <int AT_ONCE = ROWS, class Sums, int B_WORDS>
  DEVICE void multiply(const Sums& d, const SplitFragments<1, B_WORDS>& b, int word) const {
    const unsigned (&b_high)[B_WORDS] = b.high[0], (&b_low)[B_WORDS] = b.low[0];
    UNROLLED for (int first = 0; first < ROWS; first += AT_ONCE) {
      float sums[AT_ONCE][4] = {};
      UNROLLED for (int i = 0; i < AT_ONCE; ++i)
          mma(sums[i], low[first + i], b_high[word], b_high[word + 1], (float*)nullptr);
      UNROLLED for (int i = 0; i < AT_ONCE; ++i)
          mma(sums[i], high[first + i], b_low[word], b_low[word + 1], (float*)nullptr);
      UNROLLED for (int i = 0; i < AT_ONCE; ++i)
          mma(sums[i], high[first + i], b_high[word], b_high[word + 1], (float*)nullptr);
      UNROLLED for (int i = 0; i < AT_ONCE; ++i) UNROLLED for (int cell = 0; cell < 4; ++cell) d(first + i)[cell] +=
          sums[i][cell];
    }
  }
};
