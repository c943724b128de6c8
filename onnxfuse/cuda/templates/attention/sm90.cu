// y = softmax(q k^T * scale + bias) v, head by head, of any number of queries and keys, on Hopper's tensor cores
//
// Operands, types of 16 bits and accuracy as in tiled.cu. A bias by query and key has rows that begin on boundaries of
// 16 bytes. No length stands in the text: one kernel is for all of them.
//
// A persistent, warp-specialized kernel (Shah et al., FlashAttention-3, 2024; online softmax: Milakov and Gimelshein, 2018).
// A block takes a tile, WARPGROUPS times 64 queries of a head, and then others. A warp behind the consumers is the producer:
// it loads a tile's queries, then keys and values STEP at a time through STAGES of shared memory (pipeline.cuh), and with
// them what is added to their scores, as far ahead of the products as there is room, the next tile's too. A consumer, a
// warpgroup, multiplies its queries with the keys, makes weights of the scores in its registers, and multiplies those from
// there with the values. AHEAD: the scores of the next step are multiplied meanwhile, and their weights made while this
// one's values are.
//
// Steps that hide all their keys from all queries are not loaded: what is added is HIDDEN or less, which leaves nothing to
// the exponential beside any key that is seen. So they are left out only where each query sees a key: of a bias by key
// behind the first step that shows one, of a bias by query and key as seen.cu found (SEEN). What is loaded for the other
// warpgroup alone a warpgroup skips.

struct Parameters {
  long long queries, keys;
  long long count, blocks;                                // tiles: of all heads, of one
  long long windows;                                      // of so many in a row each has a bias of its own
  long long pair_batch, pair_head;                        // not 0: of a bias by query and key, they have one each
  long long bias_batch, bias_head, bias_query, bias_key;  // elements, of one by key
  long long tiles, steps;                                 // of seen.cu: below each other, beside each other
};

constexpr int ROWS = WARPGROUPS * 64;                            // queries of a block
constexpr int PANELS = (SIZE + 63) / 64;                         // 64 columns of rows: 128 bytes, swizzled
constexpr int QUERY_PANEL = ROWS * 128, KEY_PANEL = STEP * 128;  // bytes
constexpr int QUERY_BYTES = PANELS * QUERY_PANEL, KEY_BYTES = PANELS * KEY_PANEL;
constexpr int BIAS_BYTES = BIAS == PER_PAIR ? (STEP + 63) / 64 * QUERY_PANEL : 0;
constexpr int STAGE_BYTES = 2 * KEY_BYTES + BIAS_BYTES;   // keys, values, bias
constexpr int PRODUCER_REGISTERS = BESIDE < 3 ? 40 : 32;  // of a thread
constexpr int CONSUMER_REGISTERS = consumer_registers(THREADS, BESIDE, WARPGROUPS, PRODUCER_REGISTERS);

struct Place {
  int batch, head;
  int first_query, queries, keys;
  int end;  // of the keys that any query of the block may see
};

DEVICE Place place(const Parameters& p, unsigned number) {
  const unsigned blocks = (unsigned)p.blocks, heads = (unsigned)p.count / blocks;
  // Under the causal mask the last queries have the most keys: the longest work of all heads first.
  const unsigned part = CAUSAL ? blocks - 1 - number / heads : number % blocks;
  const unsigned rest = CAUSAL ? number % heads : number / blocks;
  const int first = (int)part * ROWS;
  const int keys = (int)p.keys, queries = (int)p.queries;
  return {(int)(rest / HEADS),
          (int)(rest % HEADS),
          first,
          queries,
          keys,
          CAUSAL && first + ROWS < keys ? first + ROWS : keys};
}

// Which one of the biases for a batch, or for the windows of an image, is that of a tile.
DEVICE int window_of(const Place& at, const Parameters& p) { return WINDOWED ? at.batch % (int)p.windows : at.batch; }

using State = PipelineState<STAGES>;
using Tiles = PipelineState<QUERY_PLACES>;
constexpr int KEYS = 0, VALUES = 1;  // the parts of a stage, each full by itself

