// y = softmax(q k^T * scale + bias) v of few queries, as in a step of decoding beside its cache
//
// q [batch, HEADS, queries, SIZE], k and v [batch, HEADS / GROUP, keys, SIZE], y as q, each with strides of its own along
// all but the last axis; bias broadcast to [batch, HEADS, queries, keys]. 16-bit types and float32. Accuracy: as the
// kernel of streamed.cu; what warps and blocks have found meets in float, in an order that never changes.
//
// The memory's speed is the limit: all queries that read a head of keys are rows of one product, so that its keys and
// values are read once for 16 of them, and `parts` blocks share its keys, if SPLIT. A warp takes every WARPS-th step of STEP of its
// block's keys, through STAGES places of its own in shared memory: no warp waits for another one before the end. There
// the warps' rows meet in shared memory, and the blocks' in `scratch`: the last block to come takes them all (Dao et al.,
// Flash-Decoding, 2023). It holds a counter for each 16 rows of a head of keys, 0 before and after a launch, then Record
// after Record.

struct Parameters {
  long long queries, keys;
  long long span, parts;  // keys of a block; blocks that share those of a head
  long long tiles;        // of 16 rows
  long long counters;     // words of scratch before the records
  long long bias_batch, bias_head, bias_query, bias_key;  // elements
};

constexpr int GROUP = K_GROUP, MANY = HEADS / GROUP;  // heads of keys
constexpr int KEPT = STAGES * 2 * STEP_BYTES;         // bytes of a warp

// 16 rows before they are divided by the sum of their weights.
struct alignas(16) Record {
  float y[16][SIZE + 8];  // eight rows begin in different banks
  float highest[16], sum[16];
};
static_assert(WARPS * (int)sizeof(Record) <= WARPS * KEPT, "the rows of all warps take the place of their keys");

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

template <bool HEADS_FIRST> DEVICE long long start_of(const Place& at, long long keys) {
  return HEADS_FIRST ? (at.batch * MANY + at.head) * keys * SIZE : (at.batch * keys * MANY + at.head) * SIZE;
}

// ---- a step of a warp

struct Biases {
  const E* of[2];  // of this lane's two rows
  long long stride;
};

// Times log2(e) where they are not PLAIN, so that 2^x takes the place of e^x.
template <bool EDGE> DEVICE void scale_scores(Scores<STEP>& scores, const Biases& bias, int first_key, int end) {
  UNROLLED for (int half = 0; half < 2; ++half)
    UNROLLED for (int column = 0; column < STEP / 8; ++column) {
      const int key = first_key + column * 8 + (int)thread_index() % 4 * 2;
      Pair added = {};
      if constexpr (BIAS != NONE) added = load_bias<EDGE>(bias.of[half] + key * bias.stride, bias.stride, false, key, end);
      UNROLLED for (int i = 0; i < 2; ++i) {
        float& score = scores.of[0][column][half * 2 + i];
        if (!SCALED_LATE) score = score * SCORE_UNIT + added.at[i];
        if (EDGE) score = key + i < end ? score : lowest();
      }
    }
}

// Of keys, and of their values behind them.
template <bool EDGE>
DEVICE void attend_step(Rows& rows, SharedAddress keys, const Biases& bias, int first_key, int end) {
  const int groups = groups_of<EDGE>(first_key, end);
  Scores<STEP> scores = {};
  multiply_keys<EDGE>(scores, rows, keys, keys, groups);
  if (EDGE || !SCALED_LATE) scale_scores<EDGE>(scores, bias, first_key, end);
  weigh<false>(scores, rows);
  multiply_values<EDGE>(rows, scores, keys + STEP_BYTES, groups);
}

DEVICE void fetch_step(SharedAddress to, const E* k, const E* v, int first_key, int end) {
  if (first_key < end) {
    fetch_rows<K_ROW, STEP, 32>(to, k, first_key, end);
    fetch_rows<V_ROW, STEP, 32>(to + STEP_BYTES, v, first_key, end);
  }
  close_group_of_copies();
}

DEVICE void attend_keys(Rows& rows, SharedAddress mine, const E* k, const E* v, const Biases& bias, int first, int end) {
  constexpr int STRIDE = WARPS * STEP;
  UNROLLED for (int stage = 0; stage < STAGES - 1; ++stage)
    fetch_step(mine + stage * 2 * STEP_BYTES, k, v, first + stage * STRIDE, end);
  for (int key = first, stage = 0; key < end; key += STRIDE, stage = stage + 1 == STAGES ? 0 : stage + 1) {
    const int ahead = stage == 0 ? STAGES - 1 : stage - 1;  // the place that was multiplied last
    wait_for_warp();
    fetch_step(mine + ahead * 2 * STEP_BYTES, k, v, key + (STAGES - 1) * STRIDE, end);
    wait_for_copies<STAGES - 1>();
    wait_for_warp();
    const SharedAddress here = mine + stage * 2 * STEP_BYTES;
    if (key + STEP > end) attend_step<true>(rows, here, bias, key, end);
    else attend_step<false>(rows, here, bias, key, end);
  }
}

// ---- what warps and blocks have found

