// y = body(A B0, A B1, ..., operands): matrix products on Hopper's tensor cores with everything pointwise after them.
//
// A [m, k], row-major, or what a window sees that slides over images, or what a functor makes of matrices [m, k], vectors
// [k] and [m, 1] and numbers (PROLOGUE): a warpgroup more computes it where the copy engine has put the first matrix, the
// BESIDE others lie behind the factors. B [k, n], row-major, or [n, k] (B_TRANSPOSED).
// Operands of the body: [m, n], [n], [m, 1], one element. Outputs [m, n]. Types of A and B: float16,
// bfloat16, or float32 with B [n, k], rounded to TF32 as it is fetched. Accuracy: float
// accumulators, which the body reads unrounded; each output is rounded once.
//
// A block has one or two teams of warpgroups and, behind them, a warpgroup that fetches tiles of A and B through a ring of
// STAGES in shared memory. The WARPGROUPS of a team share an output tile, TILE_M x TILE_N, by rows; teams take tiles in
// turns: while one runs the body over its accumulators, the other one keeps the tensor cores busy.
//
// How wide a tile must be, the L2 cache decides: at the full rate of the tensor cores 128x128 asks it for 64 bytes a cycle
// and multiprocessor, which is its limit, 128x192 for 53, 192x192 for 43. 4096x3072x768 without a body, Nsight Compute,
// H200, 2026-11: 128x128 takes 76% of L2's rate and 64% of the tensor cores', 128x192 65% and 72%.
//
// CLUSTER blocks work on tiles below each other and share each tile of B: every block fetches a part of it for all. Or
// SPLIT blocks share the terms of a tile, for sizes that have few tiles: they send their sums to the first one, which
// adds them in order and runs the body.
//
// An operand [m, n] of the only output's size is fetched by the copy engine, before the products, to where the output
// will be put (STAGED). 4096x3072x768 with bias and residual, float16, H200, 2026-11: 37.3 us; 48.8 where threads load it, 53.4 by
// cuBLAS and a kernel of its own.
//
// Outputs that are written reshaped and transposed (MOVED: head by head) leave from shared memory by the threads.
//
// The body reads ACCUMULATED products of a tile at once (a gate). LANES of such bodies lie side by side, as more output
// tiles, each with factors, operands and outputs of its own; one of ACCUMULATED and LANES is 1.

constexpr int BLOCKS_M = TILE_M / 64 / WARPGROUPS;  // warpgroup products below each other
constexpr int WIDTH = ACCUMULATED * TILE_N;      // of a warpgroup product: the tiles of a gate lie side by side
constexpr int ROW_BYTES = 128;                   // of a factor's tile: TILE_K terms
constexpr int A_BYTES = (LEFT_ROWS * ROW_BYTES + 1023) / 1024 * 1024;  // rows that there are not are read from B
constexpr int B_BYTES = TILE_N * ROW_BYTES;
constexpr int FACTORS_BYTES = A_BYTES + ACCUMULATED * B_BYTES;
constexpr int STAGE_BYTES = FACTORS_BYTES + BESIDE * A_BYTES;
constexpr int CHUNK = 64;                        // columns that a warp puts at once; of 32 the rest lie outside the output
constexpr int CHUNK_ROWS = 16;
constexpr int PUTS_BYTES = CHUNK_ROWS * CHUNK * OUTPUT_BYTES;  // of all outputs together
constexpr int CHUNKS = (TILE_N + CHUNK - 1) / CHUNK;     // beside each other
constexpr int CHUNK_NUMBER = CHUNKS * BLOCKS_M;          // of a warp's share of a tile
constexpr int BUFFERS = STAGED ? CHUNK_NUMBER : 2;       // of a warp, for chunks
constexpr int CONSUMERS = TEAMS * WARPGROUPS;
constexpr int FETCHER_REGISTERS = 24;
// What 65536 registers leave: of a thread at first, and once the fetching warpgroup has given its own back.
constexpr int LAUNCHED_REGISTERS = 65536 / THREADS / 8 * 8;
constexpr int COMPUTER_REGISTERS = 96;           // of the warpgroup that computes the left factor
constexpr int CONSUMER_REGISTERS =
    (THREADS * LAUNCHED_REGISTERS - 128 * FETCHER_REGISTERS - (PROLOGUE ? 128 * COMPUTER_REGISTERS : 0)) /
    (CONSUMERS * 128) / 8 * 8;
