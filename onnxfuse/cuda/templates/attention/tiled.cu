// y = softmax(q k^T * scale + bias) v, head by head; of 8-bit integers y = result_of(weight_of(softmax(score_of(q k^T, bias))) v)
// with scalar programs, of integers less their zero points: a tile of queries goes over tiles of keys and values with an online
// softmax (Dao, FlashAttention-2, 2023)
//
// q [batch, HEADS, queries, SIZE], k and v [batch, HEADS / GROUP, keys, SIZE], y as q, each with strides of its own along
// all but the last axis, K_GROUP and V_GROUP heads of queries reading one of keys and values; bias, or two of them (ALSO),
// broadcast to [batch, HEADS, queries, keys], or one to [windows, HEADS, queries, keys], again and again along the batch.
// 16-bit types and float32, and 8-bit integers as float16, whose products and sums are exact: heads of up to 256 elements,
// shares of a row that add up to 2^16. Accuracy: products exact, those of float32 of factors rounded to TF32, sums and exponentials in
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
// Keys and values go by STEP at a time, through a pipeline of RING stages: while one is multiplied, the others are filled.
// Under the causal mask steps without a key for a query of the block are not fetched.
//
// Resident: keys and values of a head fit the shared memory, KEY_ROWS with those behind the last one. All lengths are
// constants of the text, and the steps are unrolled. Each step is a stage of its own: its products begin as soon as it has
// arrived, and the queries of all passes read it there.

constexpr bool RESIDENT = KEY_ROWS > 0;
constexpr int STAGES = RESIDENT ? (KEY_ROWS + STEP - 1) / STEP : RING;
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
  return {rest / HEADS, rest % HEADS, first,
          queries,      keys,         CAUSAL && !RESIDENT && first + ROWS < keys ? first + ROWS : keys};
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

template <int COUNT, bool VALUES = true>
DEVICE void fetch_step(const Stage& to, const Memory::K* k, const Memory::V* v, int first, int keys) {
  fetch_rows<COUNT, THREADS>(to.keys, Apart<Memory::K, K_ROW, K_ZERO>{k}, first, keys);
  if (VALUES) fetch_rows<COUNT, THREADS>(to.values, Apart<Memory::V, V_ROW, V_ZERO>{v}, first, keys);
}

// The bias of COUNT keys, in the scores' unit, on its way in registers: while the step before is multiplied.
template <int COUNT> struct KeyBias {
  static constexpr int EACH = BIAS == PER_KEY ? (COUNT + THREADS - 1) / THREADS : 1;
  float of[EACH];

  DEVICE void load_from(const Memory::Bias* bias, int first, int keys, long long stride) {
    UNROLLED for (int i = 0; i < EACH; ++i) {
      const int key = first + i * THREADS + (int)thread_index();
      of[i] = key < keys ? added_of(load<1>(bias + key * stride).get(0)) * ADDED_UNIT : lowest();
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
struct Added { const Memory::Bias *bias, *also; };

// ---- the queries of a warp

// Of a row behind the last one, the last one again.
DEVICE int row_of(const Place& at, int first, int tile, int half) {
  const int wanted = first + tile * 16 + (int)thread_index() % 32 / 4 + half * 8;
  return wanted < at.queries ? wanted : at.queries - 1;
}

DEVICE void load_queries(Rows& rows, const Memory::Q* q, const Place& at, int first) {
  if (HELD)
    UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int half = 0; half < 2; ++half)
        load_query<Q_ZERO>(rows, tile, half, q + row_of(at, first, tile, half) * (long long)Q_ROW);
  clear(rows);
}

// This lane's part of a row of 8-bit integers.
template <class T> DEVICE void store_integers(const Rows& rows, int tile, int half, T* to, bool inside) {
  const int lane = thread_index() % 4;
  unsigned pair[COLUMNS];
  UNROLLED for (int column = 0; column < COLUMNS; ++column) {
    const float* sum = &rows.y[tile][column][half * 2];
    pair[column] = (unsigned)(unsigned char)result_of(sum[0]) | (unsigned)(unsigned char)result_of(sum[1]) << 8;
  }
  constexpr int BY_EIGHTS = ALIGNED ? COLUMNS / 8 * 8 : 0;
  UNROLLED for (int column = 0; column < BY_EIGHTS; column += 8) {
    unsigned four[4];  // of two columns each
    UNROLLED for (int i = 0; i < 4; ++i) four[i] = pair[column + 2 * i] | pair[column + 2 * i + 1] << 16;
    const Chunk<16> both = whole_column(four);
    Chunk<16> whole;
    UNROLLED for (int i = 0; i < 2; ++i) {
      whole.word[i] = select_bytes(both.word[2 * i], both.word[2 * i + 1], 0x5410);
      whole.word[2 + i] = select_bytes(both.word[2 * i], both.word[2 * i + 1], 0x7632);
    }
    if (inside) write((Chunk<16>*)(to + (column + 2 * lane) * 8), whole);
  }
  UNROLLED for (int column = BY_EIGHTS; column < COLUMNS; ++column) {
    T* at = to + column * 8 + lane * 2;
    if (ALIGNED && inside) write((unsigned short*)at, (unsigned short)pair[column]);
    if (!ALIGNED && inside) UNROLLED for (int i = 0; i < 2; ++i) write(at + i, (T)(pair[column] >> i * 8));
  }
}

template <class T> DEVICE void store_row_of(const Rows& rows, int tile, int half, T* to, bool inside, bool zero) {
  if constexpr (QUANTIZED) store_integers(rows, tile, half, to, inside);
  else store_row(rows, tile, half, share_of(rows, tile, half, zero), to, inside);
}

DEVICE void store_rows(const Rows& rows, Memory::Y* y, const Place& at, int first, SeenExtremes<EXTREMES>& extremes) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int half = 0; half < 2; ++half) {
    const int row = first + tile * 16 + (int)thread_index() % 32 / 4 + half * 8;
    store_row_of(rows, tile, half, y + row * (long long)Y_ROW, row < at.queries, SAFE || at.keys == 0);
    if constexpr (EXTREMES) {
      const float share = share_of(rows, tile, half, SAFE || at.keys == 0);
      UNROLLED for (int column = 0; column < COLUMNS; ++column) UNROLLED for (int i = 0; i < 2; ++i)
          extremes.take(rows.y[tile][column][half * 2 + i] * share, row < at.queries);
    }
  }
}

