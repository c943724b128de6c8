// y = softmax(q k^T * scale + bias) v of few queries, as in a step of decoding beside its cache
//
// q [batch, HEADS, queries, SIZE], k and v [batch, HEADS / GROUP, keys, SIZE], y as q, each with strides of its own along
// all but the last axis; bias broadcast to [batch, HEADS, queries, keys]. GROWS: keys and values come in two inputs, the
// cache and what is new, and are written as they are read to an output that has both, the cache of the next step. 16-bit
// types and float32. Accuracy: as the kernel of tiled.cu; what warps and blocks have found meets in float, in an order
// that never changes.
//
// The memory's speed is the limit: all queries that read a head of keys are rows of one product, so that its keys and
// values are read once for 16 of them, and `parts` blocks share its keys, if SPLIT, or the blocks of a CLUSTER. A warp takes every WARPS-th step of
// STEP of its block's keys, through STAGES places of its own in shared memory: no warp waits for another one before the
// end. There the warps' rows meet in shared memory, and the blocks' in that of a cluster, each block with its share of the
// rows; or, of more blocks than a cluster has, in `scratch`: the last block to come takes them all (Dao et al.,
// Flash-Decoding, 2023). It holds a counter for each 16 rows of a head of keys, 0 before and after a launch,
// then Record after Record.
//
// EXTREMES, without SPLIT: of y the smallest and the largest element are left, a part for each warp.

struct Parameters {
  long long queries, keys;
  long long past;         // keys of the first of two inputs, behind which the new ones are put; all where there is one
  long long span, parts;  // keys of a block; blocks that share those of a head
  long long tiles;        // of 16 rows
  long long counters;     // words of scratch before the records
  long long bias_batch, bias_head, bias_query, bias_key;  // elements
};

constexpr int GROUP = K_GROUP, MANY = HEADS / GROUP;  // heads of keys
constexpr int KEPT = bytes_of_warp();                 // the rows of all warps take the place of their keys

struct Place {
  long long batch, head;  // of keys
  int first, rows;        // its first row, and those that there are from it on
  int first_key, end;
  unsigned part, record;  // record: among the tiles of all heads
};

DEVICE Place place(const Parameters& p) {
  const unsigned parts = (unsigned)p.parts, tiles = (unsigned)p.tiles, record = block_index() / parts;
  const unsigned part = block_index() % parts, tile = record % tiles, head = record / tiles;
  const int first = (int)tile * 16, left = (int)p.queries * GROUP - first;
  const long long from = part * p.span, to = from + p.span < p.keys ? from + p.span : p.keys;
  return {head / MANY, head % MANY, first, left < 16 ? left : 16, (int)from, (int)to, part, record};
}

// A row: one query of one head. Behind the last row the last one again.
struct Row {
  long long batch, head, query;

  DEVICE Row(const Place& at, int row) {
    const int number = at.first + (row < at.rows ? row : at.rows - 1);
    batch = at.batch;
    head = at.head * GROUP + number % GROUP;
    query = number / GROUP;
  }
  template <bool HEADS_FIRST> DEVICE long long offset(long long queries) const {
    return (HEADS_FIRST ? (batch * HEADS + head) * queries + query : (batch * queries + query) * HEADS + head) * SIZE;
  }
  DEVICE long long bias(const Parameters& p) const {
    return batch * p.bias_batch + head * p.bias_head + query * p.bias_query;
  }
};

// Where a head of keys begins among so many.
template <bool HEADS_FIRST> DEVICE long long start_of(const Place& at, long long keys) {
  return HEADS_FIRST ? (at.batch * MANY + at.head) * keys * SIZE : (at.batch * keys * MANY + at.head) * SIZE;
}

// ---- keys and values

// The keys or the values of a head: those of the cache, and the new ones.
template <int STRIDE> struct Sequence {
  using Element = E;
  const E *before, *later;
  int past;
  E* all;  // where both are put

  DEVICE const E* operator()(int row) const {
    if (GROWS && row >= past) return later + (row - past) * (long long)STRIDE;
    return before + row * (long long)STRIDE;
  }
};