// Queries of a tile or two, stages of keys and values, what is added to the scores of a stage's keys, two words about each
// stage, barriers.
struct SharedMemory {
  unsigned query_tiles, stages, added, headers;
  TmaPipeline<STAGES, 2> steps;
  TmaPipeline<QUERY_PLACES> tiles;

  DEVICE SharedMemory() {
    query_tiles = (shared_address(dynamic_shared) + 1023) & ~1023u;
    stages = query_tiles + QUERY_PLACES * QUERY_BYTES;
    added = stages + STAGES * STAGE_BYTES;
    headers = added + (KEYED ? STAGES * STEP * 4 : 0);
    steps = {headers + STAGES * 8};
    tiles = {steps.barriers + steps.BARRIER_BYTES};
  }
  DEVICE unsigned queries(const Tiles& at) const { return query_tiles + at.stage * QUERY_BYTES; }
  DEVICE unsigned keys(const State& at) const { return stages + at.stage * STAGE_BYTES; }
  DEVICE unsigned values(const State& at) const { return keys(at) + KEY_BYTES; }
  DEVICE unsigned bias(const State& at) const { return values(at) + KEY_BYTES; }
  DEVICE unsigned header(const State& at) const { return headers + at.stage * 8; }
};

// What a stage holds.
struct Step {
  int first_key;  // below 0: there are no more
  unsigned how;   // bit w: warpgroup w sees nothing of it; PLAIN_STEP: nothing is added to any score

  DEVICE bool shows(int warpgroup) const { return !(how >> warpgroup & 1); }
};
constexpr unsigned PLAIN_STEP = 1u << 31;

// ---- the producer, a warp

DEVICE unsigned of_all_lanes(unsigned word) {
  UNROLLED for (int distance = 1; distance < 32; distance *= 2) word |= exchange(word, distance);
  return word;
}

// A panel of rows of a head.
template <bool HEADS_FIRST>
DEVICE void load_panel(unsigned to, const TensorMap* map, int panel, int row, int head, int batch, unsigned arrived) {
  if constexpr (HEADS_FIRST) tma_load<false>(to, map, panel * 64, row, head, batch, arrived, 0);
  else tma_load<false>(to, map, panel * 64, head, row, batch, arrived, 0);
}

// The bias of a step's keys, in the scores' unit: so far ahead of the products that nobody waits for it.
constexpr int BIASES = KEYED ? (STEP + 31) / 32 : 1;
struct KeyBias {
  float of[BIASES];
  bool shows;  // a key, in this lane

  DEVICE void load_from(const E* bias, int first, int keys, long long stride) {
    shows = false;
    UNROLLED for (int i = 0; i < BIASES; ++i) {
      const int key = first + i * 32 + (int)thread_index() % 32;
      const float added = key < keys ? load<1>(bias + key * stride).get(0) : lowest();
      shows |= !(added <= HIDDEN);
      of[i] = added * ADDED_UNIT;
    }
  }
  DEVICE void put(unsigned to) const {
    UNROLLED for (int i = 0; i < BIASES; ++i) {
      const int key = i * 32 + (int)thread_index() % 32;
      if (key < STEP) store_shared(to + key * 4, bits_of_float(of[i]));
    }
  }
};

// What is known of 32 steps, a bit for each.
struct Known {
  unsigned shows[WARPGROUPS];
  unsigned plain;
};

// What seen.cu has found of the queries of a block: of each step, for each warpgroup.
struct Findings {
  const Seen* of;    // of the first tile of 64 queries
  int steps, tiles;  // of a tile; that there are from this one on
  bool whole;        // each query sees a key: steps may be left out

