// y = softmax(q k^T * scale + bias) v, head by head, of any number of queries and keys, on Hopper's tensor cores
//
// Operands, types of 16 bits and accuracy as in streamed.cu. A bias by query and key has rows that begin on boundaries of
// 16 bytes. No length stands in the text: one kernel is for all of them.
//
// A block takes WARPGROUPS times 64 queries of a head, a tile, and then others. Of one warpgroup more a warp fetches: the
// queries of a tile, then keys and values STEP at a time through a ring of STAGES in shared memory, and with them what is
// added to their scores, as far ahead of the products as there is room, the next tile's too. A warpgroup multiplies
// its queries with the keys, makes weights of the scores in its registers, and multiplies those from there with the
// values (Shah et al., FlashAttention-3, 2024). AHEAD: the scores of the next step are multiplied meanwhile, and
// their weights made while this one's values are.
//
// Steps that hide all their keys from all queries are not fetched: what is added is HIDDEN or less, which leaves nothing to
// the exponential beside any key that is seen. So they are left out only where each query sees a key: of a bias by key
// behind the first step that shows one, of a bias by query and key as seen.cu found (SEEN). What is fetched for the other
// warpgroup alone a warpgroup lets pass.

struct Parameters {
  long long queries, keys;
  long long count, blocks;              // tiles: of all heads, of one
  long long windows;                    // of so many in a row each has a bias of its own
  long long pair_batch, pair_head;      // not 0: of a bias by query and key, they have one each
  long long bias_batch, bias_head, bias_query, bias_key;  // elements, of one by key
  long long tiles, steps;               // of seen.cu: below each other, beside each other
};

constexpr int ROWS = WARPGROUPS * 64;                       // queries of a block
constexpr int PANELS = (SIZE + 63) / 64;                    // 64 columns of rows: 128 bytes, swizzled
constexpr int QUERY_PANEL = ROWS * 128, KEY_PANEL = STEP * 128;  // bytes
constexpr int QUERY_BYTES = PANELS * QUERY_PANEL, KEY_BYTES = PANELS * KEY_PANEL;
constexpr int BIAS_BYTES = BIAS == PER_PAIR ? (STEP + 63) / 64 * QUERY_PANEL : 0;
constexpr int STAGE_BYTES = 2 * KEY_BYTES + BIAS_BYTES;     // keys, values, bias
constexpr int FETCHER_REGISTERS = BESIDE < 3 ? 40 : 32;
// What 65536 registers leave: of a thread at first, and once the fetching warpgroup has given its own back.
constexpr int LAUNCHED_REGISTERS = 65536 / (THREADS * BESIDE) / 8 * 8;
constexpr int REGISTERS = (THREADS * LAUNCHED_REGISTERS - 128 * FETCHER_REGISTERS) / (WARPGROUPS * 128) / 8 * 8;

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
  return {(int)(rest / HEADS), (int)(rest % HEADS), first, queries, keys, CAUSAL && first + ROWS < keys ? first + ROWS : keys};
}

// Which one of the biases for a batch, or for the windows of an image, is that of a tile.
DEVICE int window_of(const Place& at, const Parameters& p) {
  return WINDOWED ? at.batch % (int)p.windows : at.batch;
}

// Shared memory: queries of a tile or two, the ring, what is added to the scores of a stage's keys, two words about it, barriers.
struct Room {
  unsigned queries, ring, added, told, keys_there, values_there, empty, queries_there, queries_read;

  DEVICE Room() {
    queries = (shared_address(dynamic_shared) + 1023) & ~1023u;
    ring = queries + QUERY_PLACES * QUERY_BYTES;
    added = ring + STAGES * STAGE_BYTES;
    told = added + (KEYED ? STAGES * STEP * 4 : 0);
    keys_there = told + STAGES * 8;
    values_there = keys_there + STAGES * 8;
    empty = values_there + STAGES * 8;
    queries_there = empty + STAGES * 8;
    queries_read = queries_there + QUERY_PLACES * 8;
  }
  DEVICE unsigned keys(int stage) const { return ring + stage * STAGE_BYTES; }
  DEVICE unsigned values(int stage) const { return keys(stage) + KEY_BYTES; }
  DEVICE unsigned bias(int stage) const { return values(stage) + KEY_BYTES; }
};

// Of PLACES in a circle one, and whether the rounds before are an odd number.
template <int PLACES> struct Circle {
  int at = 0;
  unsigned parity = 0;

  DEVICE void next() {
    if (++at == PLACES) {
      at = 0;
      parity ^= 1;
    }
  }
};
using Turn = Circle<STAGES>;
using Tiles = Circle<QUERY_PLACES>;

