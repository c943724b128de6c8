// y = softmax(q k^T * scale + bias) v, head by head, of any number of queries and keys
//
// q [batch, HEADS, queries, SIZE], k and v [batch, HEADS / GROUP, keys, SIZE], y as q, each with strides of its own along
// all but the last axis, K_GROUP and V_GROUP heads of queries reading one of keys and values; bias, or two of them (ALSO),
// broadcast to [batch, HEADS, queries, keys], or one to [windows, HEADS, queries, keys], again and again along the batch. 16-bit types and
// float32. No length stands in the text: one kernel is for all of them. Accuracy: products exact, those of float32 of
// factors rounded to TF32, sums and exponentials in float; weights are rounded to the element type, or TF32, before they
// meet the values, and divided by their sum, which is of the unrounded ones, at the end. Where the bias is minus infinity for all keys of a query, y is NaN, as 0 / 0, or 0 if SAFE; without a key it is 0.
//
// A block takes WARPS * TILES * 16 queries of a head; a warp holds TILES * 16 of them and their part of y in registers;
// unless HELD, the queries stay in shared memory.
// The keys and their values go by STEP at a time, through two places in shared memory: while one is multiplied, the
// other is filled. A warp scales what it has whenever a greater score comes (Dao, FlashAttention-2, 2023). Under the
// causal mask steps without a key for a query of the block are not fetched; comparisons with the ends and the diagonal
// are for the steps that they cross alone.

struct Parameters {
  long long queries, keys;
  long long blocks;   // of a head
  long long windows;  // of so many in a row each has a bias of its own
  long long bias_batch, bias_head, bias_query, bias_key;  // elements
  long long also_batch, also_head, also_query, also_key;  // of what is added besides
};

constexpr int ROWS = WARPS * TILES * 16;  // queries of a block

struct Place {
  long long batch, head;
  int first_query, queries, keys;
  int end;  // of the keys that any query of the block may see
};

DEVICE Place place(const Parameters& p) {
  const unsigned blocks = (unsigned)p.blocks, part = block_from_end() % blocks, rest = block_from_end() / blocks;
  // Under the causal mask the last queries have the most keys: the longest work first.
  const int first = (int)(CAUSAL ? blocks - 1 - part : part) * ROWS;
  const int keys = (int)p.keys, queries = (int)p.queries;
  return {rest / HEADS, rest % HEADS, first, queries, keys, CAUSAL && first + ROWS < keys ? first + ROWS : keys};
}

// ---- keys and values

// The bias of a step's keys, in the scores' unit, is on its way in registers while the step before is multiplied.
constexpr int BIASES = BIAS == PER_KEY ? (STEP + THREADS - 1) / THREADS : 1;
struct KeyBias {
  float of[BIASES];