constexpr int CONSUMER_WARPS = 4 * CONSUMERS;
static_assert(SPLIT == 1 || (CLUSTER == 1 && CONSUMERS == 1), "who waits for the sums of all blocks");
constexpr int PART_BYTES = BLOCKS_M * WIDTH / 2 * 32 * 4;  // a warp's sums
constexpr int PANEL = 8;                         // cluster tiles below each other before the next column: stays in L2

struct Parameters : Source, Stores, Groups {
  Index m, n, steps;          // steps: TILE_K terms each
  Index rows, columns;        // cluster tiles below each other; tiles side by side, of one product
  Index k;
};

struct Tile {
  Index row, column;  // of the output
  int lane;           // which of the bodies side by side

  DEVICE Tile(Index number, unsigned rank, const Parameters& p) {
    const Index across = p.columns * LANES;
    const Index panel = number / (PANEL * across), inside = number - panel * (PANEL * across);
    const Index first = panel * PANEL, height = p.rows - first < PANEL ? p.rows - first : PANEL;
    const Index x = inside / height;
    lane = LANES == 1 ? 0 : (int)(x / p.columns);
    row = ((first + inside % height) * CLUSTER + (CLUSTER > 1 ? rank : 0)) * TILE_M;
    column = (x - lane * p.columns) * TILE_N;
  }
};

// The steps of a block: all of them, or its share.
struct Steps {
  Index first, count;

  DEVICE Steps(unsigned rank, const Parameters& p) {
    first = SPLIT > 1 ? p.steps * rank / SPLIT : 0;
    count = (SPLIT > 1 ? p.steps * (rank + 1) / SPLIT : p.steps) - first;
  }
};

DEVICE Index tiles(const Parameters& p) { return p.rows * p.columns * LANES; }
DEVICE Index first_tile() { return block_index() / TOGETHER; }
DEVICE Index tile_stride() { return (last_block() + 1) / TOGETHER; }

// Shared memory: the ring, what the warps put out, what other blocks send, the barriers.
struct Shared {
  unsigned ring, puts, parts, full, empty, staged, made;

  DEVICE Shared() {
    ring = (shared_address(dynamic_shared) + 1023) & ~1023u;
    puts = ring + STAGES * STAGE_BYTES;
    parts = puts + CONSUMER_WARPS * BUFFERS * PUTS_BYTES;
    full = parts + (SPLIT - 1) * PART_WARPS * PART_BYTES;
    empty = full + STAGES * 8;
    staged = empty + STAGES * 8;
    made = staged + CONSUMER_WARPS * 8;
  }
};

struct Turn {
  int stage = 0;
  unsigned parity = 0;

