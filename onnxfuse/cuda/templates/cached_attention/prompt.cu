// The formula of cached.cu for many new tokens, over caches that have them already (put.cu): a tile of queries goes over
// tiles of keys and values with an online softmax (Dao, FlashAttention-2, 2023). Operands as in cached.cu, accuracy as in
// attention/tiled.cu.
//
// A block takes WARPS * TILES * 16 queries of a head, each warp its own, over the keys that any of them sees, STEP at a
// time, through a pipeline of two stages. Steps that a warp's queries do not see are not multiplied, masks are for
// steps that begin or end within what its queries see. The last queries, which have the most keys, go first.

constexpr int STAGES = 2, OF_WARP = TILES * 16, ROWS = WARPS * OF_WARP;
constexpr int QUERY_ROW = TURNS ? HEADS * SIZE : Q_ROW_ELEMENTS;

struct Place {
  long long batch, head;
  int first, queries, before, tokens;
  int begin, end;  // of the keys that any query of the block sees
};

DEVICE Place place(const Parameters& p, const int* lengths) {
  const unsigned blocks = (unsigned)p.parts, part = block_index() / (unsigned)(p.batch * HEADS);
  const unsigned rest = block_index() % (unsigned)(p.batch * HEADS);
  const int first = (int)(blocks - 1 - part) * ROWS, queries = (int)p.queries;
  const int before = before_of(lengths + rest / HEADS, p), last = (first + ROWS < queries ? first + ROWS : queries) - 1;
  const int tokens = tokens_of(lengths + rest / HEADS, before, p), begin = begin_of(before, first);
  return {rest / HEADS, rest % HEADS, first, queries, before, tokens, begin, end_of(before, last, tokens)};
}

// Of a row behind the last one, the last one again.
DEVICE int row_of(const Place& at, int first, int tile, int half) {
  const int wanted = first + tile * 16 + (int)thread_index() % 32 / 4 + half * 8;
  return wanted < at.queries ? wanted : at.queries - 1;
}

using Pipeline = AsyncPipeline<BlockScope, STAGES>;

DEVICE void attend(const Pointers& pointers, const Parameters& p) {
  OWN_DYNAMIC_SHARED(unsigned, shared_words, STAGES * 2 * STEP_BYTES / 4);
  const SharedAddress ring = shared_address(shared_words);
  const Place at = place(p, pointers.lengths);
  const long long cache = (at.batch * MANY + at.head / GROUP) * p.present * SIZE;
  const Apart<E, SIZE, 0> k = {pointers.present_k + cache}, v = {pointers.present_v + cache};
  const E* const q = TURNS ? (const E*)(pointers.scratch + p.counters) : pointers.q;
  const int mine = at.first + (int)thread_index() / 32 * OF_WARP, last = mine + OF_WARP - 1;
  fetch_step<Pipeline, THREADS>(ring, k, v, at.begin, at.end);
  Rows rows;
  Seen seen;
  UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int half = 0; half < 2; ++half) {
    const int query = row_of(at, mine, tile, half);
    load_query(rows, tile, half, q + (at.batch * p.queries + query) * QUERY_ROW + at.head * SIZE);
    seen.begin[tile][half] = begin_of(at.before, query), seen.end[tile][half] = end_of(at.before, query, at.tokens);
  }
  clear(rows);
  // What the first query of the warp sees, and the last one: all between the second and the third number all of them do.
  const int begin = begin_of(at.before, mine),
            whole_from = begin_of(at.before, last < at.queries ? last : at.queries - 1);
  const int whole_to = end_of(at.before, mine, at.tokens),
            end = mine < at.queries ? end_of(at.before, last, at.tokens) : 0;
  for (int key = at.begin, stage = 0; key < at.end; key += STEP, stage ^= 1) {
    Pipeline::consumer_wait();
    fetch_step<Pipeline, THREADS>(ring + (stage ^ 1) * 2 * STEP_BYTES, k, v, key + STEP, at.end);
    const SharedAddress now = ring + stage * 2 * STEP_BYTES;
    if (key < end && key + STEP > begin) {
      if (key + STEP > whole_to || key < whole_from) attend_step<true>(rows, now, seen, key, at.end);
      else attend_step<false>(rows, now, seen, key, at.end);
    }
  }
  UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int half = 0; half < 2; ++half) {
    const int query = mine + tile * 16 + (int)thread_index() % 32 / 4 + half * 8;
    float sum = rows.sum[tile][half];
    UNROLLED for (int distance = 1; distance <= 2; distance *= 2) sum +=
        float_of_bits(exchange(bits_of_float(sum), distance));
    const float share = share_beside(pointers.sink, (int)at.head, rows.highest[tile][half], sum);
    E* const to = pointers.y + ((at.batch * p.queries + query) * HEADS + at.head) * SIZE;
    store_row(rows, tile, half, share, to, query < at.queries);
  }
}