// Where the i-th one of a lane's two elements of a column of eight stands in its row; see rows.cuh.
template <class T> DEVICE int element(int column, int i, T*) { return column * 8 + (int)thread_index() % 4 * 2 + i; }
DEVICE int element(int column, int i, float*) {
  return column / AT_ONCE * AT_ONCE * 8 + (int)thread_index() % 4 * (2 * AT_ONCE) + i * AT_ONCE + column % AT_ONCE;
}

DEVICE void leave(Record& record, const Rows& rows) {
  UNROLLED for (int half = 0; half < 2; ++half) {
    const int row = (int)thread_index() % 32 / 4 + half * 8;
    UNROLLED for (int column = 0; column < COLUMNS; ++column)
      UNROLLED for (int i = 0; i < 2; ++i)
        record.y[row][element(column, i, (E*)nullptr)] = rows.y[0][column][half * 2 + i];
    float sum = rows.sum[0][half];
    UNROLLED for (int distance = 1; distance <= 2; distance *= 2)
      sum += float_of_bits(exchange(bits_of_float(sum), distance));
    record.highest[row] = rows.highest[0][half];
    record.sum[row] = sum;
  }
}

// Two neighbours of a row.
struct Piece {
  Pair y;
  float highest, sum;
};

DEVICE Piece piece_of(const Record& record, int row, int column) {
  return {{record.y[row][column], record.y[row][column + 1]}, record.highest[row], record.sum[row]};
}

// Of so many records, in their order.
DEVICE Piece met(const Record* from, unsigned count, int row, int column) {
  constexpr float UNIT = SCALED_LATE ? SCALE : 1.0f;
  constexpr unsigned TOGETHER = 8;  // loads that wait together
  const Piece none = {{}, lowest(), 0.0f};
  Piece all = none;
  for (unsigned first = 0; first < count; first += TOGETHER) {
    Piece found[TOGETHER + 1];
    UNROLLED for (unsigned i = 0; i < TOGETHER; ++i)
      found[i] = first + i < count ? piece_of(from[first + i], row, column) : none;
    found[TOGETHER] = all;
    float highest = lowest();
    UNROLLED for (unsigned i = 0; i <= TOGETHER; ++i) highest = greater(highest, found[i].highest);
    const float base = highest == lowest() ? 0.0f : highest * UNIT;
    all = {{}, highest, 0.0f};
    UNROLLED for (unsigned i = 0; i <= TOGETHER; ++i) {
      const float share = power(found[i].highest, base);
      all.sum += found[i].sum * share;
      UNROLLED for (int e = 0; e < 2; ++e) all.y.at[e] += found[i].y.at[e] * share;
    }
  }
  return all;
}

// What `work` does with each piece of the block's rows.
template <class Work> DEVICE void for_pieces(const Place& at, Work work) {
  for (int i = thread_index(); i < at.rows * (SIZE / 2); i += THREADS) work(i / (SIZE / 2), i % (SIZE / 2) * 2);
}

DEVICE void give(E* y, const Record* found, unsigned count, const Place& at, const Parameters& p) {
  for_pieces(at, [&](int row, int column) {
    const Piece all = met(found, count, row, column);
    const float share = all.sum == 0.0f && (SAFE || p.keys == 0) ? 0.0f : reciprocal_fast(all.sum);
    const float value[2] = {all.y.at[0] * share, all.y.at[1] * share};
    E* to = y + Row(at, row).offset<Y_HEADS_FIRST>(p.queries) + column;
    if constexpr (ALIGNED) {
      store_values<2>(to, value);
    } else {
      UNROLLED for (int i = 0; i < 2; ++i) {
        const float one[1] = {value[i]};
        store_values<1>(to + i, one);
      }
    }
  });
}

DEVICE void attend(const Pointers& pointers, const Parameters& p) {
  DYNAMIC_SHARED(unsigned, shared_words, WARPS * KEPT / 4);
  const Place at = place(p);
  const int warp = thread_index() / 32;
  Rows rows;
  Biases bias = {{}, p.bias_key};
  UNROLLED for (int half = 0; half < 2; ++half) {
    const Row row(at, (int)thread_index() % 32 / 4 + half * 8);
    load_query(rows, 0, half, pointers.q + row.offset<Q_HEADS_FIRST>(p.queries));
    if constexpr (BIAS != NONE) bias.of[half] = pointers.bias + row.bias(p);
  }
  clear(rows);
  attend_keys(rows, shared_address(shared_words) + warp * KEPT, pointers.k + start_of<K_HEADS_FIRST>(at, p.keys),
              pointers.v + start_of<V_HEADS_FIRST>(at, p.keys), bias, at.first_key + warp * STEP, at.end);
  wait_for_block();  // nobody reads keys any more
  Record* const found = (Record*)shared_words;
  leave(found[warp], rows);
  wait_for_block();
  if constexpr (SPLIT) {
    Record* const all = (Record*)(pointers.scratch + p.counters) + at.record * p.parts;
    for_pieces(at, [&](int row, int column) {
      const Piece piece = met(found, WARPS, row, column);
      Record& mine = all[at.part];
      UNROLLED for (int e = 0; e < 2; ++e) mine.y[row][column + e] = piece.y.at[e];
      if (column == 0) mine.highest[row] = piece.highest, mine.sum[row] = piece.sum;
    });
    if (last_to_come(pointers.scratch + at.record, (unsigned)p.parts)) give(pointers.y, all, (unsigned)p.parts, at, p);
  } else {
    give(pointers.y, found, WARPS, at, p);
  }
}