  DEVICE Findings(const Pointers& pointers, const Place& at, const Parameters& p) {
    const int tile = at.first_query / 64, batch = p.pair_batch == 0 ? 0 : window_of(at, p);
    of = (const Seen*)pointers.scratch + (batch * p.tiles + tile) * p.steps;
    steps = (int)p.steps;
    tiles = (int)p.tiles - tile;
    unsigned hidden = 0;  // a query sees no key
    for (int w = 0; w < WARPGROUPS; ++w) {
      unsigned seen[2] = {};
      for (int step = thread_index() % 32; w < tiles && step < steps; step += 32) {
        const Seen found = read(of + w * steps + step);
        UNROLLED for (int half = 0; half < 2; ++half) seen[half] |= found.rows_of(half);
      }
      UNROLLED for (int half = 0; half < 2; ++half) {
        const int rows = at.queries - at.first_query - w * 64 - half * 32;
        const unsigned all = rows >= 32 ? ~0u : rows > 0 ? (1u << rows) - 1 : 0;
        hidden |= all & ~of_all_lanes(seen[half]);
      }
    }
    whole = hidden == 0;
  }

  // Of the 32 steps from this one on.
  DEVICE Known known(int first) const {
    Known all;
    const int step = first + (int)thread_index() % 32;
    bool plain = true;
    UNROLLED for (int w = 0; w < WARPGROUPS; ++w) {
      Seen found = {};
      if (w < tiles && step < steps) found = read(of + w * steps + step);
      if (w < tiles) plain &= found.is_plain();
      all.shows[w] = lanes_where(!whole || (found.rows_of(0) | found.rows_of(1)));
    }
    all.plain = lanes_where(plain);
    return all;
  }
};

struct NoFindings {
  DEVICE Known known(int) const { return {}; }
};
template <bool ANY> DEVICE auto findings_of(const Pointers& pointers, const Place& at, const Parameters& p) {
  if constexpr (ANY) return Findings(pointers, at, p);
  else return NoFindings{};
}

// Keys and values of a step, on their way to a stage that is free, and what is added to the scores.
DEVICE void load_step(const SharedMemory& shared, const TensorMaps& maps, const Place& at, const Parameters& p,
                      const State& state, const Step& step) {
  const bool biased = BIAS == PER_PAIR && !(step.how & PLAIN_STEP);
  const unsigned keys_full = shared.steps.full(state, KEYS), values_full = shared.steps.full(state, VALUES);
  const int batch = at.batch, key_head = at.head / K_GROUP, value_head = at.head / V_GROUP;
  shared.steps.producer_expect(state, KEY_BYTES + (biased ? BIAS_BYTES : 0), KEYS);
  UNROLLED for (int panel = 0; panel < PANELS; ++panel) load_panel<K_HEADS_FIRST>(
      shared.keys(state) + panel * KEY_PANEL, &maps.k, panel, step.first_key, key_head, batch, keys_full);
  if (biased) {
    const int of_batch = p.pair_batch == 0 ? 0 : window_of(at, p);
    const int of_head = p.pair_head == 0 ? 0 : at.head;
    UNROLLED for (int panel = 0; panel < (STEP + 63) / 64; ++panel)
        tma_load<false>(shared.bias(state) + panel * QUERY_PANEL, bias_map(maps), step.first_key + panel * 64,
                        at.first_query, of_head, of_batch, keys_full, 0);
  }
  shared.steps.producer_expect(state, KEY_BYTES, VALUES);
  UNROLLED for (int panel = 0; panel < PANELS; ++panel) load_panel<V_HEADS_FIRST>(
      shared.values(state) + panel * KEY_PANEL, &maps.v, panel, step.first_key, value_head, batch, values_full);
}

DEVICE void store_header(const SharedMemory& shared, const State& state, const Step& step) {
  store_shared(shared.header(state), (unsigned)step.first_key);
  store_shared(shared.header(state) + 4, step.how);
}