  DEVICE void load_from(const E* bias, int first, int keys, long long stride) {
    UNROLLED for (int i = 0; i < BIASES; ++i) {
      const int key = first + i * THREADS + (int)thread_index();
      of[i] = key < keys ? load<1>(bias + key * stride).get(0) * ADDED_UNIT : lowest();
    }
  }
  DEVICE void put(float* to) const {
    UNROLLED for (int i = 0; i < BIASES; ++i) {
      const int key = i * THREADS + (int)thread_index();
      if (key < STEP) to[key] = of[i];
    }
  }
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

// ---- a step: EDGE where some of its keys do not count, for all or for some queries

// What is added to the scores of a head: by a query or by all of them, and besides.
struct Added {
  const E *bias, *also;
};

// Times log2(e) where they are not PLAIN, so that 2^x takes the place of e^x.
template <bool EDGE>
DEVICE void scale_scores(Scores<STEP>& scores, const float* key_bias, const Added& biases, const Place& at, int first_query,
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
      UNROLLED for (int column = 0; column < STEP / 8; ++column) {
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

template <bool EDGE>
DEVICE void attend_step(Rows& rows, SharedAddress queries, SharedAddress keys, SharedAddress values,
                        const float* key_bias, const Added& biases, const Place& at, int first_query, int first_key, const Parameters& p) {
  const int groups = groups_of<EDGE>(first_key, at.end);
  Scores<STEP> scores = {};
  multiply_keys<EDGE>(scores, rows, queries, keys, groups);
  if (EDGE || !SCALED_LATE) scale_scores<EDGE>(scores, key_bias, biases, at, first_query, first_key, p);
  weigh<false>(scores, rows);
  multiply_values<EDGE>(rows, scores, values, groups);
}

DEVICE void store_rows(const Rows& rows, E* y, const Place& at, int first) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile)
    UNROLLED for (int half = 0; half < 2; ++half) {
      const int row = first + tile * 16 + (int)thread_index() % 32 / 4 + half * 8;
      const float share = share_of(rows, tile, half, SAFE || at.keys == 0);
      store_row(rows, tile, half, share, y + row * (long long)Y_ROW, row < at.queries);
    }
}

// Where the matrix of a head begins.
template <bool HEADS_FIRST, int GROUP> DEVICE long long start_of(const Place& at, int rows) {
  constexpr int MANY = HEADS / GROUP;
  const long long head = at.head / GROUP;
  return HEADS_FIRST ? (at.batch * MANY + head) * rows * SIZE : (at.batch * rows * MANY + head) * SIZE;
}

DEVICE void attend(const Pointers& pointers, const Parameters& p) {
  DYNAMIC_SHARED(unsigned, shared_words, (4 * STEP_BYTES + 2 * STEP * 4 + (HELD ? 0 : ROWS * ROW_BYTES)) / 4);
  const SharedAddress keys = shared_address(shared_words), values = keys + 2 * STEP_BYTES;
  float* key_bias = (float*)(shared_words + STEP_BYTES);  // behind two steps of keys and of values
  const SharedAddress queries = keys + 4 * STEP_BYTES + 2 * STEP * 4;
  const Place at = place(p);
  const E* k = pointers.k + start_of<K_HEADS_FIRST, K_GROUP>(at, at.keys);
  const E* v = pointers.v + start_of<V_HEADS_FIRST, V_GROUP>(at, at.keys);
  const E* added = BIAS == NONE ? nullptr
                                : pointers.bias + ((WINDOWED ? at.batch % p.windows : at.batch) * p.bias_batch +
                                                   at.head * p.bias_head);
  const Added biases = {added, ALSO ? pointers.also + at.batch * p.also_batch + at.head * p.also_head : nullptr};
  const E* q = pointers.q + start_of<Q_HEADS_FIRST, Q_GROUP>(at, at.queries);
  const int first_of_warp = (int)thread_index() / 32 * (TILES * 16), first_query = at.first_query + first_of_warp;
  KeyBias next;
  if (!HELD) fetch_rows<ROWS, THREADS>(queries, Apart<Q_ROW>{q}, at.first_query, at.queries);
  if (at.end > 0) {
    fetch_rows<STEP, THREADS>(keys, Apart<K_ROW>{k}, 0, at.keys);
    fetch_rows<STEP, THREADS>(values, Apart<V_ROW>{v}, 0, at.keys);
    if constexpr (BIAS == PER_KEY) {
      next.load_from(added, 0, at.keys, p.bias_key);
      next.put(key_bias);
    }
  }
  close_group_of_copies();
  Rows rows;
  load_queries(rows, q, at, first_query);
  for (int first_key = 0, place = 0; first_key < at.end; first_key += STEP, place ^= 1) {
    wait_for_copies<0>();
    wait_for_block();  // and nobody reads the other place any more
    const int after = first_key + STEP;
    if (after < at.end) {
      fetch_rows<STEP, THREADS>(keys + (place ^ 1) * STEP_BYTES, Apart<K_ROW>{k}, after, at.keys);
      fetch_rows<STEP, THREADS>(values + (place ^ 1) * STEP_BYTES, Apart<V_ROW>{v}, after, at.keys);
      if constexpr (BIAS == PER_KEY) next.load_from(added, after, at.keys, p.bias_key);
    }
    close_group_of_copies();
    const SharedAddress key = keys + place * STEP_BYTES, value = values + place * STEP_BYTES;
    const SharedAddress of_warp = queries + first_of_warp * ROW_BYTES;
    const float* of_keys = key_bias + place * STEP;
    if (first_query < at.queries && (!CAUSAL || first_key < first_query + TILES * 16)) {
      if (after > at.keys || (CAUSAL && after > first_query + 1))
        attend_step<true>(rows, of_warp, key, value, of_keys, biases, at, first_query, first_key, p);
      else
        attend_step<false>(rows, of_warp, key, value, of_keys, biases, at, first_query, first_key, p);
    }
    if constexpr (BIAS == PER_KEY)
      if (after < at.end) next.put(key_bias + (place ^ 1) * STEP);
  }
  store_rows(rows, pointers.y + start_of<Y_HEADS_FIRST, Y_GROUP>(at, at.queries), at, first_query);
}
