// y = softmax(q k^T * scale + bias) v, head by head
//
// q [batch, HEADS, QUERIES, SIZE], k and v [batch, HEADS / GROUP, KEYS, SIZE], y as q, each with strides of its own along
// all but the last axis, K_GROUP and V_GROUP heads of queries reading one of keys and values; bias broadcast to [batch, HEADS, QUERIES, KEYS], or to [WINDOWS, HEADS, QUERIES, KEYS], again and
// again along the batch. 16-bit types; of a head all keys and values fit
// into shared memory. Accuracy: products exact, sums and exponentials in float; weights are rounded to the element
// type before they meet the values, and divided by their sum, which is of the unrounded ones, at the end. Where the
// bias is minus infinity for all keys of a query, y is NaN, as 0 / 0, or 0 if SAFE.
//
// A block takes PASSES * WARPS * TILES * 16 queries of a head. It fetches the keys and values step by step, and
// computes while later steps are still under way. A warp holds TILES * 16 queries and their part of y in registers; it
// goes over the keys STEP at a time, and scales what it has whenever a greater score comes.
//
// A sum over SIZE terms may take them in any order: lane t of the four that share a row holds its t-th quarter, so that
// queries and keys are read 16 bytes at a time. As mma.m16n8k16 numbers them, its terms would lie in pairs.

struct Parameters {
  unsigned none;  // all sizes are constants
};

constexpr int PITCH = SIZE + 8;  // elements of a row in shared memory: eight rows begin in different banks
constexpr int KEY_ROWS = (KEYS + 15) / 16 * 16, STEPS = (KEY_ROWS + STEP - 1) / STEP;

struct Kept {
  E *keys, *values;
  float* bias;  // per key, in the scores' unit; minus infinity behind the last one
};

struct Place {
  unsigned batch, head;
  int first_query;  // of the block
};

DEVICE Place place() {
  const unsigned part = block_from_end() % BLOCKS, rest = block_from_end() / BLOCKS;
  return {rest / HEADS, rest % HEADS, (int)part * (PASSES * WARPS * TILES * 16)};
}

// ---- keys and values

DEVICE void fetch_unit(E* to, const E* from) {
  if constexpr (ALIGNED) copy_ahead<16>(to, from, true);
  else UNROLLED for (int i = 0; i < 8; ++i) to[i].bits = load_bits(from + i);
}

// Rows `first` to `first + count`; those behind the last one are zeros.
template <int FIRST, int COUNT> DEVICE void fetch_rows(E* to, const E* from, int stride) {
  for (int i = thread_index(); i < COUNT * UNITS; i += THREADS) {
    const int row = FIRST + i / UNITS, column = i % UNITS * 8;
    E* there = to + row * PITCH + column;
    if (row < KEYS) fetch_unit(there, from + row * stride + column);
    else UNROLLED for (int e = 0; e < 8; ++e) there[e].bits = 0;
  }
}

template <int NUMBER> struct Step {
  static constexpr int FIRST = NUMBER * STEP, COUNT = KEY_ROWS - FIRST < STEP ? KEY_ROWS - FIRST : STEP;
};

template <int NUMBER> DEVICE void fetch_from(const Kept& shared, const E* k, const E* v) {
  if constexpr (NUMBER < STEPS) {
    using S = Step<NUMBER>;
    fetch_rows<S::FIRST, S::COUNT>(shared.keys, k, K_ROW);
    fetch_rows<S::FIRST, S::COUNT>(shared.values, v, V_ROW);
    close_group_of_copies();
    fetch_from<NUMBER + 1>(shared, k, v);
  }
}

DEVICE void fetch_bias(const Kept& shared, const E* bias) {
  for (int key = thread_index(); key < KEY_ROWS; key += THREADS)
    shared.bias[key] = key < KEYS ? load<1>(bias + key * BIAS_KEY).get(0) * ADDED_UNIT : lowest();
}

// ---- the queries of a warp

// What a lane holds of a row for PIECE products.
constexpr int PIECE = TERMS % 2 ? 1 : 2;
using Piece = Pack<E, 4 * PIECE>;

DEVICE Piece load_piece(const E* from) {
  if constexpr (ALIGNED) return load<4 * PIECE>(from);
  Piece piece = {};
  UNROLLED for (int i = 0; i < 4 * PIECE; ++i) piece.set_bits(i, load_bits(from + i));
  return piece;
}

// Of a row behind the last one, the last one again.
DEVICE void load_queries(Rows& rows, const E* q, int first) {
  const int lane = thread_index() % 32;
  UNROLLED for (int tile = 0; tile < TILES; ++tile)
    UNROLLED for (int half = 0; half < 2; ++half) {
      const int wanted = first + tile * 16 + lane / 4 + half * 8, row = wanted < QUERIES ? wanted : QUERIES - 1;
      UNROLLED for (int k = 0; k < TERMS; k += PIECE) {
        const Piece piece = load_piece(q + row * Q_ROW + lane % 4 * (SIZE / 4) + k * 4);
        UNROLLED for (int i = 0; i < PIECE; ++i)
          UNROLLED for (int right = 0; right < 2; ++right) rows.q[tile][k + i][right * 2 + half] = piece.word(i * 2 + right);
      }
    }
  clear(rows);
}

