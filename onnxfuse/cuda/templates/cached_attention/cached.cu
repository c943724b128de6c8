// y = softmax(q k^T * scale) v of new tokens, each over itself and the tokens before it, and the KV cache with them: what
// GroupQueryAttention of ONNX Runtime computes
//
// q [batch, queries, HEADS * SIZE], k and v [batch, queries, MANY * SIZE], or all three in one, Q_ROW_ELEMENTS and
// KV_ROW elements from token to token; past_k and past_v [batch, MANY, past, SIZE], present_k and present_v [batch,
// MANY, present, SIZE]; lengths [batch]: the number of a row's last token, among those in the cache and the new ones. What
// is behind it pads a prompt: it is put into the caches, no query sees it, and its own queries see the row's tokens.
// `total`: the most tokens of a row, by which blocks are counted and no key: a CUDA graph is right for the lengths in
// memory, whatever the total was at its capture. A key of a token: with NORM divided
// by its root mean square and multiplied by k_norm, then its first 2 * HALF elements rotated by the token's number,
// rows of cos and sin [.., HALF]; queries likewise. WINDOW: a token sees that many, itself one of them; 0: all. CAPPED:
// scores go through CAP * tanh(. / CAP). SINK: sink[head], or 0 (SMOOTH), is one more score, of nothing. 16-bit types
// and float32. Accuracy: as attention/few.cu.
//
// Present and past may be the same memory, the buffer of a session: then new keys and values are written behind those
// that it has, and nothing else. Where they are not, past tokens are copied, and what is behind the last token is
// zeros. No block reads what another one writes: new keys are read as they come, each block rotates those that it
// meets.
//
// Blocks, warps and stages are those of attention/few.cu (Dao et al., Flash-Decoding, 2023). Where the tokens end is in
// `lengths`: the parts of a row share its own keys.

constexpr int KEPT = bytes_of_warp();  // the rows of all warps take the place of their keys

struct Place {
  long long batch, head;  // of keys
  int first, rows;        // its first row, and those that there are from it on
  int before, tokens;     // in the cache, and in all
  int first_key, end;     // of this part
  unsigned part, record;
};

DEVICE unsigned head_of(const Parameters& p) { return block_index() / (unsigned)p.parts / (unsigned)p.tiles; }

// `before` and `tokens`: of the row.
DEVICE Place place(const Parameters& p, int before, int tokens) {
  const unsigned parts = (unsigned)p.parts, tiles = (unsigned)p.tiles, record = block_index() / parts;
  const unsigned part = block_index() % parts, tile = record % tiles, head = head_of(p);
  const int first = (int)tile * 16, left = (int)p.queries * GROUP - first, rows = left < 16 ? left : 16;
  const int begin = begin_of(before, first / GROUP), seen = end_of(before, (first + rows - 1) / GROUP, tokens);
  const int end = seen > begin ? seen : begin;  // padding may see nothing through its window
  const int at_once = WARPS * STEP, span = ((end - begin - 1) / ((int)parts * at_once) + 1) * at_once;
  const int from = begin + (int)part * span, to = from + span;
  return {head / MANY,         head % MANY, first, rows, before, tokens, from < end ? from : end,
          to < end ? to : end, part,        record};
}

// A row: one query of one head. Behind the last row the last one again.
struct Row {
  int head, query;

  DEVICE Row(const Place& at, int row) {
    const int number = at.first + (row < at.rows ? row : at.rows - 1);
    head = (int)at.head * GROUP + number % GROUP;
    query = number / GROUP;
  }
};

// The row that begins at a byte of shared memory.
DEVICE Word* row_at(unsigned* shared, int byte) { return (Word*)((char*)shared + byte); }

// ---- keys and values

// The keys or the values of a head: those of the cache, and the new ones behind them.
struct Sequence {
  using Element = E;
  const E *cache, *fresh;
  int before;

  DEVICE const E* operator()(int row) const {
    return row < before ? cache + row * (long long)SIZE : fresh + (row - before) * (long long)KV_ROW;
  }
};