template <int STRIDE, bool HEADS_FIRST>
DEVICE Sequence<STRIDE> sequence(const E* past, const E* later, E* all, const Place& at, const Parameters& p) {
  return {past + start_of<HEADS_FIRST>(at, p.past), later + start_of<HEADS_FIRST>(at, p.keys - p.past), (int)p.past,
          all + start_of<HEADS_FIRST>(at, p.keys)};
}

struct Both {
  Sequence<K_ROW> k;
  Sequence<V_ROW> v;
  bool kept;  // whether this block puts them where both are
};

// What a step of a warp has in shared memory.
template <int STRIDE> DEVICE void keep_rows(const Sequence<STRIDE>& to, SharedAddress from, int first, int end) {
  UNROLLED for (int i = 0; i < STEP * UNITS / 32; ++i) {
    const int unit = i * 32 + (int)thread_index() % 32, row = unit / UNITS, piece = unit % UNITS;
    if (first + row < end && (UNITS == GIVEN_UNITS || piece < GIVEN_UNITS)) {
      unsigned word[4];
      load_shared(word, from + row * ROW_BYTES + piece * 16);
      E* at = to.all + (first + row) * (long long)STRIDE + piece * PER_UNIT;
      if constexpr (ALIGNED) {
        write((Chunk<16>*)at, Chunk<16>{word[0], word[1], word[2], word[3]});
      } else {
        UNROLLED for (int e = 0; e < PER_UNIT; ++e)
            write((typename Raw<sizeof(E)>::Word*)(at + e),
                  (typename Raw<sizeof(E)>::Word)(word[e / PER_WORD] >> e % PER_WORD * 16));
      }
    }
  }
}

// ---- a step of a warp

// What is added to the scores of a step, on its way in registers while the step before is multiplied.
struct Biases {
  const E* of[2];  // of this lane's two rows
  long long stride;
  Pack<E, 2> next[2][STEP / 8];

  DEVICE void load_from(int first_key, int end) {
    UNROLLED for (int half = 0; half < (BIAS == NONE ? 0 : 2); ++half)
        UNROLLED for (int column = 0; column < STEP / 8; ++column) {
      const int key = first_key + column * 8 + (int)thread_index() % 4 * 2;
      Pack<E, 2> both = {};
      if (key < end) both.set_bits(0, load_bits(of[half] + key * stride));
      if (key + 1 < end) both.set_bits(1, load_bits(of[half] + (key + 1) * stride));
      next[half][column] = both;
    }
  }

  // Times log2(e) where they are not PLAIN, so that 2^x takes the place of e^x.
  template <bool EDGE> DEVICE void scale(Scores<STEP>& scores, int first_key, int end) const {
    UNROLLED for (int half = 0; half < 2; ++half) UNROLLED for (int column = 0; column < STEP / 8; ++column) {
      const int key = first_key + column * 8 + (int)thread_index() % 4 * 2;
      UNROLLED for (int i = 0; i < 2; ++i) {
        float& score = scores.of[0][column][half * 2 + i];
        if (!SCALED_LATE) score = score * SCORE_UNIT + (BIAS == NONE ? 0.0f : next[half][column].get(i) * ADDED_UNIT);
        if (EDGE) score = key + i < end ? score : lowest();
      }
    }
  }
};

using Pipeline = AsyncPipeline<WarpScope, STAGES, STAGES>;

DEVICE void attend_keys(Rows& rows, SharedAddress ring, const Both& from, Biases& bias, int first, int end) {
  constexpr int STRIDE = WARPS * STEP;
  UNROLLED for (int stage = 0; stage < FILLED; ++stage)
      fetch_step<Pipeline, 32>(ring + stage * 2 * STEP_BYTES, from.k, from.v, first + stage * STRIDE, end);
  bias.load_from(first, end);
  Pipeline::State consumer;
  for (int key = first; key < end; key += STRIDE) {
    Pipeline::producer_acquire();
    if constexpr (!WHOLE)
      fetch_step<Pipeline, 32>(ring + consumer.previous() * 2 * STEP_BYTES, from.k, from.v, key + FILLED * STRIDE, end);
    Pipeline::consumer_wait(consumer);
    const Biases now = bias;
    bias.load_from(key + STRIDE, end);
    const SharedAddress stage = ring + consumer.stage * 2 * STEP_BYTES;
    if (key + STEP > end) attend_step<true>(rows, stage, now, key, end);
    else attend_step<false>(rows, stage, now, key, end);
    if (GROWS && from.kept) {  // nobody waits for these writes
      keep_rows(from.k, stage, key, end);
      keep_rows(from.v, stage + STEP_BYTES, key, end);
    }
    Pipeline::consumer_release(consumer);
    if constexpr (WHOLE) fetch_step<Pipeline, 32>(stage, from.k, from.v, key + FILLED * STRIDE, end);
    consumer.advance();
  }
}