// ---- a step: EDGE where some of its keys do not count, for all or for some queries

// What is added to two neighbouring keys of a query, from `at` on.
template <bool EDGE> DEVICE Pair load_bias(const Memory::Bias* at, long long stride, bool wide, int key, int keys) {
  Pack<Memory::Bias, 2> both = {};
  if (!EDGE && wide) {
    both = load<2>(at);
  } else {
    if (!EDGE || key < keys) both.set_bits(0, load_bits(at));
    if (!EDGE || key + 1 < keys) both.set_bits(1, load_bits(at + stride));
  }
  return {added_of(both.get(0)) * ADDED_UNIT, added_of(both.get(1)) * ADDED_UNIT};
}

// Times log2(e) where they are not PLAIN, so that 2^x takes the place of e^x.
template <bool EDGE, int COUNT> DEVICE void scale_scores(Scores<COUNT>& scores, const float* key_bias,
                                                         const Added& biases, const Place& at, int first_query,
                                                         int first_key, const Parameters& p) {
  const int lane = thread_index() % 32, inside = lane % 4 * 2;
  // Whether both of a pair can be read at once.
  const bool wide = BIAS == PER_PAIR && p.bias_key == 1 && p.bias_query % 2 == 0 &&
                    (unsigned long long)biases.bias % (2 * sizeof(Memory::Bias)) == 0;
  UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int half = 0; half < 2; ++half) {
    const int query = first_query + tile * 16 + lane / 4 + half * 8;
    const Memory::Bias* row = biases.bias;
    if constexpr (BIAS == PER_PAIR)
      row += row_of(at, first_query, tile, half) * p.bias_query + (first_key + inside) * p.bias_key;
    const Memory::Bias* other = biases.also;
    if constexpr (ALSO) other += row_of(at, first_query, tile, half) * p.also_query + (first_key + inside) * p.also_key;
    UNROLLED for (int column = 0; column < COUNT / 8; ++column) {
      const int key = first_key + column * 8 + inside;
      Pair added = {};
      if constexpr (BIAS == PER_KEY) added = *(const Pair*)(key_bias + column * 8 + inside);
      if constexpr (BIAS == PER_PAIR)
        added = load_bias<EDGE>(row + column * 8 * p.bias_key, p.bias_key, wide, key, at.keys);
      if constexpr (ALSO) {
        const Pair besides = load_bias<EDGE>(other + column * 8 * p.also_key, p.also_key, false, key, at.keys);
        UNROLLED for (int i = 0; i < 2; ++i) added.at[i] += besides.at[i];
      }
      UNROLLED for (int i = 0; i < 2; ++i) {
        float& score = scores.of[tile][column][half * 2 + i];
        if (!SCALED_LATE) score = score_of(score, added.at[i]);
        if (EDGE) score = key + i < at.keys && (!CAUSAL || key + i <= query) ? score : lowest();
      }
    }
  }
}