DEVICE Sequence sequence(const E* cache, const E* fresh, const Place& at, const Parameters& p) {
  return {cache + (at.batch * MANY + at.head) * p.past * SIZE, fresh + at.batch * p.queries * KV_ROW + at.head * SIZE,
          at.before};
}

struct Both { Sequence k, v; };

// ---- a step of a warp

using Pipeline = AsyncPipeline<WarpScope, STAGES, STAGES>;

// New keys of a step become what the cache has of them.
DEVICE void turn_keys(unsigned* shared, int stage, const Place& at, int first_key, const E* norm,
                      const Tables& tables) {
  if constexpr (TURNS) {
    const int end = first_key + STEP < at.end ? first_key + STEP : at.end;
    for (int key = first_key < at.before ? at.before : first_key; key < end; ++key) {
      Word* const row = row_at(shared, stage + (key - first_key) * ROW_BYTES);
      turn(
          key, norm, tables, [&](int i) { return decode(row[i], (E*)nullptr); },
          [&](int i, Word bits) { row[i] = bits; });
    }
    wait_for_warp();
  }
}

DEVICE void attend_keys(Rows& rows, unsigned* shared, int ring, const Both& from, const Seen& seen, const Place& at,
                        int first, const E* norm, const Tables& tables) {
  constexpr int STRIDE = WARPS * STEP;
  // Where all rows see all keys of a step.
  const int full_from = begin_of(at.before, (at.first + at.rows - 1) / GROUP),
            full_to = end_of(at.before, at.first / GROUP, at.tokens);
  Pipeline::State consumer;
  for (int key = first; key < at.end; key += STRIDE) {
    Pipeline::producer_acquire();
    if constexpr (!WHOLE)
      fetch_step<Pipeline, 32>(shared_address(shared) + ring + consumer.previous() * 2 * STEP_BYTES, from.k, from.v,
                               key + FILLED * STRIDE, at.end);
    Pipeline::consumer_wait(consumer);
    const int stage = ring + consumer.stage * 2 * STEP_BYTES;
    if (key + STEP > at.before) turn_keys(shared, stage, at, key, norm, tables);
    if (key + STEP > (full_to < at.end ? full_to : at.end) || key < full_from)
      attend_step<true>(rows, shared_address(shared) + stage, seen, key, at.end);
    else attend_step<false>(rows, shared_address(shared) + stage, seen, key, at.end);
    Pipeline::consumer_release(consumer);
    if constexpr (WHOLE)
      fetch_step<Pipeline, 32>(shared_address(shared) + stage, from.k, from.v, key + FILLED * STRIDE, at.end);
    consumer.advance();
  }
}

// ---- the queries of a block, and its part of the cache

DEVICE void turn_queries(unsigned* shared, int to, const E* q, const Place& at, const E* norm, const Tables& tables,
                         const Parameters& p) {
  for (int row = thread_index() / 32; row < 16; row += WARPS) {
    Word* const words = row_at(shared, to + row * ROW_BYTES);
    if (row < at.rows) {
      const Row own(at, row);
      const E* from = q + (at.batch * p.queries + own.query) * Q_ROW_ELEMENTS + own.head * SIZE;
      turn(
          at.before + own.query, norm, tables, [&](int i) { return load_1(from + i); },
          [&](int i, Word bits) { words[i] = bits; });
    }
    for (int i = (row < at.rows ? SIZE : 0) + (int)thread_index() % 32; i < PADDED; i += 32) words[i] = 0;
  }
}

DEVICE void load_queries(Rows& rows, SharedAddress from) {
  const PaddedFragments<FactorOf::LEFT, false, ROW_BYTES> left(StepRows{from});
  UNROLLED for (int k = 0; k < TERMS; ++k) {
    unsigned query[4];
    left.load(query, 0, k * 2);
    UNROLLED for (int i = 0; i < 4; ++i) rows.q[0][k][i] = Mma::operand(query[i]);
  }
}

