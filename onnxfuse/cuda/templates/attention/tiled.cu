// y = softmax(q k^T * scale + bias) v, head by head: a tile of queries goes over tiles of keys and values with an online
// softmax (Dao, FlashAttention-2, 2023)
//
// q [batch, HEADS, queries, SIZE], k and v [batch, HEADS / GROUP, keys, SIZE], y as q, each with strides of its own along
// all but the last axis, K_GROUP and V_GROUP heads of queries reading one of keys and values; bias, or two of them (ALSO),
// broadcast to [batch, HEADS, queries, keys], or one to [windows, HEADS, queries, keys], again and again along the batch.
// 16-bit types and float32. Accuracy: products exact, those of float32 of factors rounded to TF32, sums and exponentials in
// float; weights are rounded to the element type, or TF32, before they meet the values, and divided by their sum, which is
// of the unrounded ones, at the end. Where the bias is minus infinity for all keys of a query, y is NaN, as 0 / 0, or 0 if
// SAFE; without a key it is 0.
//
// EXTREMES: of y the smallest and the largest element are left, a part for each warp.
//
// A block takes PASSES times WARPS * TILES * 16 queries of a head; a warp holds TILES * 16 of them and their part of y in
// registers; unless HELD, the queries stay in shared memory. A warp scales what it has whenever a greater score comes.
// Under the causal mask comparisons with the diagonal are for the steps that it crosses alone. Two modes:
//
// Streamed (KEY_ROWS is 0): any number of queries and keys, none of which stands in the text: one kernel is for all of them.
// Keys and values go by STEP at a time, through a pipeline of two stages: while one is multiplied, the other is filled.
// Under the causal mask steps without a key for a query of the block are not fetched.
//
// Resident: keys and values of a head fit the shared memory, KEY_ROWS with those behind the last one. All lengths are
// constants of the text, and the steps are unrolled. Each step is a stage of its own: its products begin as soon as it has
// arrived, and the queries of all passes read it there.

constexpr bool RESIDENT = KEY_ROWS > 0;
constexpr int STAGES = RESIDENT ? (KEY_ROWS + STEP - 1) / STEP : 2;
constexpr int STAGED = RESIDENT ? KEY_ROWS : STAGES * STEP;  // keys in shared memory
constexpr int ROWS = WARPS * TILES * 16;                     // queries of a block at a time

struct Place {
  long long batch, head;
  int first_query, queries, keys;
  int end;  // of the keys that any query of the block may see
};

DEVICE Place place(const Parameters& p) {
  const unsigned blocks = (unsigned)p.blocks, part = block_from_end() % blocks, rest = block_from_end() / blocks;
  // Under the causal mask the last queries have the most keys: the longest work first.
  const int first = (int)(CAUSAL ? blocks - 1 - part : part) * (PASSES * ROWS);
  const int keys = (int)p.keys, queries = (int)p.queries;
  return {rest / HEADS, rest % HEADS, first, queries, keys,
          CAUSAL && !RESIDENT && first + ROWS < keys ? first + ROWS : keys};
}

// Where the matrix of a head begins.
template <bool HEADS_FIRST, int GROUP> DEVICE long long start_of(const Place& at, int rows) {
  constexpr int MANY = HEADS / GROUP;
  const long long head = at.head / GROUP;
  return HEADS_FIRST ? (at.batch * MANY + head) * rows * SIZE : (at.batch * rows * MANY + head) * SIZE;
}

// ---- a step's keys and values, and what is added to their scores

struct Stage {
  SharedAddress keys, values;
  float* key_bias;

  DEVICE Stage from(int row) const { return {keys + row * ROW_BYTES, values + row * ROW_BYTES, key_bias + row}; }
};

template <int COUNT> DEVICE void fetch_step(const Stage& to, const E* k, const E* v, int first, int keys) {
  fetch_rows<COUNT, THREADS>(to.keys, Apart<K_ROW>{k}, first, keys);
  fetch_rows<COUNT, THREADS>(to.values, Apart<V_ROW>{v}, first, keys);
}