// ---- what warps and blocks have found

using Seen = SeenExtremes<EXTREMES>;

DEVICE void give(E* y, const Piece& all, int row, int column, const Place& at, const Parameters& p, Seen& extremes) {
  const float share = all.sum == 0.0f && (SAFE || p.keys == 0) ? 0.0f : reciprocal_fast(all.sum);
  const float value[2] = {all.y.at[0] * share, all.y.at[1] * share};
  UNROLLED for (int i = 0; i < 2; ++i) extremes.take(value[i]);
  E* to = y + Row(at, row).offset<Y_HEADS_FIRST>(p.queries) + column;
  if constexpr (ALIGNED) {
    store_values<2>(to, value);
  } else {
    UNROLLED for (int i = 0; i < 2; ++i) {
      const float one[1] = {value[i]};
      store_values<1>(to + i, one);
    }
  }
}

// What the block reads of the cache, on its way to the L2 cache while the kernel ahead ends.
template <int STRIDE, bool HEADS_FIRST>
DEVICE void bring_rows_near(const E* past, const Place& at, const Parameters& p) {
  const int end = at.end < (int)p.past ? at.end : (int)p.past;
  if (GROWS && ALIGNED && STRIDE == SIZE && SIZE % PER_UNIT == 0 && at.first_key < end)
    bring_run_near(past + start_of<HEADS_FIRST>(at, p.past) + at.first_key * (long long)SIZE,
                   (end - at.first_key) * SIZE * (int)sizeof(E));
}
DEVICE void bring_cache_near(const Pointers& pointers, const Parameters& p) {
  const Place at = place(p);
  if (at.first != 0) return;
  if (thread_index() == 0) bring_rows_near<K_ROW, K_HEADS_FIRST>(pointers.k, at, p);
  if (thread_index() == 32) bring_rows_near<V_ROW, V_HEADS_FIRST>(pointers.v, at, p);
}

DEVICE void attend(const Pointers& pointers, const Parameters& p) {
  OWN_DYNAMIC_SHARED(unsigned, shared_words, WARPS* KEPT / 4);
  const Place at = place(p);
  const int warp = thread_index() / 32;
  Rows rows;
  Biases bias = {{}, p.bias_key, {}};
  UNROLLED for (int half = 0; half < 2; ++half) {
    const Row row(at, (int)thread_index() % 32 / 4 + half * 8);
    load_query(rows, 0, half, pointers.q + row.offset<Q_HEADS_FIRST>(p.queries));
    if constexpr (BIAS != NONE) bias.of[half] = pointers.bias + row.bias(p);
  }
  clear(rows);
  const Both both = {sequence<K_ROW, K_HEADS_FIRST>(pointers.k, pointers.k_new, pointers.k_all, at, p),
                     sequence<V_ROW, V_HEADS_FIRST>(pointers.v, pointers.v_new, pointers.v_all, at, p), at.first == 0};
  attend_keys(rows, shared_address(shared_words) + warp * KEPT, both, bias, at.first_key + warp * STEP, at.end);
  wait_for_block();  // nobody reads keys any more
  Seen extremes;
  meet(rows, (Record*)(shared_words + 0), {at.rows, at.part, (unsigned)p.parts, at.record}, pointers.scratch,
       p.counters, [&](const Piece& all, int row, int column) { give(pointers.y, all, row, column, at, p, extremes); });
  extremes.leave_of_warp(pointers.scratch, block_index() * WARPS + warp);
}