template <class S> DEVICE void multiply_keys(Scores<S::COUNT>& scores, const Rows& rows, const Kept& shared) {
  const int lane = thread_index() % 32;
  const E* row = shared.keys + (S::FIRST + lane / 4) * PITCH + lane % 4 * (SIZE / 4);
  UNROLLED for (int column = 0; column < S::COUNT / 8; ++column)
    UNROLLED for (int k = 0; k < TERMS; k += PIECE) {
      const auto key = *(const Chunk<Piece::BYTES>*)(row + column * 8 * PITCH + k * 4);
      UNROLLED for (int i = 0; i < PIECE; ++i)
        UNROLLED for (int tile = 0; tile < TILES; ++tile)
          product(scores.of[tile][column], rows.q[tile][k + i], key.word[i * 2], key.word[i * 2 + 1], (E*)nullptr);
    }
}

// Times log2(e) where they are not PLAIN, so that 2^x takes the place of e^x.
template <class S>
DEVICE void scale_scores(Scores<S::COUNT>& scores, const Kept& shared, const E* bias, int first) {
  const int lane = thread_index() % 32;
  UNROLLED for (int column = 0; column < S::COUNT / 8; ++column) {
    const int keys = S::FIRST + column * 8 + lane % 4 * 2;
    Pair added = {};
    if constexpr (BIAS == PER_KEY) added = *(const Pair*)(shared.bias + keys);
    UNROLLED for (int tile = 0; tile < TILES; ++tile)
      UNROLLED for (int i = 0; i < 4; ++i) {
        const int key = keys + i % 2, query = first + tile * 16 + lane / 4 + i / 2 * 8;
        float& score = scores.of[tile][column][i];
        if (!SCALED_LATE) score *= SCORE_UNIT;
        if constexpr (BIAS == PER_KEY) score += added.at[i % 2];
        if constexpr (BIAS == PER_PAIR)
          if (key < KEYS && query < QUERIES)
            score += load<1>(bias + query * BIAS_QUERY + key * BIAS_KEY).get(0) * ADDED_UNIT;
        if (S::FIRST + column * 8 + 8 > KEYS && BIAS != PER_KEY) score = key < KEYS ? score : lowest();
        if (CAUSAL) score = key <= query ? score : lowest();
      }
  }
}

template <class S> DEVICE void multiply_values(Rows& rows, const Scores<S::COUNT>& weights, const Kept& shared) {
  const int lane = thread_index() % 32;
  const E* row = shared.values + (S::FIRST + lane / 8 % 2 * 8 + lane % 8) * PITCH + lane / 16 * 8;
  UNROLLED for (int pair = 0; pair < S::COUNT / 16; ++pair) {
    unsigned weight[TILES][4];
    round_weights(weight, weights, pair, (E*)nullptr);
    UNROLLED for (int k = 0; k < TERMS; ++k) {
      unsigned value[4];
      load_matrices_transposed(value, row + pair * 16 * PITCH + k * 16);
      add_values(rows, weight, value, k);
    }
  }
}

template <int NUMBER> DEVICE void attend_from(Rows& rows, const Kept& shared, const E* bias, int first, bool waits) {
  if constexpr (NUMBER < STEPS) {
    using S = Step<NUMBER>;
    if (waits) {
      wait_for_copies<STEPS - 1 - NUMBER>();
      wait_for_block();
    }
    if (first < QUERIES && (!CAUSAL || S::FIRST < first + TILES * 16)) {
      Scores<S::COUNT> scores = {};
      multiply_keys<S>(scores, rows, shared);
      scale_scores<S>(scores, shared, bias, first);
      weigh<S::FIRST == 0>(scores, rows);
      multiply_values<S>(rows, scores, shared);
    }
    attend_from<NUMBER + 1>(rows, shared, bias, first, waits);
  }
}

DEVICE void store_rows(const Rows& rows, E* y, int first) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile)
    UNROLLED for (int half = 0; half < 2; ++half) {
      const int row = first + tile * 16 + (int)thread_index() % 32 / 4 + half * 8;
      store_row(rows, tile, half, share_of(rows, tile, half, SAFE), y + row * Y_ROW, row < QUERIES);
    }
}

DEVICE void attend(const Pointers& pointers, const Parameters&) {
  DYNAMIC_SHARED(unsigned, shared_words, KEY_ROWS * (PITCH + 1));
  E* keys = (E*)shared_words;
  const Kept shared = {keys, keys + KEY_ROWS * PITCH, (float*)(keys + 2 * KEY_ROWS * PITCH)};
  const Place at = place();
  const unsigned with_bias = WINDOWS ? at.batch % (WINDOWS ? WINDOWS : 1) : at.batch;
  const E* bias = BIAS == NONE ? nullptr : pointers.bias + (with_bias * BIAS_BATCH + at.head * BIAS_HEAD);
  fetch_from<0>(shared, pointers.k + (at.batch * K_BATCH + at.head / K_GROUP * K_HEAD),
                pointers.v + (at.batch * V_BATCH + at.head / V_GROUP * V_HEAD));
  if constexpr (BIAS == PER_KEY) fetch_bias(shared, bias);
  for (int pass = 0; pass < PASSES; ++pass) {
    const int first = at.first_query + (pass * WARPS + (int)thread_index() / 32) * (TILES * 16);
    Rows rows;
    load_queries(rows, pointers.q + (at.batch * Q_BATCH + at.head * Q_HEAD), first);
    attend_from<0>(rows, shared, bias, first, pass == 0);
    store_rows(rows, pointers.y + (at.batch * Y_BATCH + at.head * Y_HEAD), first);
  }
}