// What a step does. Weights that are rounded as shares of all keys' sum (QUANTIZED) want that sum before: of keys of a single
// step ALL AT ONCE, else in a pass over the keys for their TOTAL, and another one for their SHARES. Others need it at the end.
enum Softmax { ONLINE, AT_ONE_STEP, TOTAL, SHARES };

// Weights become the integers by which values are multiplied.
template <int COUNT> DEVICE void round_shares(Scores<COUNT>& weights, const Rows& rows) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int half = 0; half < 2; ++half) {
    const float share = share_of(rows, tile, half, false);
    UNROLLED for (int column = 0; column < COUNT / 8; ++column) UNROLLED for (int i = 0; i < 2; ++i) {
      float& weight = weights.of[tile][column][half * 2 + i];
      weight = weight_of(weight, share);
    }
  }
}

template <Softmax SOFTMAX, int COUNT, bool FIRST, bool EDGE>
DEVICE void attend_step(Rows& rows, SharedAddress queries, const Stage& stage, const Added& biases, const Place& at,
                        int first_query, int first_key, const Parameters& p) {
  const int groups = groups_of<COUNT, EDGE>(first_key, at.end);
  Scores<COUNT> scores = {};
  multiply_keys<EDGE>(scores, rows, queries, stage.keys, groups);
  if (EDGE || !SCALED_LATE) scale_scores<EDGE>(scores, stage.key_bias, biases, at, first_query, first_key, p);
  if constexpr (SOFTMAX == ONLINE) weigh<FIRST>(scores, rows);
  if constexpr (SOFTMAX == AT_ONE_STEP || SOFTMAX == TOTAL) weigh_ahead<FIRST>(scores, rows);
  if constexpr (SOFTMAX == SHARES) weigh_known(scores, rows);
  if constexpr (SOFTMAX == AT_ONE_STEP || SOFTMAX == SHARES) round_shares(scores, rows);
  if constexpr (SOFTMAX != TOTAL) multiply_values<EDGE>(rows, scores, stage.values, groups);
}

// Whether a query of a warp sees a key of a step.
DEVICE bool sees(const Place& at, int first_query, int first_key) {
  return first_query < at.queries && (!CAUSAL || first_key < first_query + TILES * 16);
}

// ---- streamed

template <Softmax SOFTMAX> DEVICE void attend_streamed(Rows& rows, SharedAddress queries, const Stage& ring,
                                                       const Memory::K* k, const Memory::V* v, const Memory::Q* q,
                                                       const Added& biases, const Place& at, int first_query,
                                                       bool fetches, const Parameters& p) {
  constexpr bool VALUES = SOFTMAX != TOTAL;
  using Pipeline = AsyncPipeline<BlockScope, STAGES>;
  constexpr int AHEAD = (STAGES - 1) * STEP;  // keys that are fetched before a step is multiplied
  KeyBias<STEP> next;
  UNROLLED for (int first = 0; first < AHEAD; first += STEP) {
    if (first < at.end && fetches) {
      fetch_step<STEP, VALUES>(ring.from(first), k, v, first, at.keys);
      if constexpr (BIAS == PER_KEY) {
        next.load_from(biases.bias, first, at.keys, p.bias_key);
        next.store(ring.from(first).key_bias);
      }
    }
    Pipeline::producer_commit();
  }
  if (SOFTMAX != SHARES) load_queries(rows, q, at, first_query);
  typename Pipeline::State state;
  for (int first_key = 0; first_key < at.end; first_key += STEP, state.advance()) {
    Pipeline::consumer_wait();
    const int after = first_key + AHEAD, last = first_key + STEP;
    const Stage free = ring.from(state.previous() * STEP);
    if (after < at.end) {
      fetch_step<STEP, VALUES>(free, k, v, after, at.keys);
      if constexpr (BIAS == PER_KEY) next.load_from(biases.bias, after, at.keys, p.bias_key);
    }
    Pipeline::producer_commit();
    const Stage now = ring.from(state.stage * STEP);
    if (sees(at, first_query, first_key)) {
      if (last > at.keys || (CAUSAL && last > first_query + 1))
        attend_step<SOFTMAX, STEP, false, true>(rows, queries, now, biases, at, first_query, first_key, p);
      else attend_step<SOFTMAX, STEP, false, false>(rows, queries, now, biases, at, first_query, first_key, p);
    }
    if constexpr (BIAS == PER_KEY)
      if (after < at.end) next.store(free.key_bias);
  }
}

// ---- resident

template <int NUMBER> struct ResidentStep {
  static constexpr int FIRST = NUMBER * STEP, COUNT = KEY_ROWS - FIRST < STEP ? KEY_ROWS - FIRST : STEP;
};