// The bias of COUNT keys, in the scores' unit, on its way in registers: while the step before is multiplied.
template <int COUNT> struct KeyBias {
  static constexpr int EACH = BIAS == PER_KEY ? (COUNT + THREADS - 1) / THREADS : 1;
  float of[EACH];

  DEVICE void load_from(const E* bias, int first, int keys, long long stride) {
    UNROLLED for (int i = 0; i < EACH; ++i) {
      const int key = first + i * THREADS + (int)thread_index();
      of[i] = key < keys ? load<1>(bias + key * stride).get(0) * ADDED_UNIT : lowest();
    }
  }
  DEVICE void store(float* to) const {
    UNROLLED for (int i = 0; i < EACH; ++i) {
      const int key = i * THREADS + (int)thread_index();
      if (key < COUNT) to[key] = of[i];
    }
  }
};

// What is added to the scores of a head: by a query or by all of them, and besides.
struct Added {
  const E *bias, *also;
};

// ---- the queries of a warp

// Of a row behind the last one, the last one again.
DEVICE int row_of(const Place& at, int first, int tile, int half) {
  const int wanted = first + tile * 16 + (int)thread_index() % 32 / 4 + half * 8;
  return wanted < at.queries ? wanted : at.queries - 1;
}

DEVICE void load_queries(Rows& rows, const E* q, const Place& at, int first) {
  if (HELD)
    UNROLLED for (int tile = 0; tile < TILES; ++tile)
      UNROLLED for (int half = 0; half < 2; ++half)
        load_query(rows, tile, half, q + row_of(at, first, tile, half) * (long long)Q_ROW);
  clear(rows);
}

DEVICE void store_rows(const Rows& rows, E* y, const Place& at, int first, SeenExtremes<EXTREMES>& extremes) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile)
    UNROLLED for (int half = 0; half < 2; ++half) {
      const int row = first + tile * 16 + (int)thread_index() % 32 / 4 + half * 8;
      const float share = share_of(rows, tile, half, SAFE || at.keys == 0);
      store_row(rows, tile, half, share, y + row * (long long)Y_ROW, row < at.queries);
      if constexpr (EXTREMES)
        UNROLLED for (int column = 0; column < COLUMNS; ++column)
          UNROLLED for (int i = 0; i < 2; ++i) extremes.take(rows.y[tile][column][half * 2 + i] * share, row < at.queries);
    }
}

// ---- a step: EDGE where some of its keys do not count, for all or for some queries

// Times log2(e) where they are not PLAIN, so that 2^x takes the place of e^x.
template <bool EDGE, int COUNT>
DEVICE void scale_scores(Scores<COUNT>& scores, const float* key_bias, const Added& biases, const Place& at, int first_query,
                         int first_key, const Parameters& p) {
  const int lane = thread_index() % 32, inside = lane % 4 * 2;
  // Whether both of a pair can be read at once.
  const bool wide = BIAS == PER_PAIR && p.bias_key == 1 && p.bias_query % 2 == 0 &&
                    (unsigned long long)biases.bias % (2 * sizeof(E)) == 0;
  UNROLLED for (int tile = 0; tile < TILES; ++tile)
    UNROLLED for (int half = 0; half < 2; ++half) {
      const int query = first_query + tile * 16 + lane / 4 + half * 8;
      const E* row = biases.bias;
      if constexpr (BIAS == PER_PAIR) row += row_of(at, first_query, tile, half) * p.bias_query + (first_key + inside) * p.bias_key;
      const E* other = biases.also;
      if constexpr (ALSO) other += row_of(at, first_query, tile, half) * p.also_query + (first_key + inside) * p.also_key;
      UNROLLED for (int column = 0; column < COUNT / 8; ++column) {
        const int key = first_key + column * 8 + inside;
        Pair added = {};
        if constexpr (BIAS == PER_KEY) added = *(const Pair*)(key_bias + column * 8 + inside);
        if constexpr (BIAS == PER_PAIR) added = load_bias<EDGE>(row + column * 8 * p.bias_key, p.bias_key, wide, key, at.keys);
        if constexpr (ALSO) {
          const Pair besides = load_bias<EDGE>(other + column * 8 * p.also_key, p.also_key, false, key, at.keys);
          UNROLLED for (int i = 0; i < 2; ++i) added.at[i] += besides.at[i];
        }
        UNROLLED for (int i = 0; i < 2; ++i) {
          float& score = scores.of[tile][column][half * 2 + i];
          if (!SCALED_LATE) score = score * SCORE_UNIT + added.at[i];
          if (EDGE) score = key + i < at.keys && (!CAUSAL || key + i <= query) ? score : lowest();
        }
      }
    }
}