DEVICE void load_tile(const SharedMemory& shared, const TensorMaps& maps, const Pointers& pointers, const Place& at,
                      State& state, const Tiles& tile, const Parameters& p) {
  const bool first_lane = thread_index() % 32 == 0;
  const unsigned queries_full = shared.tiles.full(tile);
  shared.tiles.producer_acquire(tile);
  if (first_lane) {
    shared.tiles.producer_expect(tile, QUERY_BYTES);
    UNROLLED for (int panel = 0; panel < PANELS; ++panel)
        load_panel<Q_HEADS_FIRST>(shared.queries(tile) + panel * QUERY_PANEL, &maps.q, panel, at.first_query,
                                  at.head / Q_GROUP, at.batch, queries_full);
  }
  const E* added = nullptr;
  if constexpr (KEYED)
    added =
        (BIAS == PER_KEY ? pointers.bias : pointers.also) + (window_of(at, p) * p.bias_batch + at.head * p.bias_head);
  const auto findings = findings_of<SEEN>(pointers, at, p);
  Known known;
  bool shown = false;
  for (int first_key = 0; first_key < at.end; first_key += STEP) {
    Step step = {first_key, 0};
    UNROLLED for (int w = 0; w < WARPGROUPS; ++w) {
      const int first = at.first_query + w * 64;
      if (first >= at.queries || (CAUSAL && first_key >= first + 64)) step.how |= 1u << w;
    }
    KeyBias of_keys;
    if constexpr (KEYED) of_keys.load_from(added, first_key, at.keys, p.bias_key);
    if constexpr (BIAS == PER_KEY) {
      const bool shows = any_of_warp(of_keys.shows);
      if (!shows && shown) continue;
      shown |= shows;
    }
    if constexpr (SEEN) {
      const int number = first_key / STEP;
      if (number % 32 == 0) known = findings.known(number);
      UNROLLED for (int w = 0; w < WARPGROUPS; ++w) if (!(known.shows[w] >> number % 32 & 1)) step.how |= 1u << w;
      if (known.plain >> number % 32 & 1) step.how |= PLAIN_STEP;
    }
    if ((step.how & ((1u << WARPGROUPS) - 1)) == (1u << WARPGROUPS) - 1) continue;
    shared.steps.producer_acquire(state);
    if constexpr (KEYED) {
      of_keys.put(shared.added + state.stage * STEP * 4);
      wait_for_warp();
    }
    if (first_lane) {
      store_header(shared, state, step);
      load_step(shared, maps, at, p, state, step);
    }
    state.advance();
  }
  shared.steps.producer_acquire(state);
  if (first_lane) {
    store_header(shared, state, {-1, 0});
    shared.steps.producer_commit(state, KEYS);
    shared.steps.producer_commit(state, VALUES);  // the rounds of both are counted together
  }
  state.advance();
}

// ---- a consumer, a warpgroup

// This warp has read a stage, of steps or of tiles.
template <class Pipeline> DEVICE void release(const Pipeline& pipeline, const typename Pipeline::State& state) {
  wait_for_warp();
  pipeline.consumer_release(state);
}

// What the stage holds, once its keys are there.
DEVICE Step wait_for_keys(const SharedMemory& shared, const State& state) {
  shared.steps.consumer_wait(state, KEYS);
  unsigned header[2];
  load_shared(header, shared.header(state));
  return {(int)header[0], header[1]};
}

DEVICE void multiply_keys(Scores<STEP>& scores, unsigned queries, unsigned keys) {
  const unsigned long long left = descriptor(queries, 16, 1024), right = descriptor(keys, 16, 1024);
  wgmma_fence();
  UNROLLED for (int k = 0; k < TERMS; ++k) {
    wgmma(scores.of[0], advanced(left, k / 4 * QUERY_PANEL + k % 4 * 32),
          advanced(right, k / 4 * KEY_PANEL + k % 4 * 32), k > 0);
  }
  wgmma_commit();
}

struct Weights { unsigned of[STEP / 16][4]; };

DEVICE void round_all(Weights& weights, const Scores<STEP>& scores) {
  UNROLLED for (int group = 0; group < STEP / 16; ++group) {
    unsigned weight[1][4];
    round_weights(weight, scores, group, (E*)nullptr);
    UNROLLED for (int i = 0; i < 4; ++i) weights.of[group][i] = weight[0][i];
  }
}

