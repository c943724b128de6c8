// Products of sm80.cu where float32 keeps its digits (PRECISE): each factor is the sum of two TF32 numbers, x = high + low,
// and a b = low high + high low + high high. What is left out, low low, is 2^-22 of a product at most.
//
// high is x rounded to its 11 leading bits, and low, the exact rest, has 12 or fewer, of which the tensor cores read 11: one
// x of four loses its last bit, with either sign. Of what is smaller than 2^-113 bits are missing below 2^-136, where TF32
// ends.
//
// The tensor cores cut off what they add, where float32 rounds it, so that long sums lean towards zero. They add eight terms
// here, the small parts first, and those sums are added up in float32.
//
// An infinity has no high part and a rest (that is NaN), and the greatest numbers round up to one. A block that finds a sum
// that is not finite adds up all of its own again, term by term in float32.

DEVICE void split(unsigned& high, unsigned& low, unsigned whole) {
  high = (whole + 0x1000u) & ~0x1fffu;  // what round_to_tf32 gives of finite numbers, by two instructions for four
  low = bits_of_float(minus(float_of_bits(whole), float_of_bits(high)));
}

DEVICE void split(unsigned (&high)[4], unsigned (&low)[4], const unsigned (&whole)[4]) {
  UNROLLED for (int i = 0; i < 4; ++i) split(high[i], low[i], whole[i]);
}

template <int G> DEVICE void multiply_precise(float (&sums)[G][DOWN][RIGHT * 2][4], const unsigned (&a)[DOWN][4],
                                            const unsigned (&b)[G][RIGHT][4]) {
  unsigned a_high[DOWN][4], a_low[DOWN][4];
  UNROLLED for (int i = 0; i < DOWN; ++i) split(a_high[i], a_low[i], a[i]);
  UNROLLED for (int g = 0; g < G; ++g)
    UNROLLED for (int j = 0; j < RIGHT; ++j) {
      unsigned high[4], low[4];
      split(high, low, b[g][j]);
      UNROLLED for (int next = 0; next < 4; next += 2) {
        float few[DOWN][4] = {};
        UNROLLED for (int i = 0; i < DOWN; ++i) product(few[i], a_low[i], high[next], high[next + 1], (float*)nullptr);
        UNROLLED for (int i = 0; i < DOWN; ++i) product(few[i], a_high[i], low[next], low[next + 1], (float*)nullptr);
        UNROLLED for (int i = 0; i < DOWN; ++i) product(few[i], a_high[i], high[next], high[next + 1], (float*)nullptr);
        UNROLLED for (int i = 0; i < DOWN; ++i)
          UNROLLED for (int cell = 0; cell < 4; ++cell) sums[g][i][j * 2 + next / 2][cell] += few[i][cell];
      }
    }
}

template <int G> DEVICE bool is_finite(const float (&sums)[G][DOWN][RIGHT * 2][4]) {
  float zero = 0.0f;  // NaN times nothing, or an infinity, is NaN
  UNROLLED for (int g = 0; g < G; ++g)
    UNROLLED for (int i = 0; i < DOWN; ++i)
      UNROLLED for (int j = 0; j < RIGHT * 2; ++j)
        UNROLLED for (int cell = 0; cell < 4; ++cell) zero += sums[g][i][j][cell] * 0.0f;
  return zero == 0.0f;
}

// The terms of a stage, one after the other, to the sums of this thread: of the rows and columns that fragments give it.
template <int G> DEVICE void multiply_plainly(float (&sums)[G][DOWN][RIGHT * 2][4], SharedAddress a, int row, int column) {
  const int lane = thread_index() % 32;
  _Pragma("unroll 1") for (int term = 0; term < TERMS; ++term) {
    float left[DOWN * 2];
    UNROLLED for (int i = 0; i < DOWN * 2; ++i) left[i] = Left::element(a, row + i * 8 + lane / 4, term);
    UNROLLED for (int g = 0; g < G; ++g)
      UNROLLED for (int j = 0; j < RIGHT * 4; ++j) {
        const int across = column + j / 2 * 8 + lane % 4 * 2 + j % 2;
        const float right = Right::element(a + A_BYTES + g * B_BYTES, across, term);
        UNROLLED for (int i = 0; i < DOWN * 2; ++i) sums[g][i / 2][j / 2][i % 2 * 2 + j % 2] += left[i] * right;
      }
  }
}