template <int NUMBER = 0>
DEVICE void fetch_resident(const Stage& to, const Memory::K* k, const Memory::V* v, int keys) {
  if constexpr (NUMBER < STAGES) {
    using Step = ResidentStep<NUMBER>;
    fetch_step<Step::COUNT>(to.from(Step::FIRST), k, v, Step::FIRST, keys);
    AsyncPipeline<BlockScope, STAGES>::producer_commit();
    fetch_resident<NUMBER + 1>(to, k, v, keys);
  }
}

template <Softmax SOFTMAX, int NUMBER = 0, class Lengths>
DEVICE void attend_resident(Rows& rows, const Stage& all, const Added& biases, const Place& at, int first_query,
                            bool waits, const Lengths& p) {
  if constexpr (NUMBER < STAGES) {
    using Step = ResidentStep<NUMBER>;
    if (waits) AsyncPipeline<BlockScope, STAGES - NUMBER, STAGES - NUMBER>::consumer_wait();
    if (sees(at, first_query, Step::FIRST))
      attend_step<SOFTMAX, Step::COUNT, NUMBER == 0, CAUSAL || (Step::FIRST + Step::COUNT > Lengths::keys)>(
          rows, all.keys, all.from(Step::FIRST), biases, at, first_query, Step::FIRST, p);
    attend_resident<SOFTMAX, NUMBER + 1>(rows, all, biases, at, first_query, waits, p);
  }
}

template <class Lengths> DEVICE void attend(const Pointers& pointers, const Lengths& p) {
  DYNAMIC_SHARED(unsigned, shared_words, (STAGED * (2 * ROW_BYTES + 4) + (HELD ? 0 : ROWS * ROW_BYTES)) / 4);
  const SharedAddress keys = shared_address(shared_words), values = keys + STAGED * ROW_BYTES;
  const Stage ring = {keys, values, (float*)(shared_words + STAGED * ROW_BYTES / 2)};
  const SharedAddress queries = keys + STAGED * (2 * ROW_BYTES + 4);
  const Place at = place(p);
  const Memory::K* k = pointers.k + start_of<K_HEADS_FIRST, K_GROUP>(at, at.keys);
  const Memory::V* v = pointers.v + start_of<V_HEADS_FIRST, V_GROUP>(at, at.keys);
  const Memory::Bias* bias =
      BIAS == NONE
          ? nullptr
          : pointers.bias + ((WINDOWED ? at.batch % p.windows : at.batch) * p.bias_batch + at.head * p.bias_head);
  const Added biases = {bias, ALSO ? pointers.also + at.batch * p.also_batch + at.head * p.also_head : nullptr};
  const Memory::Q* q = pointers.q + start_of<Q_HEADS_FIRST, Q_GROUP>(at, at.queries);
  Memory::Y* y = pointers.y + start_of<Y_HEADS_FIRST, Y_GROUP>(at, at.queries);
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
      constexpr Softmax FIRST_PASS = !QUANTIZED ? ONLINE : STAGES == 1 ? AT_ONE_STEP : TOTAL;
      attend_resident<FIRST_PASS>(rows, ring, biases, at, first_query, pass == 0, p);
      if constexpr (FIRST_PASS == TOTAL) attend_resident<SHARES>(rows, ring, biases, at, first_query, false, p);
      store_rows(rows, y, at, first_query, extremes);
    }
  } else {
    const int first_of_warp = (int)thread_index() / 32 * (TILES * 16);
    if (!HELD) fetch_rows<ROWS, THREADS>(queries, Apart<Memory::Q, Q_ROW, Q_ZERO>{q}, at.first_query, at.queries);
    const SharedAddress mine = queries + first_of_warp * ROW_BYTES;
    for (int pass = 0; pass < PASSES; ++pass) {
      const int first_query = at.first_query + pass * ROWS + first_of_warp;
      if constexpr (!QUANTIZED) {
        attend_streamed<ONLINE>(rows, mine, ring, k, v, q, biases, at, first_query, true, p);
      } else if (at.keys <= STEP) {
        attend_streamed<AT_ONE_STEP>(rows, mine, ring, k, v, q, biases, at, first_query, pass == 0, p);
      } else {
        if (pass > 0) wait_for_block();  // the ring has been read
        attend_streamed<TOTAL>(rows, mine, ring, k, v, q, biases, at, first_query, true, p);
        wait_for_block();
        attend_streamed<SHARES>(rows, mine, ring, k, v, q, biases, at, first_query, true, p);
      }
      store_rows(rows, y, at, first_query, extremes);
    }
  }
  extremes.leave_of_warp(pointers.scratch, block_index() * WARPS + thread_index() / 32);
}