// What a stage holds.
struct Step {
  int first_key;  // below 0: there are no more
  unsigned how;   // bit w: warpgroup w sees nothing of it; PLAIN_STEP: nothing is added to any score

  DEVICE bool shows(int warpgroup) const { return !(how >> warpgroup & 1); }
};
constexpr unsigned PLAIN_STEP = 1u << 31;

// ---- fetching, by one warp

DEVICE unsigned of_all_lanes(unsigned word) {
  UNROLLED for (int distance = 1; distance < 32; distance *= 2) word |= exchange(word, distance);
  return word;
}

// A panel of rows of a head.
template <bool HEADS_FIRST>
DEVICE void fetch_panel(unsigned to, const TensorMap* map, int panel, int row, int head, int batch, unsigned arrived) {
  if constexpr (HEADS_FIRST) fetch_box<false>(to, map, panel * 64, row, head, batch, arrived, 0);
  else fetch_box<false>(to, map, panel * 64, head, row, batch, arrived, 0);
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
  const Seen* of;  // of the first tile of 64 queries
  int steps, tiles;  // of a tile; that there are from this one on
  bool whole;      // each query sees a key: steps may be left out

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
DEVICE void fetch_step(const Room& room, const TensorMaps& maps, const Place& at, const Parameters& p, int stage,
                       const Step& step) {
  const bool biased = BIAS == PER_PAIR && !(step.how & PLAIN_STEP);
  const unsigned keys_there = room.keys_there + stage * 8, values_there = room.values_there + stage * 8;
  const int batch = at.batch, key_head = at.head / K_GROUP, value_head = at.head / V_GROUP;
  barrier_expect(keys_there, KEY_BYTES + (biased ? BIAS_BYTES : 0));
  UNROLLED for (int panel = 0; panel < PANELS; ++panel)
    fetch_panel<K_HEADS_FIRST>(room.keys(stage) + panel * KEY_PANEL, &maps.k, panel, step.first_key, key_head, batch, keys_there);
  if (biased) {
    const int of_batch = p.pair_batch == 0 ? 0 : window_of(at, p);
    const int of_head = p.pair_head == 0 ? 0 : at.head;
    UNROLLED for (int panel = 0; panel < (STEP + 63) / 64; ++panel)
      fetch_box<false>(room.bias(stage) + panel * QUERY_PANEL, bias_map(maps), step.first_key + panel * 64, at.first_query,
                       of_head, of_batch, keys_there, 0);
  }
  barrier_expect(values_there, KEY_BYTES);
  UNROLLED for (int panel = 0; panel < PANELS; ++panel)
    fetch_panel<V_HEADS_FIRST>(room.values(stage) + panel * KEY_PANEL, &maps.v, panel, step.first_key, value_head, batch, values_there);
}

DEVICE void tell(const Room& room, int stage, const Step& step) {
  store_shared(room.told + stage * 8, (unsigned)step.first_key);
  store_shared(room.told + stage * 8 + 4, step.how);
}

DEVICE void fetch_tile(const Room& room, const TensorMaps& maps, const Pointers& pointers, const Place& at, Turn& turn,
                       const Tiles& tile, const Parameters& p) {
  const bool first_lane = thread_index() % 32 == 0;
  const unsigned queries_there = room.queries_there + tile.at * 8;
  barrier_wait(room.queries_read + tile.at * 8, tile.parity ^ 1);
  if (first_lane) {
    barrier_expect(queries_there, QUERY_BYTES);
    UNROLLED for (int panel = 0; panel < PANELS; ++panel)
      fetch_panel<Q_HEADS_FIRST>(room.queries + tile.at * QUERY_BYTES + panel * QUERY_PANEL, &maps.q, panel,
                                 at.first_query, at.head / Q_GROUP, at.batch, queries_there);
  }
  const E* added = nullptr;
  if constexpr (KEYED)
    added = (BIAS == PER_KEY ? pointers.bias : pointers.also) +
            (window_of(at, p) * p.bias_batch + at.head * p.bias_head);
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
      UNROLLED for (int w = 0; w < WARPGROUPS; ++w)
        if (!(known.shows[w] >> number % 32 & 1)) step.how |= 1u << w;
      if (known.plain >> number % 32 & 1) step.how |= PLAIN_STEP;
    }
    if ((step.how & ((1u << WARPGROUPS) - 1)) == (1u << WARPGROUPS) - 1) continue;
    barrier_wait(room.empty + turn.at * 8, turn.parity ^ 1);
    if constexpr (KEYED) {
      of_keys.put(room.added + turn.at * STEP * 4);
      wait_for_warp();
    }
    if (first_lane) {
      tell(room, turn.at, step);
      fetch_step(room, maps, at, p, turn.at, step);
    }
    turn.next();
  }
  barrier_wait(room.empty + turn.at * 8, turn.parity ^ 1);
  if (first_lane) {
    tell(room, turn.at, {-1, 0});
    barrier_arrive(room.keys_there + turn.at * 8);
    barrier_arrive(room.values_there + turn.at * 8);  // the rounds of both are counted together
  }
  turn.next();
}

