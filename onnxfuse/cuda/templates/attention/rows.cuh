// An attention's rows of a warp, as products of 16 by 8 leave them: scores become weights, results are rounded and stored.
//
// A product takes 32 bytes of terms: 16 of a 16-bit type, 8 of float32, which are rounded to TF32 on the way. Of float32
// a lane holds the weights of keys 2 t and 2 t + 1 of eight, which the product calls t and t + 4: a sum over keys may take
// them in any order, so values are read in that one. Likewise each lane reads AT_ONCE neighbouring columns of a value,
// the product's column of its number in as many products, and so gets twice as many neighbours of the result.

constexpr int PER_WORD = 4 / (int)sizeof(E), PER_UNIT = 16 / (int)sizeof(E);  // elements
constexpr int TERMS = (SIZE * (int)sizeof(E) + 31) / 32, COLUMNS = SIZE / 8;
constexpr int PADDED = TERMS * 32 / (int)sizeof(E);  // of a row in shared memory: behind SIZE elements zeros
constexpr int UNITS = PADDED / PER_UNIT, GIVEN_UNITS = SIZE / PER_UNIT;
constexpr int AT_ONCE = SIZE % 32 ? 2 : 4;
constexpr float LOG2_E = 1.4426950408889634f;
DEVICE float lowest() { return float_of_bits(0xff800000u); }  // minus infinity

DEVICE unsigned rounded(float low, float high, f16*) { return floats_to_f16x2(low, high); }
DEVICE unsigned rounded(float low, float high, bf16*) { return floats_to_bf16x2(low, high); }

// Scaled when they become weights, where nothing else is done to them and the scale keeps their order.
constexpr bool SCALED_LATE = !QUANTIZED && !CAPPED && BIAS == NONE && SCALE > 0;

template <class T> struct Range { static constexpr bool WIDE = true; };
template <> struct Range<f16> { static constexpr bool WIDE = false; };

// What is added may be the lowest number of its type. Of a wide one log2(e) times that is no number any more, so there
// scores are differences from the highest one before they are powers of two; of float16 the powers are taken at once.
// Scores that a scalar program has computed of sums of integers (QUANTIZED) are plain ones, too, or POWERS of two.
constexpr bool PLAIN = QUANTIZED ? !POWERS : BIAS != NONE && Range<E>::WIDE;
constexpr float ADDED_UNIT = PLAIN || QUANTIZED ? 1.0f : LOG2_E, SCORE_UNIT = PLAIN ? PLAIN_SCALE : SCALE;
DEVICE float power(float score, float base) {
  if constexpr (PLAIN) return exp2_fast((score - base) * LOG2_E);
  return exp2_fast(score * (SCALED_LATE ? SCALE : 1.0f) - base);
}

struct alignas(8) Pair { float at[2]; };

struct Rows {
  unsigned q[TILES][HELD ? TERMS : 1][4];
  float y[TILES][COLUMNS][4];
  float highest[TILES][2], sum[TILES][2];  // the sum of this lane's keys
};

DEVICE void clear(Rows& rows) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile) {
    UNROLLED for (int column = 0; column < COLUMNS; ++column) UNROLLED for (int i = 0; i < 4; ++i)
        rows.y[tile][column][i] = 0.0f;
    UNROLLED for (int half = 0; half < 2; ++half) {
      rows.highest[tile][half] = lowest();
      rows.sum[tile][half] = 0.0f;
    }
  }
}

template <int COUNT> struct Scores {
  float of[TILES][COUNT / 8][4];  // of COUNT keys
};

// By what there is of the keys before shrinks where a greater score has come.
struct Shrinking { float by[TILES][2]; };

// Scores become weights; of the keys before, unless these are the FIRST, all but their part of y shrinks.
template <bool FIRST, int COUNT> DEVICE Shrinking weigh_ahead(Scores<COUNT>& scores, Rows& rows) {
  constexpr float UNIT = SCALED_LATE ? SCALE : 1.0f;  // of the base
  Shrinking shrinking;
  UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int half = 0; half < 2; ++half) {
    float highest = rows.highest[tile][half];
    UNROLLED for (int column = 0; column < COUNT / 8; ++column) UNROLLED for (int i = 0; i < 2; ++i) highest =
        greater(highest, scores.of[tile][column][half * 2 + i]);
    UNROLLED for (int distance = 1; distance <= 2; distance *= 2) highest =
        greater(highest, float_of_bits(exchange(bits_of_float(highest), distance)));
    const float base = highest == lowest() ? 0.0f : highest * UNIT;  // nothing seen: 2^(-inf - 0) is 0, not NaN
    float sum = 0.0f;
    if constexpr (!FIRST) {
      shrinking.by[tile][half] = power(rows.highest[tile][half], base);
      sum = rows.sum[tile][half] * shrinking.by[tile][half];
    }
    UNROLLED for (int column = 0; column < COUNT / 8; ++column) UNROLLED for (int i = 0; i < 2; ++i) {
      float& score = scores.of[tile][column][half * 2 + i];
      score = power(score, base);
      sum += score;
    }
    rows.sum[tile][half] = sum;
    rows.highest[tile][half] = highest;
  }
  return shrinking;
}