template <int COUNT, bool FIRST, bool EDGE>
DEVICE void attend_step(Rows& rows, SharedAddress queries, const Stage& stage, const Added& biases, const Place& at,
                        int first_query, int first_key, const Parameters& p) {
  const int groups = groups_of<COUNT, EDGE>(first_key, at.end);
  Scores<COUNT> scores = {};
  multiply_keys<EDGE>(scores, rows, queries, stage.keys, groups);
  if (EDGE || !SCALED_LATE) scale_scores<EDGE>(scores, stage.key_bias, biases, at, first_query, first_key, p);
  weigh<FIRST>(scores, rows);
  multiply_values<EDGE>(rows, scores, stage.values, groups);
}

// Whether a query of a warp sees a key of a step.
DEVICE bool sees(const Place& at, int first_query, int first_key) {
  return first_query < at.queries && (!CAUSAL || first_key < first_query + TILES * 16);
}

// ---- streamed

DEVICE void attend_streamed(Rows& rows, SharedAddress queries, const Stage& ring, const E* k, const E* v, const E* q,
                            const Added& biases, const Place& at, int first_query, const Parameters& p) {
  using Pipeline = AsyncPipeline<BlockScope, STAGES>;
  KeyBias<STEP> next;
  if (at.end > 0) {
    fetch_step<STEP>(ring, k, v, 0, at.keys);
    if constexpr (BIAS == PER_KEY) {
      next.load_from(biases.bias, 0, at.keys, p.bias_key);
      next.store(ring.key_bias);
    }
  }
  Pipeline::producer_commit();
  load_queries(rows, q, at, first_query);
  for (int first_key = 0, stage = 0; first_key < at.end; first_key += STEP, stage ^= 1) {
    Pipeline::consumer_wait();
    const int after = first_key + STEP;
    if (after < at.end) {
      fetch_step<STEP>(ring.from((stage ^ 1) * STEP), k, v, after, at.keys);
      if constexpr (BIAS == PER_KEY) next.load_from(biases.bias, after, at.keys, p.bias_key);
    }
    Pipeline::producer_commit();
    const Stage now = ring.from(stage * STEP);
    if (sees(at, first_query, first_key)) {
      if (after > at.keys || (CAUSAL && after > first_query + 1))
        attend_step<STEP, false, true>(rows, queries, now, biases, at, first_query, first_key, p);
      else
        attend_step<STEP, false, false>(rows, queries, now, biases, at, first_query, first_key, p);
    }
    if constexpr (BIAS == PER_KEY)
      if (after < at.end) next.store(ring.from((stage ^ 1) * STEP).key_bias);
  }
}

// ---- resident

template <int NUMBER> struct ResidentStep {
  static constexpr int FIRST = NUMBER * STEP, COUNT = KEY_ROWS - FIRST < STEP ? KEY_ROWS - FIRST : STEP;
};

