// How an attention's rows of a warp, as its products of 16 by 8 leave them, are rounded and stored.

constexpr int TERMS = SIZE / 16, COLUMNS = SIZE / 8, UNITS = SIZE / 8;
constexpr float LOG2_E = 1.4426950408889634f;
DEVICE float lowest() { return float_of_bits(0xff800000u); }  // minus infinity

DEVICE unsigned rounded(float low, float high, f16*) { return floats_to_f16x2(low, high); }
DEVICE unsigned rounded(float low, float high, bf16*) { return floats_to_bf16x2(low, high); }

// Scaled when they become weights, where nothing is added to them and the scale keeps their order.
constexpr bool SCALED_LATE = BIAS == NONE && SCALE > 0;

struct alignas(8) Pair { float at[2]; };

// Of four columns of 8 elements the lanes hold a word each; the lane gets all four words of the column of its number.
DEVICE Chunk<16> whole_column(const unsigned (&mine)[4]) {
  const bool odd = thread_index() & 1, upper = thread_index() & 2;
  unsigned own[2], far[2];  // of the two columns of this half: this lane's word, and that of the lane two further
  UNROLLED for (int i = 0; i < 2; ++i) {
    own[i] = upper ? mine[2 + i] : mine[i];
    far[i] = exchange(upper ? mine[i] : mine[2 + i], 2);
  }
  const unsigned near = exchange(odd ? own[0] : own[1], 1), other = exchange(odd ? far[0] : far[1], 1);
  const unsigned one = odd ? own[1] : own[0], two = odd ? far[1] : far[0];
  const unsigned here[2] = {odd ? near : one, odd ? one : near}, there[2] = {odd ? other : two, odd ? two : other};
  return {upper ? there[0] : here[0], upper ? there[1] : here[1], upper ? here[0] : there[0],
          upper ? here[1] : there[1]};
}

DEVICE void store_row(const unsigned (&word)[COLUMNS], E* to, bool inside) {
  const int lane = thread_index() % 4;
  if constexpr (ALIGNED && COLUMNS % 4 == 0) {
    UNROLLED for (int column = 0; column < COLUMNS; column += 4) {
      const unsigned four[4] = {word[column], word[column + 1], word[column + 2], word[column + 3]};
      const Chunk<16> whole = whole_column(four);
      if (inside) write((Chunk<16>*)(to + (column + lane) * 8), whole);
    }
  } else {
    UNROLLED for (int column = 0; column < COLUMNS; ++column)
      UNROLLED for (int i = 0; i < 2; ++i)
        if (inside) write(to + column * 8 + lane * 2 + i, E{(unsigned short)(word[column] >> i * 16)});
  }
}