// ---- a step of a warpgroup

// This warp is done with what a barrier is about.
DEVICE void release(unsigned barrier) {
  wait_for_warp();
  if (thread_index() % 32 == 0) barrier_arrive(barrier);
}

// What the stage holds, once its keys are there.
DEVICE Step look(const Room& room, const Turn& turn) {
  barrier_wait(room.keys_there + turn.at * 8, turn.parity);
  unsigned told[2];
  load_shared(told, room.told + turn.at * 8);
  return {(int)told[0], told[1]};
}

// The place of 16 bytes of a row in a swizzled panel, one of those that lie `apart`.
DEVICE unsigned piece_of(unsigned panels, unsigned apart, int row, int piece) {
  return panels + piece / 8 * apart + row * 128 + ((piece % 8 ^ row % 8) << 4);
}

// An operand so many bytes behind another one: an address is in its low word, where it does not overflow.
DEVICE unsigned long long behind(unsigned long long factor, unsigned bytes) {
  return (factor & ~0xffffffffull) | ((unsigned)factor + bytes / 16);
}

DEVICE void multiply_keys(Scores<STEP>& scores, unsigned queries, unsigned keys) {
  const unsigned long long left = operand(queries, 16, 1024), right = operand(keys, 16, 1024);
  products_begin();
  UNROLLED for (int k = 0; k < TERMS; ++k) {
    multiply_key(scores.of[0], behind(left, k / 4 * QUERY_PANEL + k % 4 * 32),
                 behind(right, k / 4 * KEY_PANEL + k % 4 * 32), k > 0);
  }
  close_group_of_products();
}

struct Weights {
  unsigned of[STEP / 16][4];
};

DEVICE void round_all(Weights& weights, const Scores<STEP>& scores) {
  UNROLLED for (int group = 0; group < STEP / 16; ++group) {
    unsigned weight[1][4];
    round_weights(weight, scores, group, (E*)nullptr);
    UNROLLED for (int i = 0; i < 4; ++i) weights.of[group][i] = weight[0][i];
  }
}

DEVICE void multiply_values(Rows& rows, const Weights& weights, unsigned values) {
  const unsigned long long right = operand(values, KEY_PANEL, 1024);
  products_begin();
  UNROLLED for (int group = 0; group < STEP / 16; ++group)
    multiply_value(rows.y[0], weights.of[group], behind(right, group * 2048), 1);
  close_group_of_products();
}

// Times log2(e) where they are not PLAIN, so that 2^x takes the place of e^x.
DEVICE void scale_scores(Scores<STEP>& scores, const Room& room, int stage, const Step& step, int row_of_block) {
  const int lane = thread_index() % 32;
  UNROLLED for (int column = 0; column < (SCALED_LATE ? 0 : STEP / 8); ++column) {
    unsigned added[2] = {};
    if constexpr (KEYED) load_shared(added, room.added + (stage * STEP + column * 8 + lane % 4 * 2) * 4);
    UNROLLED for (int i = 0; i < 4; ++i) {
      float& score = scores.of[0][column][i];
      score = KEYED ? score * SCORE_UNIT + float_of_bits(added[i % 2]) : score * SCORE_UNIT;
    }
  }
  if (BIAS == PER_PAIR && !(step.how & PLAIN_STEP)) {
    UNROLLED for (int group = 0; group < STEP / 16; ++group) {
      unsigned word[4];
      load_blocks<false>(word, piece_of(room.bias(stage), QUERY_PANEL, row_of_block + lane % 16, group * 2 + lane / 16));
      UNROLLED for (int part = 0; part < 4; ++part) {
        Pack<E, 2> both;
        both.word(0) = word[part];
        UNROLLED for (int i = 0; i < 2; ++i)
          scores.of[0][2 * group + part / 2][part % 2 * 2 + i] += both.get(i) * ADDED_UNIT;
      }
    }
  }
}