template <int NUMBER = 0> DEVICE void fetch_resident(const Stage& to, const E* k, const E* v, int keys) {
  if constexpr (NUMBER < STAGES) {
    using Step = ResidentStep<NUMBER>;
    fetch_step<Step::COUNT>(to.from(Step::FIRST), k, v, Step::FIRST, keys);
    AsyncPipeline<BlockScope, STAGES>::producer_commit();
    fetch_resident<NUMBER + 1>(to, k, v, keys);
  }
}

template <int NUMBER = 0, class Lengths>
DEVICE void attend_resident(Rows& rows, const Stage& all, const Added& biases, const Place& at, int first_query, bool waits,
                            const Lengths& p) {
  if constexpr (NUMBER < STAGES) {
    using Step = ResidentStep<NUMBER>;
    if (waits) AsyncPipeline<BlockScope, STAGES - NUMBER, STAGES - NUMBER>::consumer_wait();
    if (sees(at, first_query, Step::FIRST))
      attend_step<Step::COUNT, NUMBER == 0, CAUSAL || (Step::FIRST + Step::COUNT > Lengths::keys)>(
          rows, all.keys, all.from(Step::FIRST), biases, at, first_query, Step::FIRST, p);
    attend_resident<NUMBER + 1>(rows, all, biases, at, first_query, waits, p);
  }
}

template <class Lengths> DEVICE void attend(const Pointers& pointers, const Lengths& p) {
  DYNAMIC_SHARED(unsigned, shared_words, (STAGED * (2 * ROW_BYTES + 4) + (HELD ? 0 : ROWS * ROW_BYTES)) / 4);
  const SharedAddress keys = shared_address(shared_words), values = keys + STAGED * ROW_BYTES;
  const Stage ring = {keys, values, (float*)(shared_words + STAGED * ROW_BYTES / 2)};
  const SharedAddress queries = keys + STAGED * (2 * ROW_BYTES + 4);
  const Place at = place(p);
  const E* k = pointers.k + start_of<K_HEADS_FIRST, K_GROUP>(at, at.keys);
  const E* v = pointers.v + start_of<V_HEADS_FIRST, V_GROUP>(at, at.keys);
  const E* bias = BIAS == NONE ? nullptr
                               : pointers.bias + ((WINDOWED ? at.batch % p.windows : at.batch) * p.bias_batch +
                                                  at.head * p.bias_head);
  const Added biases = {bias, ALSO ? pointers.also + at.batch * p.also_batch + at.head * p.also_head : nullptr};
  const E* q = pointers.q + start_of<Q_HEADS_FIRST, Q_GROUP>(at, at.queries);
  E* y = pointers.y + start_of<Y_HEADS_FIRST, Y_GROUP>(at, at.queries);
  Rows rows;
  SeenExtremes<EXTREMES> extremes;
  if constexpr (RESIDENT) {
    fetch_resident(ring, k, v, at.keys);
    if constexpr (BIAS == PER_KEY) {
      KeyBias<STAGED> all;
      all.load_from(bias, 0, at.keys, p.bias_key);
      all.store(ring.key_bias);
    }
    for (int pass = 0; pass < PASSES; ++pass) {
      const int first_query = at.first_query + (pass * WARPS + (int)thread_index() / 32) * (TILES * 16);
      load_queries(rows, q, at, first_query);
      attend_resident(rows, ring, biases, at, first_query, pass == 0, p);
      store_rows(rows, y, at, first_query, extremes);
    }
  } else {
    const int first_of_warp = (int)thread_index() / 32 * (TILES * 16), first_query = at.first_query + first_of_warp;
    if (!HELD) fetch_rows<ROWS, THREADS>(queries, Apart<Q_ROW>{q}, at.first_query, at.queries);
    attend_streamed(rows, queries + first_of_warp * ROW_BYTES, ring, k, v, q, biases, at, first_query, p);
    store_rows(rows, y, at, first_query, extremes);
  }
  extremes.leave_of_warp(pointers.scratch, block_index() * WARPS + thread_index() / 32);
}
