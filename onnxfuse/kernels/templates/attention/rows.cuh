// An attention's rows of a warp, as products of 16 by 8 leave them: scores become weights, results are rounded and stored.

constexpr int TERMS = SIZE / 16, COLUMNS = SIZE / 8, UNITS = SIZE / 8;
constexpr float LOG2_E = 1.4426950408889634f;
DEVICE float lowest() { return float_of_bits(0xff800000u); }  // minus infinity

DEVICE unsigned rounded(float low, float high, f16*) { return floats_to_f16x2(low, high); }
DEVICE unsigned rounded(float low, float high, bf16*) { return floats_to_bf16x2(low, high); }

// Scaled when they become weights, where nothing is added to them and the scale keeps their order.
constexpr bool SCALED_LATE = BIAS == NONE && SCALE > 0;

struct alignas(8) Pair { float at[2]; };

struct Rows {
  unsigned q[TILES][TERMS][4];
  float y[TILES][COLUMNS][4];
  float highest[TILES][2], sum[TILES][2];  // the sum of this lane's keys
};

DEVICE void clear(Rows& rows) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile) {
    UNROLLED for (int column = 0; column < COLUMNS; ++column)
      UNROLLED for (int i = 0; i < 4; ++i) rows.y[tile][column][i] = 0.0f;
    UNROLLED for (int half = 0; half < 2; ++half) {
      rows.highest[tile][half] = lowest();
      rows.sum[tile][half] = 0.0f;
    }
  }
}

template <int COUNT> struct Scores {
  float of[TILES][COUNT / 8][4];  // of COUNT keys
};

// Scores become weights; what there is of the keys before, unless these are the FIRST, shrinks where a greater one has come.
template <bool FIRST, int COUNT> DEVICE void weigh(Scores<COUNT>& scores, Rows& rows) {
  constexpr float UNIT = SCALED_LATE ? SCALE : 1.0f;
  UNROLLED for (int tile = 0; tile < TILES; ++tile)
    UNROLLED for (int half = 0; half < 2; ++half) {
      float highest = rows.highest[tile][half];
      UNROLLED for (int column = 0; column < COUNT / 8; ++column)
        UNROLLED for (int i = 0; i < 2; ++i) highest = greater(highest, scores.of[tile][column][half * 2 + i]);
      UNROLLED for (int distance = 1; distance <= 2; distance *= 2)
        highest = greater(highest, float_of_bits(exchange(bits_of_float(highest), distance)));
      const float base = highest == lowest() ? 0.0f : highest * UNIT;  // nothing seen: 2^(-inf - 0) is 0, not NaN
      float sum = 0.0f;
      if constexpr (!FIRST) {
        const float factor = exp2_fast(rows.highest[tile][half] * UNIT - base);
        sum = rows.sum[tile][half] * factor;
        UNROLLED for (int column = 0; column < COLUMNS; ++column)
          UNROLLED for (int i = 0; i < 2; ++i) rows.y[tile][column][half * 2 + i] *= factor;
      }
      UNROLLED for (int column = 0; column < COUNT / 8; ++column)
        UNROLLED for (int i = 0; i < 2; ++i) {
          float& score = scores.of[tile][column][half * 2 + i];
          score = exp2_fast(score * UNIT - base);
          sum += score;
        }
      rows.sum[tile][half] = sum;
      rows.highest[tile][half] = highest;
    }
}

// The weights of 16 keys, as a product takes them.
template <int COUNT>
DEVICE void round_weights(unsigned (&weight)[TILES][4], const Scores<COUNT>& weights, int group) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile)
    UNROLLED for (int part = 0; part < 4; ++part) {
      const float* from = &weights.of[tile][2 * group + part / 2][part % 2 * 2];
      weight[tile][part] = rounded(from[0], from[1], (E*)nullptr);
    }
}

// Weights of 16 keys times their values of 16 columns.
DEVICE void add_values(Rows& rows, const unsigned (&weight)[TILES][4], const unsigned (&value)[4], int k) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile) {
    product(rows.y[tile][2 * k], weight[tile], value[0], value[1], (E*)nullptr);
    product(rows.y[tile][2 * k + 1], weight[tile], value[2], value[3], (E*)nullptr);
  }
}

// This lane's part of a row of the result; if `zero`, zeros where its weights sum up to nothing.
DEVICE void finish_row(unsigned (&word)[COLUMNS], const Rows& rows, int tile, int half, bool zero) {
  float sum = rows.sum[tile][half];
  UNROLLED for (int distance = 1; distance <= 2; distance *= 2)
    sum += float_of_bits(exchange(bits_of_float(sum), distance));
  const float part = zero && sum == 0.0f ? 0.0f : reciprocal_fast(sum);
  UNROLLED for (int column = 0; column < COLUMNS; ++column) {
    const float* pair = &rows.y[tile][column][half * 2];
    word[column] = rounded(pair[0] * part, pair[1] * part, (E*)nullptr);
  }
}

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