// Keys behind the last one, and those behind a query under the causal mask, do not count.
DEVICE void hide_keys(Scores<STEP>& scores, const Place& at, int first_key, int first_row) {
  const int lane = thread_index() % 32;
  UNROLLED for (int column = 0; column < STEP / 8; ++column)
    UNROLLED for (int i = 0; i < 4; ++i) {
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

DEVICE Shrinking weigh_step(Scores<STEP>& scores, Rows& rows, const Room& room, const Place& at, const OfWarp& mine,
                            int stage, const Step& step) {
  settle(scores.of[0]);
  scale_scores(scores, room, stage, step, mine.row);
  const int after = step.first_key + STEP;
  if ((!KEYED && after > at.keys) || (CAUSAL && after > mine.query + 1))
    hide_keys(scores, at, step.first_key, mine.query);
  return weigh_ahead<false>(scores, rows);
}

DEVICE void attend_tile(Rows& rows, const Room& room, const Place& at, const OfWarp& mine, Turn& turn, const Tiles& tile) {
  const unsigned queries = room.queries + tile.at * QUERY_BYTES + mine.warpgroup * 64 * 128;
  clear(rows);
  barrier_wait(room.queries_there + tile.at * 8, tile.parity);
  for (;; turn.next()) {
    Step step = look(room, turn);
    if (step.first_key < 0) break;
    if (!step.shows(mine.warpgroup)) {
      release(room.empty + turn.at * 8);
      continue;
    }
    Scores<STEP> scores;
    multiply_keys(scores, queries, room.keys(turn.at));
    wait_for_products<0>();
    shrink_if_needed(rows, weigh_step(scores, rows, room, at, mine, turn.at, step));
    Weights weights;
    round_all(weights, scores);
    while (AHEAD) {
      Turn next = turn;
      next.next();
      step = look(room, next);
      if (step.first_key < 0 || !step.shows(mine.warpgroup)) break;
      barrier_wait(room.values_there + turn.at * 8, turn.parity);
      multiply_keys(scores, queries, room.keys(next.at));
      multiply_values(rows, weights, room.values(turn.at));
      wait_for_products<1>();
      const Shrinking shrinking = weigh_step(scores, rows, room, at, mine, next.at, step);
      // What was waited for already: the compiler would put the wait behind it before the weights, beside which products run.
      settle(scores.of[0]);
      barrier_wait(room.values_there + turn.at * 8, turn.parity);
      wait_for_products<0>();
      settle(rows.y[0]);
      settle(weights.of);
      release(room.empty + turn.at * 8);
      shrink_if_needed(rows, shrinking);
      round_all(weights, scores);
      turn = next;
    }
    barrier_wait(room.values_there + turn.at * 8, turn.parity);
    multiply_values(rows, weights, room.values(turn.at));
    wait_for_products<0>();
    settle(rows.y[0]);
    settle(weights.of);
    release(room.empty + turn.at * 8);
  }
  release(room.empty + turn.at * 8);
  release(room.queries_read + tile.at * 8);
  turn.next();
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
  const Room room;
  if (thread_index() == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      barrier_init(room.keys_there + stage * 8, 1);
      barrier_init(room.values_there + stage * 8, 1);
      barrier_init(room.empty + stage * 8, 4 * WARPGROUPS);
    }
    for (int tile = 0; tile < QUERY_PLACES; ++tile) {
      barrier_init(room.queries_there + tile * 8, 1);
      barrier_init(room.queries_read + tile * 8, 4 * WARPGROUPS);
    }
    barriers_made();
  }
  if (thread_index() == WARPGROUPS * 128) prefetch_maps(maps);
  join_stream();
  wait_for_block();
  Turn turn;
  Tiles tile;
  const unsigned count = (unsigned)p.count;
  if (thread_index() >= WARPGROUPS * 128) {
    give_registers_back<FETCHER_REGISTERS>();
    if (thread_index() < WARPGROUPS * 128 + 32)
      for (unsigned number = block_index(); number < count; number += last_block() + 1, tile.next())
        fetch_tile(room, maps, pointers, place(p, number), turn, tile, p);
    return;
  }
  take_registers<(REGISTERS < 240 ? REGISTERS : 240)>();
  const int warp = thread_index() / 32;
  for (unsigned number = block_index(); number < count; number += last_block() + 1, tile.next()) {
    const Place at = place(p, number);
    const OfWarp mine = {warp / 4, warp * 16, at.first_query + warp * 16};
    Rows rows;
    attend_tile(rows, room, at, mine, turn, tile);
    store_rows(rows, pointers.y + start_of<Y_HEADS_FIRST, Y_GROUP>(at, at.queries), at, mine.query);
  }
}