// The blocks of the first rows of a head share its tokens.
DEVICE void put_tokens(const Pointers& pointers, const Place& at, const Parameters& p) {
  const bool moves = has_buffers_of_its_own(pointers);
  const int worker = (int)at.part * WARPS + thread_index() / 32, workers = (int)p.parts * WARPS;
  for (int token = worker; token < (moves ? p.present : p.queries); token += workers)
    put_token(pointers, at.batch, at.head, at.before, moves ? token : at.before + token, p);
}

DEVICE void give(const Pointers& pointers, const Piece& all, int row, int column, const Place& at,
                 const Parameters& p) {
  const Row own(at, row);
  const float share = share_beside(pointers.sink, own.head, all.highest, all.sum);
  const float value[2] = {all.y.at[0] * share, all.y.at[1] * share};
  E* to = pointers.y + ((at.batch * p.queries + own.query) * HEADS + own.head) * SIZE + column;
  if constexpr (ALIGNED) {
    store_values<2>(to, value);
  } else {
    UNROLLED for (int i = 0; i < 2; ++i) {
      const float one[1] = {value[i]};
      store_values<1>(to + i, one);
    }
  }
}

// What the block reads of the cache, on its way to the L2 cache while the kernel ahead ends: as of the longest row.
DEVICE void bring_cache_near(const Pointers& pointers, const Parameters& p) {
  if constexpr (ALIGNED && SIZE % PER_UNIT == 0) {
    const int before = before_of_all(p.total, p);
    const Place at = place(p, before, before + (int)p.queries);
    const int end = at.end < at.before ? at.end : at.before, thread = thread_index();
    if (at.first != 0 || at.first_key >= end || thread % 32 != 0 || thread > 32) return;
    bring_run_near((thread == 0 ? pointers.past_k : pointers.past_v) +
                       ((at.batch * MANY + at.head) * p.past + at.first_key) * SIZE,
                   (end - at.first_key) * SIZE * (int)sizeof(E));
  }
}

DEVICE void attend(const Pointers& pointers, const Parameters& p) {
  constexpr int RING = WARPS * KEPT;
  OWN_DYNAMIC_SHARED(unsigned, shared_words, (RING + 16 * ROW_BYTES) / 4);
  unsigned* const shared = shared_words + 0;
  const int* const length = pointers.lengths + head_of(p) / MANY;
  const int before = before_of(length, p);
  const Place at = place(p, before, tokens_of(length, before, p));
  const Tables tables = {pointers.cos, pointers.sin};
  const int warp = thread_index() / 32, first = at.first_key + warp * STEP;
  const Both both = {sequence(pointers.past_k, pointers.k + K_FIRST, at, p),
                     sequence(pointers.past_v, pointers.v + V_FIRST, at, p)};
  UNROLLED for (int stage = 0; stage < FILLED; ++stage)
      fetch_step<Pipeline, 32>(shared_address(shared) + warp * KEPT + stage * 2 * STEP_BYTES, both.k, both.v,
                               first + stage * WARPS * STEP, at.end);
  turn_queries(shared, RING, pointers.q, at, pointers.q_norm, tables, p);
  wait_for_block();
  Rows rows;
  load_queries(rows, shared_address(shared) + RING);
  clear(rows);
  Seen seen;
  UNROLLED for (int half = 0; half < 2; ++half) {
    const Row row(at, (int)thread_index() % 32 / 4 + half * 8);
    seen.begin[0][half] = begin_of(at.before, row.query);
    seen.end[0][half] = end_of(at.before, row.query, at.tokens);
  }
  attend_keys(rows, shared, warp * KEPT, both, seen, at, first, pointers.k_norm, tables);
  Pipeline::drain();
  wait_for_block();  // nobody reads keys any more
  meet(rows, (Record*)shared, {at.rows, at.part, (unsigned)p.parts, at.record}, pointers.scratch, p.counters,
       [&](const Piece& all, int row, int column) { give(pointers, all, row, column, at, p); });
  if (at.first == 0) put_tokens(pointers, at, p);
}