  DEVICE void advance(Index by) {
    const Index sum = stage + by;
    parity ^= (sum / STAGES) & 1;
    stage = sum % STAGES;
  }
  DEVICE void next() {
    if (++stage == STAGES) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// ---- fetching

DEVICE void fetch_stage(const Shared& shared, const TensorMaps& maps, const Tile& tile, const Terms& terms, int stage,
                        unsigned rank) {
  const unsigned full = shared.full + stage * 8, a = shared.ring + stage * STAGE_BYTES;
  barrier_expect(full, (1 + BESIDE) * LEFT_ROWS * ROW_BYTES + ACCUMULATED * B_BYTES);
  terms.fetch_left(a, &maps.a, full);
  fetch_beside(maps, terms, a + FACTORS_BYTES, A_BYTES, full);
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
    terms.fetch_right(a + A_BYTES + g * B_BYTES, &maps.b[tile.lane + g], tile.column, CLUSTER > 1 ? rank : 0, full);
}

DEVICE void fetch_all(const Shared& shared, const TensorMaps& maps, unsigned rank, const Parameters& p) {
  Turn turn;
  for (Index number = first_tile(); number < tiles(p); number += tile_stride()) {
    const Tile tile(number, rank, p);
    const Steps steps(rank, p);
    Terms terms(tile.row, p);
    for (Index step = 0; step < steps.first; ++step) terms.next();
    for (Index step = 0; step < steps.count; ++step) {
      barrier_wait(shared.empty + turn.stage * 8, turn.parity ^ 1);
      fetch_stage(shared, maps, tile, terms, turn.stage, rank);
      terms.next();
      turn.next();
    }
  }
}

// ---- the left factor

// What is needed to compute the rows of a tile.
struct LeftRows {
  Prologue from;
  Index row, term, m, k;  // the first ones

  DEVICE LeftRows(const Operands& operands, Index row, Index step, const Parameters& p)
      : from(operands, p, 0, p.k), row(row), term(step * TILE_K), m(p.m), k(p.k) {}
};

// A thread computes 16 bytes of every sixteenth row. The vectors for them it loads a step ahead: from global memory they
// take longer than all else.
constexpr int TURNS = TILE_M / 16;
template <class From> struct Ahead {
  typename From::Columns columns;
  typename From::Rows rows[TURNS];
  int there;  // terms from this thread's on

  DEVICE void load(const From& from, const LeftRows& left, Index step) {
    const Index term = left.term + step * TILE_K + thread_index() % 8 * From::W, row = left.row + thread_index() % 128 / 8;
    there = term < left.k ? (int)(left.k - term) : 0;
    columns = from.columns(term, there);
    UNROLLED for (int turn = 0; turn < TURNS; ++turn)
      rows[turn] = from.rows(row + turn * 16, row + turn * 16 < left.m, term, there);
  }
  DEVICE void compute(unsigned a) const {
    const int down = thread_index() % 128 / 8, piece = thread_index() % 8;
    const unsigned place = a + down * ROW_BYTES + ((piece ^ down % 8) << 4);
    UNROLLED for (int first = 0; first < TURNS; first += 4) {
      typename From::Cells cells[4];
      UNROLLED for (int i = 0; i < 4; ++i) {
        const unsigned there = place + (first + i) * 16 * ROW_BYTES;
        if (down + (first + i) * 16 < LEFT_ROWS) cells[i] = From::take(there, there + FACTORS_BYTES, A_BYTES);
      }
      UNROLLED for (int i = 0; i < 4; ++i) {
        if (down + (first + i) * 16 >= LEFT_ROWS) break;
        unsigned word[4];
        From::compute(word, cells[i], columns, rows[first + i], there);
        store_shared(place + (first + i) * 16 * ROW_BYTES, word);
      }
    }
  }
};

// A warpgroup of its own computes it, stage by stage, as far ahead of the products as the ring is long.
template <class From>
DEVICE void compute_all(const Shared& shared, const Operands& operands, unsigned rank, const Parameters& p) {
  Turn turn;
  for (Index number = first_tile(); number < tiles(p); number += tile_stride()) {
    const Steps steps(rank, p);
    const LeftRows left(operands, Tile(number, rank, p).row, steps.first, p);
    Ahead<From> ahead;
    ahead.load(left.from, left, 0);
    for (Index step = 0; step < steps.count; ++step, turn.next()) {
      barrier_wait(shared.full + turn.stage * 8, turn.parity);
      ahead.compute(shared.ring + turn.stage * STAGE_BYTES);
      if (step + 1 < steps.count) ahead.load(left.from, left, step + 1);
      show_to_copy_engine();
      wait_for_warp();
      if (thread_index() % 32 == 0) barrier_arrive(shared.made + turn.stage * 8);
    }
  }
}
template <>
DEVICE void compute_all<GivenFactor>(const Shared&, const Operands&, unsigned, const Parameters&) {}

// ---- products

struct Accumulators {
  float of[BLOCKS_M][WIDTH / 2];
};

DEVICE void multiply_stage(Accumulators& sums, unsigned a, unsigned b, bool begun) {
  UNROLLED for (int k = 0; k < ROW_BYTES / 32; ++k) {
    const unsigned long long right = B_TRANSPOSED ? operand(b + k * 32, 16, 1024) : operand(b + k * 2048, 8192, 1024);
    UNROLLED for (int block = 0; block < BLOCKS_M; ++block)
      warpgroup_product(sums.of[block], operand(a + block * 8192 + k * 32, 16, 1024), right, begun || k > 0);
  }
}

// One warp of this warpgroup is done with a stage, for every block that may fetch into it.
DEVICE void release(const Shared& shared, int stage) {
  const unsigned lane = thread_index() % 32;
  if constexpr (CLUSTER > 1) {
    if (lane < CLUSTER) barrier_arrive_at(shared.empty + stage * 8, lane);
  } else {
    if (lane == 0) barrier_arrive(shared.empty + stage * 8);
  }
}

// Until both factors of a stage are there.
DEVICE void wait_for_stage(const Shared& shared, const Turn& turn) {
  barrier_wait(shared.full + turn.stage * 8, turn.parity);
  if constexpr (PROLOGUE) barrier_wait(shared.made + turn.stage * 8, turn.parity);
}

DEVICE int this_team() { return thread_index() / (128 * WARPGROUPS); }

// The products of this warpgroup's rows, the `member`th of its team.
DEVICE void multiply(Accumulators& sums, const Shared& shared, Turn& turn, int member, Index steps) {
  int before = 0;
  if constexpr (TEAMS > 1) wait_for_turn<CONSUMERS * 128>(1 + this_team());
  for (Index step = 0; step < steps; ++step) {
    const unsigned a = shared.ring + turn.stage * STAGE_BYTES;
    wait_for_stage(shared, turn);
    products_begin();
    multiply_stage(sums, a + member * BLOCKS_M * 8192, a + A_BYTES, step > 0);
    close_group_of_products();
    if (step > 0) {
      wait_for_products<1>();
      release(shared, before);
    }
    before = turn.stage;
    turn.next();
  }
  // Teams fetch from the ring strictly in turns: a barrier's parity tells apart two rounds, not three.
  if constexpr (TEAMS > 1) pass_turn_to<CONSUMERS * 128>(2 - this_team());
  wait_for_products<0>();
  release(shared, before);
}

// A warpgroup whose rows all lie below the matrix lets its stages go by.
DEVICE void let_pass(const Shared& shared, Turn& turn, Index steps) {
  if constexpr (TEAMS > 1) wait_for_turn<CONSUMERS * 128>(1 + this_team());
  for (Index step = 0; step < steps; ++step, turn.next()) {
    wait_for_stage(shared, turn);
    release(shared, turn.stage);
  }
  if constexpr (TEAMS > 1) pass_turn_to<CONSUMERS * 128>(2 - this_team());
}

// ---- sums of several blocks; a warp's lie as its lanes hold them, four at a time

// Until every block of the cluster has come here; each of its threads must, once. A split block has one tile.
DEVICE void wait_for_all() {
  wait_for_warp();
  wait_for_cluster();
}

DEVICE void send(const Accumulators& sums, const Shared& shared, unsigned rank) {
  const unsigned lane = thread_index() % 32, warp = thread_index() / 32;
  const unsigned to = address_in(shared.parts + ((rank - 1) * PART_WARPS + warp) * PART_BYTES + lane * 16, 0);
  UNROLLED for (int block = 0; block < BLOCKS_M; ++block)
    UNROLLED for (int i = 0; i < WIDTH / 8; ++i)
      store_there(to + (block * (WIDTH / 8) + i) * 512, &sums.of[block][i * 4]);
}

DEVICE void gather(Accumulators& sums, const Shared& shared) {
  const unsigned lane = thread_index() % 32, warp = thread_index() / 32;
  for (int rank = 1; rank < SPLIT; ++rank) {
    const unsigned from = shared.parts + ((rank - 1) * PART_WARPS + warp) * PART_BYTES + lane * 16;
    UNROLLED for (int block = 0; block < BLOCKS_M; ++block)
      UNROLLED for (int i = 0; i < WIDTH / 8; ++i)
        add_shared(&sums.of[block][i * 4], from + (block * (WIDTH / 8) + i) * 512);
  }
}

// ---- the body

// Fetches this warp's share of the staged operand, once what was put from there has been read.
DEVICE void stage(const TensorMaps& maps, const Tile& tile, unsigned puts, unsigned arrived) {
  wait_until_read<0>();
  barrier_expect(arrived, CHUNK_NUMBER * PUTS_BYTES);
  UNROLLED for (int number = 0; number < CHUNK_NUMBER; ++number)
    fetch_staged(maps, tile.lane, tile.column + number % CHUNKS * CHUNK,
                 tile.row + number / CHUNKS * 64 + thread_index() / 32 % 4 * CHUNK_ROWS,
                 puts + number * PUTS_BYTES, arrived);
}

// A thread's share of a warpgroup product: in each group of eight columns two neighbours, in a row and in the one eight
// rows below. A warp finishes a tile in chunks, from left to right, then from top to bottom.
constexpr int GROUPS = (TILE_N < CHUNK ? TILE_N : CHUNK) / 8;

struct RowsHeld {
  RowHeld of[BLOCKS_M];
};
struct ColumnsHeld {
  ColumnHeld<2> of[GROUPS];
};
struct ChunkHeld {
  CellHeld<2> cells[GROUPS][2];
};

DEVICE Place place_in(const Tile& tile, const Parameters& p) {
  const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
  return {tile.row + warp * CHUNK_ROWS + lane / 4, tile.column + lane % 4 * 2, p.m, p.n};
}

DEVICE void load_all_rows(RowsHeld& held, const Pointers& operands, const Place& at) {
  UNROLLED for (int block = 0; block < BLOCKS_M; ++block) held.of[block] = load_rows(operands, at, block * 64);
}

// A chunk's columns are fetched while the one before is finished, the first one's before the products.
template <int NUMBER> DEVICE void load_columns(ColumnsHeld& held, const Pointers& operands, const Place& at) {
  UNROLLED for (int group = 0; group < GROUPS; ++group)
    held.of[group] = load_column<2>(operands, at, NUMBER % CHUNKS * CHUNK + group * 8);
}

template <int NUMBER> DEVICE void load_chunk(ChunkHeld& held, const Pointers& operands, const Place& at) {
  constexpr int DOWN = NUMBER / CHUNKS * 64, RIGHT = NUMBER % CHUNKS * CHUNK;
  UNROLLED for (int group = 0; group < GROUPS; ++group)
    UNROLLED for (int half = 0; half < 2; ++half)
      held.cells[group][half] = load_cell<2>(operands, at, DOWN + half * 8, RIGHT + group * 8);
}

template <int NUMBER>
DEVICE void finish_chunk(const Accumulators& sums, const RowsHeld& rows, const ColumnsHeld& columns,
                         const ChunkHeld& chunk, unsigned puts) {
  constexpr int BLOCK = NUMBER / CHUNKS, FIRST = NUMBER % CHUNKS * GROUPS;
  const int lane = thread_index() % 32;
  UNROLLED for (int group = 0; group < GROUPS; ++group) {
    Result result[2][2];
    UNROLLED for (int half = 0; half < 2; ++half) {
      CellHeld<2> cell = chunk.cells[group][half];
      take_staged(cell, puts, lane / 4, half, group, lane % 4);
      UNROLLED for (int next = 0; next < 2; ++next) {
        float product[ACCUMULATED];
        UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
          product[g] = sums.of[BLOCK][g * (TILE_N / 2) + (FIRST + group) * 4 + half * 2 + next];
        result[half][next] = apply(element(product, columns.of[group], cell, rows.of[BLOCK], half, next));
      }
    }
    UNROLLED for (int half = 0; half < 2; ++half) put_results(puts, result[half], lane / 4, half, group, lane % 4);
  }
}

template <int NUMBER>
DEVICE void finish_from(const Accumulators& sums, const RowsHeld& rows, const ColumnsHeld& columns,
                        const Pointers& operands, const Results& to, const TensorMaps& maps, const Tile& tile,
                        const Place& at, const Stores& stores, unsigned puts) {
  if constexpr (NUMBER < CHUNKS * BLOCKS_M) {
    const unsigned here = puts + NUMBER % BUFFERS * PUTS_BYTES;
    const bool first_lane = thread_index() % 32 == 0;
    ChunkHeld chunk;
    load_chunk<NUMBER>(chunk, operands, at);
    ColumnsHeld next;
    if constexpr (NUMBER + 1 < CHUNKS * BLOCKS_M) load_columns<NUMBER + 1>(next, operands, at);
    // The tile before ended in this very buffer where their number is odd.
    if (!STAGED && first_lane) wait_until_read<(NUMBER == 0 && CHUNK_NUMBER % 2 == 1) ? 0 : 1>();
    wait_for_warp();
    finish_chunk<NUMBER>(sums, rows, columns, chunk, here);
    const Index column = tile.column + NUMBER % CHUNKS * CHUNK;
    const Index row = tile.row + NUMBER / CHUNKS * 64 + thread_index() / 32 % 4 * CHUNK_ROWS;
    if constexpr (MOVED) {
      wait_for_warp();
      put_moved(to, stores, tile.lane, column, row, at.m, at.n, here);
      if constexpr (STAGED) {  // there the copy engine fetches the next tile's operand
        show_to_copy_engine();
        wait_for_warp();
      }
    } else {
      show_to_copy_engine();
      wait_for_warp();
      if (first_lane) {
        put_chunk(maps, tile.lane, column, row, here);
        close_group_of_puts();
      }
    }
    finish_from<NUMBER + 1>(sums, rows, next, operands, to, maps, tile, at, stores, puts);
  }
}

DEVICE void consume_all(const Shared& shared, const TensorMaps& maps, unsigned rank, const Operands& operands,
                        const Results& to, const Parameters& p) {
  const int warp = thread_index() / 32, member = warp / 4 % WARPGROUPS, team = this_team();
  const unsigned puts = shared.puts + warp * BUFFERS * PUTS_BYTES, arrived = shared.staged + warp * 8;
  const Steps steps(rank, p);
  unsigned parity = 0;
  Turn turn;
  int whose = 0;
  if (TEAMS > 1 && team == 1) pass_turn_to<CONSUMERS * 128>(1);
  for (Index number = first_tile(); number < tiles(p); number += tile_stride(), whose ^= TEAMS - 1) {
    if (whose != team) {
      turn.advance(steps.count);
      continue;
    }
    Tile tile(number, rank, p);
    tile.row += member * BLOCKS_M * 64;
    if (tile.row >= p.m) {
      let_pass(shared, turn, steps.count);
      continue;
    }
    const Place at = place_in(tile, p);
    const Pointers mine = operands.of(tile.lane);
    const bool first = SPLIT == 1 || rank == 0, present = tile.row + warp % 4 * CHUNK_ROWS < p.m;
    if (STAGED && first && present && thread_index() % 32 == 0) stage(maps, tile, puts, arrived);
    RowsHeld rows;
    ColumnsHeld columns;
    load_all_rows(rows, mine, at);
    load_columns<0>(columns, mine, at);
    Accumulators sums;
    multiply(sums, shared, turn, member, steps.count);
    if constexpr (SPLIT > 1) {
      if (present && !first) send(sums, shared, rank);
      wait_for_all();
      if (present && first) gather(sums, shared);
    }
    if (!present || !first) continue;
    if constexpr (STAGED) barrier_wait(arrived, parity);
    parity ^= 1;
    finish_from<0>(sums, rows, columns, mine, to, maps, tile, at, p, puts);
  }
  if (thread_index() % 32 == 0) wait_until_read<0>();
}

DEVICE void gemm(const Operands& operands, const Results& to, const TensorMaps& maps, const Parameters& p) {
  const Shared shared;
  const unsigned rank = TOGETHER > 1 ? rank_in_cluster() : 0;
  if (thread_index() == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      barrier_init(shared.full + stage * 8, 1);
      barrier_init(shared.empty + stage * 8, 4 * WARPGROUPS * CLUSTER);
      if constexpr (PROLOGUE) barrier_init(shared.made + stage * 8, 4);
    }
    for (int warp = 0; warp < CONSUMER_WARPS; ++warp) {
      barrier_init(shared.staged + warp * 8, 1);
    }
    barriers_made();
  }
  if (thread_index() == CONSUMERS * 128) prefetch_maps(maps);
  join_stream();
  if constexpr (TOGETHER > 1) wait_for_cluster();
  else wait_for_block();

  if (thread_index() < CONSUMERS * 128) {
    if constexpr (CONSUMERS > 1) take_registers<CONSUMER_REGISTERS>();
    consume_all(shared, maps, rank, operands, to, p);
  } else if (PROLOGUE && thread_index() >= (CONSUMERS + 1) * 128) {
    if constexpr (CONSUMERS > 1) give_registers_back<COMPUTER_REGISTERS>();
    compute_all<Prologue>(shared, operands, rank, p);
  } else {
    if constexpr (CONSUMERS > 1) give_registers_back<FETCHER_REGISTERS>();
    if (thread_index() == CONSUMERS * 128) fetch_all(shared, maps, rank, p);
  }
  // No block leaves while others may still signal its barriers or write into it: those that split a tile have waited.
  if (CLUSTER > 1 || (SPLIT > 1 && thread_index() >= CONSUMERS * 128)) wait_for_all();
}