DEVICE void multiply_values(Rows& rows, const Weights& weights, unsigned values) {
  const unsigned long long right = descriptor(values, KEY_PANEL, 1024);
  wgmma_fence();
  UNROLLED for (int group = 0; group < STEP / 16; ++group)
      wgmma(rows.y[0], weights.of[group], advanced(right, group * 2048), 1);
  wgmma_commit();
}

// Times log2(e) where they are not PLAIN, so that 2^x takes the place of e^x.
DEVICE void scale_scores(Scores<STEP>& scores, const SharedMemory& shared, const State& state, const Step& step,
                         int row_of_block) {
  const int lane = thread_index() % 32;
  UNROLLED for (int column = 0; column < (SCALED_LATE ? 0 : STEP / 8); ++column) {
    unsigned added[2] = {};
    if constexpr (KEYED) load_shared(added, shared.added + (state.stage * STEP + column * 8 + lane % 4 * 2) * 4);
    UNROLLED for (int i = 0; i < 4; ++i) {
      float& score = scores.of[0][column][i];
      score = KEYED ? score * SCORE_UNIT + float_of_bits(added[i % 2]) : score * SCORE_UNIT;
    }
  }
  if (BIAS == PER_PAIR && !(step.how & PLAIN_STEP)) {
    UNROLLED for (int group = 0; group < STEP / 16; ++group) {
      unsigned word[4];
      const int row = row_of_block + lane % 16, piece = group * 2 + lane / 16;
      load_matrices<false>(word, shared.bias(state) + piece / 8 * QUERY_PANEL + swizzled(row, piece % 8));
      UNROLLED for (int part = 0; part < 4; ++part) {
        Pack<E, 2> both;
        both.word(0) = word[part];
        UNROLLED for (int i = 0; i < 2; ++i) scores.of[0][2 * group + part / 2][part % 2 * 2 + i] +=
            both.get(i) * ADDED_UNIT;
      }
    }
  }
}

// Keys behind the last one, and those behind a query under the causal mask, do not count.
DEVICE void hide_keys(Scores<STEP>& scores, const Place& at, int first_key, int first_row) {
  const int lane = thread_index() % 32;
  UNROLLED for (int column = 0; column < STEP / 8; ++column) UNROLLED for (int i = 0; i < 4; ++i) {
    const int key = first_key + column * 8 + lane % 4 * 2 + i % 2, query = first_row + lane / 4 + i / 2 * 8;
    float& score = scores.of[0][column][i];
    score = key < at.keys && (!CAUSAL || key <= query) ? score : lowest();
  }
}

// As seldom as a greater score has come for some row of the warp: 32 products less of a step of heads of 64.
DEVICE void shrink_if_needed(Rows& rows, const Shrinking& shrinking) {
  if (any_of_warp(shrinking.by[0][0] != 1.0f || shrinking.by[0][1] != 1.0f)) shrink(rows, shrinking);
}

struct OfWarp {
  int warpgroup;
  int row;    // its first one, of the block
  int query;  // the same, of all
};

DEVICE Shrinking weigh_step(Scores<STEP>& scores, Rows& rows, const SharedMemory& shared, const Place& at,
                            const OfWarp& mine, const State& state, const Step& step) {
  fence_registers(scores.of[0]);
  scale_scores(scores, shared, state, step, mine.row);
  const int after = step.first_key + STEP;
  if ((!KEYED && after > at.keys) || (CAUSAL && after > mine.query + 1))
    hide_keys(scores, at, step.first_key, mine.query);
  return weigh_ahead<false>(scores, rows);
}