DEVICE void shrink(Rows& rows, const Shrinking& shrinking) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int column = 0; column < COLUMNS; ++column)
      UNROLLED for (int i = 0; i < 4; ++i) rows.y[tile][column][i] *= shrinking.by[tile][i / 2];
}

// Scores of keys whose greatest score is known, with those of all others, become weights.
template <int COUNT> DEVICE void weigh_known(Scores<COUNT>& scores, const Rows& rows) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int half = 0; half < 2; ++half) {
    const float highest = rows.highest[tile][half], base = highest == lowest() ? 0.0f : highest;
    UNROLLED for (int column = 0; column < COUNT / 8; ++column) UNROLLED for (int i = 0; i < 2; ++i) {
      float& score = scores.of[tile][column][half * 2 + i];
      score = power(score, base);
    }
  }
}

// Scores become weights; what there is of the keys before, unless these are the FIRST, shrinks where a greater one has come.
template <bool FIRST, int COUNT> DEVICE void weigh(Scores<COUNT>& scores, Rows& rows) {
  const Shrinking shrinking = weigh_ahead<FIRST>(scores, rows);
  if constexpr (!FIRST) shrink(rows, shrinking);
}

// The weights of 16 keys of a 16-bit type, as a product takes them.
template <int COUNT, class T>
DEVICE void round_weights(unsigned (&weight)[TILES][4], const Scores<COUNT>& weights, int group, T*) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int part = 0; part < 4; ++part) {
    const float* from = &weights.of[tile][2 * group + part / 2][part % 2 * 2];
    weight[tile][part] = rounded(from[0], from[1], (T*)nullptr);
  }
}

// By what a row of the result is multiplied; if `zero`, zeros where its weights sum up to nothing.
DEVICE float share_of(const Rows& rows, int tile, int half, bool zero) {
  float sum = rows.sum[tile][half];
  UNROLLED for (int distance = 1; distance <= 2; distance *= 2) sum +=
      float_of_bits(exchange(bits_of_float(sum), distance));
  return zero && sum == 0.0f ? 0.0f : reciprocal_fast(sum);
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

// This lane's part of a row.
template <class T> DEVICE void store_row(const Rows& rows, int tile, int half, float share, T* to, bool inside) {
  const int lane = thread_index() % 4;
  unsigned word[COLUMNS];
  UNROLLED for (int column = 0; column < COLUMNS; ++column) {
    const float* pair = &rows.y[tile][column][half * 2];
    word[column] = rounded(pair[0] * share, pair[1] * share, (T*)nullptr);
  }
  constexpr int BY_FOURS = ALIGNED ? COLUMNS / 4 * 4 : 0;
  UNROLLED for (int column = 0; column < BY_FOURS; column += 4) {
    const unsigned four[4] = {word[column], word[column + 1], word[column + 2], word[column + 3]};
    const Chunk<16> whole = whole_column(four);
    if (inside) write((Chunk<16>*)(to + (column + lane) * 8), whole);
  }
  UNROLLED for (int column = BY_FOURS; column < COLUMNS; ++column) {
    T* at = to + column * 8 + lane * 2;
    if (ALIGNED && inside) write((unsigned*)at, word[column]);
    if (!ALIGNED && inside)
      UNROLLED for (int i = 0; i < 2; ++i) write(at + i, T{(unsigned short)(word[column] >> i * 16)});
  }
}
DEVICE void store_row(const Rows& rows, int tile, int half, float share, float* to, bool inside) {
  constexpr int WIDE = 2 * AT_ONCE;
  UNROLLED for (int column = 0; column < COLUMNS; column += AT_ONCE) {
    float mine[WIDE];
    UNROLLED for (int i = 0; i < WIDE; ++i) mine[i] =
        rows.y[tile][column + i % AT_ONCE][half * 2 + i / AT_ONCE] * share;
    float* at = to + column * 8 + (int)thread_index() % 4 * WIDE;
    if (ALIGNED && inside) store_values<WIDE>(at, mine);
    if (!ALIGNED && inside) UNROLLED for (int i = 0; i < WIDE; ++i) write(at + i, mine[i]);
  }
}
