// The products of sm80.cu where float32 keeps its digits (see include/split.cuh). A block that finds a sum that is not finite
// adds up all of its own again, term by term in float32.

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
  bool finite = true;
  UNROLLED for (int g = 0; g < G; ++g)
    UNROLLED for (int i = 0; i < DOWN; ++i)
      UNROLLED for (int j = 0; j < RIGHT * 2; ++j) finite &= are_finite(sums[g][i][j]);
  return finite;
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