DEVICE void attend_tile(Rows& rows, const SharedMemory& shared, const Place& at, const OfWarp& mine, State& state,
                        const Tiles& tile) {
  const unsigned queries = shared.queries(tile) + mine.warpgroup * 64 * 128;
  clear(rows);
  shared.tiles.consumer_wait(tile);
  for (;; state.advance()) {
    Step step = wait_for_keys(shared, state);
    if (step.first_key < 0) break;
    if (!step.shows(mine.warpgroup)) {
      release(shared.steps, state);
      continue;
    }
    Scores<STEP> scores;
    multiply_keys(scores, queries, shared.keys(state));
    wgmma_wait<0>();
    shrink_if_needed(rows, weigh_step(scores, rows, shared, at, mine, state, step));
    Weights weights;
    round_all(weights, scores);
    while (AHEAD) {
      State next = state;
      next.advance();
      step = wait_for_keys(shared, next);
      if (step.first_key < 0 || !step.shows(mine.warpgroup)) break;
      shared.steps.consumer_wait(state, VALUES);
      multiply_keys(scores, queries, shared.keys(next));
      multiply_values(rows, weights, shared.values(state));
      wgmma_wait<1>();
      const Shrinking shrinking = weigh_step(scores, rows, shared, at, mine, next, step);
      // What was waited for already: the compiler would put the wait behind it before the weights, beside which products run.
      fence_registers(scores.of[0]);
      shared.steps.consumer_wait(state, VALUES);
      wgmma_wait<0>();
      fence_registers(rows.y[0]);
      fence_registers(weights.of);
      release(shared.steps, state);
      shrink_if_needed(rows, shrinking);
      round_all(weights, scores);
      state = next;
    }
    shared.steps.consumer_wait(state, VALUES);
    multiply_values(rows, weights, shared.values(state));
    wgmma_wait<0>();
    fence_registers(rows.y[0]);
    fence_registers(weights.of);
    release(shared.steps, state);
  }
  release(shared.steps, state);
  release(shared.tiles, tile);
  state.advance();
}

// ---- the whole

// Where the matrix of a head begins.
template <bool HEADS_FIRST, int GROUP> DEVICE long long start_of(const Place& at, int rows) {
  constexpr int MANY = HEADS / GROUP;
  const long long head = at.head / GROUP, batch = at.batch;
  return HEADS_FIRST ? (batch * MANY + head) * rows * SIZE : (batch * rows * MANY + head) * SIZE;
}

DEVICE void store_rows(const Rows& rows, E* y, const Place& at, int first) {
  UNROLLED for (int half = 0; half < 2; ++half) {
    const int row = first + (int)thread_index() % 32 / 4 + half * 8;
    const float share = share_of(rows, 0, half, SAFE);
    store_row(rows, 0, half, share, y + row * (long long)Y_ROW, row < at.queries);
  }
}

DEVICE void attend(const Pointers& pointers, const TensorMaps& maps, const Parameters& p) {
  const SharedMemory shared;
  if (thread_index() == 0) {
    shared.steps.init(4 * WARPGROUPS);
    shared.tiles.init(4 * WARPGROUPS);
    fence_mbarrier_init();
  }
  if (thread_index() == WARPGROUPS * WARPGROUP) prefetch_tensor_maps(maps);
  join_stream();
  wait_for_block();
  State state;
  Tiles tile;
  const unsigned count = (unsigned)p.count;
  if (thread_index() >= WARPGROUPS * WARPGROUP) {
    decrease_registers<PRODUCER_REGISTERS>();
    if (thread_index() < WARPGROUPS * WARPGROUP + 32)
      for (unsigned number = block_index(); number < count; number += last_block() + 1, tile.advance())
        load_tile(shared, maps, pointers, place(p, number), state, tile, p);
    return;
  }
  increase_registers<CONSUMER_REGISTERS>();
  const int warp = thread_index() / 32;
  for (unsigned number = block_index(); number < count; number += last_block() + 1, tile.advance()) {
    const Place at = place(p, number);
    const OfWarp mine = {warp / 4, warp * 16, at.first_query + warp * 16};
    Rows rows;
    attend_tile(rows, shared, at, mine, state, tile);
    store_rows(rows, pointers.y + start_of<Y_HEADS_FIRST, Y_GROUP>(at, at.queries), at, mine.query);
  }
}
