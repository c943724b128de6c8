// y = body(A B0, A B1, ..., operands): matrix products on Hopper's tensor cores with everything pointwise after them.
//
// A [m, k], row-major or what a window sees that slides over images. B [k, n], row-major, or [n, k] (B_TRANSPOSED).
// Operands of the body: [m, n], [n], [m, 1], one element. Outputs [m, n]. Types of A and B: float16,
// bfloat16, or float32 with B [n, k], rounded to TF32 as it is fetched. Accuracy: float
// accumulators, which the body reads unrounded; each output is rounded once.
//
// A block has three warpgroups. The first one fetches tiles of A and B through a ring of STAGES in shared memory. The
// other two take output tiles in turns, TILE_M x TILE_N each: while one runs the body over its accumulators, the other
// one keeps the tensor cores busy. So the body is free as long as it takes less time than a tile's products.
// CLUSTER blocks work on tiles below each other and share each tile of B: every block fetches a part of it for all.
//
// An operand [m, n] of the only output's size is fetched by the copy engine, before the products, to where the output
// will be put (STAGED). 4096x3072x768 with bias and residual, float16, H200, 2026-11: 37.3 us; 48.8 where threads load it, 53.4 by
// cuBLAS and a kernel of its own.
//
// The body reads ACCUMULATED products of a tile at once (a gate). LANES of such bodies lie side by side, as more output
// tiles, each with factors, operands and outputs of its own; one of ACCUMULATED and LANES is 1.

constexpr int BLOCKS_M = TILE_M / 64;            // warpgroup products below each other
constexpr int ROW_BYTES = 128;                   // of a factor's tile: TILE_K terms
constexpr int A_BYTES = TILE_M * ROW_BYTES;
constexpr int B_BYTES = TILE_N * ROW_BYTES;
constexpr int STAGE_BYTES = A_BYTES + ACCUMULATED * B_BYTES;
constexpr int CHUNK = 64;                        // columns that a warp puts at once
constexpr int CHUNK_ROWS = 16;
constexpr int PUTS_BYTES = CHUNK_ROWS * CHUNK * OUTPUT_BYTES;  // of all outputs together
constexpr int CHUNK_NUMBER = TILE_N / CHUNK * BLOCKS_M;  // of a warp's share of a tile
constexpr int BUFFERS = STAGED ? CHUNK_NUMBER : 2;       // of a warp, for chunks
constexpr int CONSUMER_WARPS = 8;
constexpr int PANEL = 8;                         // cluster tiles below each other before the next column: stays in L2

struct Parameters : Source {
  Index m, n, steps;          // steps: TILE_K terms each
  Index rows, columns;        // cluster tiles below each other; tiles side by side, of one product
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
    row = ((first + inside % height) * CLUSTER + rank) * TILE_M;
    column = (x - lane * p.columns) * TILE_N;
  }
};

DEVICE Index tiles(const Parameters& p) { return p.rows * p.columns * LANES; }
DEVICE Index first_tile() { return block_index() / CLUSTER; }
DEVICE Index tile_stride() { return (last_block() + 1) / CLUSTER; }

// Shared memory: the ring, what the warps put out, the barriers.
struct Shared {
  unsigned ring, puts, full, empty, staged;

  DEVICE Shared() {
    ring = (shared_address(dynamic_shared) + 1023) & ~1023u;
    puts = ring + STAGES * STAGE_BYTES;
    full = puts + CONSUMER_WARPS * BUFFERS * PUTS_BYTES;
    empty = full + STAGES * 8;
    staged = empty + STAGES * 8;
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
  barrier_expect(full, STAGE_BYTES);
  terms.fetch_left(a, &maps.a, full);
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
    terms.fetch_right(a + A_BYTES + g * B_BYTES, &maps.b[tile.lane + g], tile.column, rank, full);
}

DEVICE void fetch_all(const Shared& shared, const TensorMaps& maps, unsigned rank, const Parameters& p) {
  Turn turn;
  for (Index number = first_tile(); number < tiles(p); number += tile_stride()) {
    const Tile tile(number, rank, p);
    Terms terms(tile.row, p);
    for (Index step = 0; step < p.steps; ++step) {
      barrier_wait(shared.empty + turn.stage * 8, turn.parity ^ 1);
      fetch_stage(shared, maps, tile, terms, turn.stage, rank);
      terms.next();
      turn.next();
    }
  }
}

// ---- products

struct Accumulators {
  float of[ACCUMULATED][BLOCKS_M][TILE_N / 2];
};

DEVICE void multiply_stage(Accumulators& sums, unsigned a, bool begun) {
  UNROLLED for (int k = 0; k < ROW_BYTES / 32; ++k) {
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) {
      const unsigned b = a + A_BYTES + g * B_BYTES;
      const unsigned long long right =
          B_TRANSPOSED ? operand(b + k * 32, 16, 1024) : operand(b + k * 2048, 8192, 1024);
      UNROLLED for (int block = 0; block < BLOCKS_M; ++block)
        warpgroup_product(sums.of[g][block], operand(a + block * 8192 + k * 32, 16, 1024), right, begun || k > 0);
    }
  }
}

// One warp of this warpgroup is done with a stage, for every block that may fetch into it.
DEVICE void release(const Shared& shared, int stage) {
  const unsigned lane = thread_index() % 32;
  if (lane < CLUSTER) barrier_arrive_at(shared.empty + stage * 8, lane);
}

// The warpgroups fetch from the ring strictly in turns: a barrier's parity tells apart two rounds, not three.
DEVICE void multiply(Accumulators& sums, const Shared& shared, Turn& turn, int consumer, const Parameters& p) {
  int before = 0;
  wait_for_turn(1 + consumer);
  for (Index step = 0; step < p.steps; ++step) {
    barrier_wait(shared.full + turn.stage * 8, turn.parity);
    products_begin();
    multiply_stage(sums, shared.ring + turn.stage * STAGE_BYTES, step > 0);
    close_group_of_products();
    if (step > 0) {
      wait_for_products<1>();
      release(shared, before);
    }
    before = turn.stage;
    turn.next();
  }
  pass_turn_to(2 - consumer);
  wait_for_products<0>();
  release(shared, before);
}

// ---- the body

// Fetches this warp's share of the staged operand, once what was put from there has been read.
DEVICE void stage(const TensorMaps& maps, const Tile& tile, unsigned puts, unsigned arrived) {
  wait_until_read<0>();
  barrier_expect(arrived, CHUNK_NUMBER * PUTS_BYTES);
  UNROLLED for (int number = 0; number < CHUNK_NUMBER; ++number)
    fetch_staged(maps, tile.lane, tile.column + number % (TILE_N / CHUNK) * CHUNK,
                 tile.row + number / (TILE_N / CHUNK) * 64 + thread_index() / 32 % 4 * CHUNK_ROWS,
                 puts + number * PUTS_BYTES, arrived);
}

// A thread's share of a warpgroup product: in each group of eight columns two neighbours, in a row and in the one eight
// rows below. A warp finishes a tile in chunks, from left to right, then from top to bottom.
constexpr int GROUPS = CHUNK / 8;
constexpr int CHUNKS = TILE_N / CHUNK;

struct TileHeld {
  ColumnHeld<2> columns[TILE_N / 8];
  RowHeld rows[BLOCKS_M];
};
struct ChunkHeld {
  CellHeld<2> cells[GROUPS][2];
};

DEVICE Place place_in(const Tile& tile, const Parameters& p) {
  const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
  return {tile.row + warp * CHUNK_ROWS + lane / 4, tile.column + lane % 4 * 2, p.m, p.n};
}

// Fetched before the products, whose time hides the wait.
DEVICE void load_tile(TileHeld& held, const Pointers& operands, const Place& at) {
  UNROLLED for (int group = 0; group < TILE_N / 8; ++group)
    held.columns[group] = load_column<2>(operands, at, group * 8);
  UNROLLED for (int block = 0; block < BLOCKS_M; ++block) held.rows[block] = load_rows(operands, at, block * 64);
}

template <int NUMBER> DEVICE void load_chunk(ChunkHeld& held, const Pointers& operands, const Place& at) {
  constexpr int DOWN = NUMBER / CHUNKS * 64, RIGHT = NUMBER % CHUNKS * CHUNK;
  UNROLLED for (int group = 0; group < GROUPS; ++group)
    UNROLLED for (int half = 0; half < 2; ++half)
      held.cells[group][half] = load_cell<2>(operands, at, DOWN + half * 8, RIGHT + group * 8);
}

template <int NUMBER>
DEVICE void finish_chunk(const Accumulators& sums, const TileHeld& tile, const ChunkHeld& chunk, unsigned puts) {
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
          product[g] = sums.of[g][BLOCK][(FIRST + group) * 4 + half * 2 + next];
        result[half][next] =
            apply(element(product, tile.columns[FIRST + group], cell, tile.rows[BLOCK], half, next));
      }
    }
    UNROLLED for (int half = 0; half < 2; ++half) put_results(puts, result[half], lane / 4, half, group, lane % 4);
  }
}

template <int NUMBER>
DEVICE void finish_from(const Accumulators& sums, const TileHeld& held, const Pointers& operands, const TensorMaps& maps,
                        const Tile& tile, const Place& at, unsigned puts, const Parameters& p) {
  if constexpr (NUMBER < CHUNKS * BLOCKS_M) {
    const unsigned here = puts + NUMBER % BUFFERS * PUTS_BYTES;
    const bool first_lane = thread_index() % 32 == 0;
    ChunkHeld chunk;
    load_chunk<NUMBER>(chunk, operands, at);
    // The tile before ended in this very buffer where their number is odd.
    if (!STAGED && first_lane) wait_until_read<(NUMBER == 0 && CHUNK_NUMBER % 2 == 1) ? 0 : 1>();
    wait_for_warp();
    finish_chunk<NUMBER>(sums, held, chunk, here);
    show_to_copy_engine();
    wait_for_warp();
    if (first_lane) {
      put_chunk(maps, tile.lane, tile.column + NUMBER % CHUNKS * CHUNK,
                tile.row + NUMBER / CHUNKS * 64 + thread_index() / 32 % 4 * CHUNK_ROWS, here);
      close_group_of_puts();
    }
    finish_from<NUMBER + 1>(sums, held, operands, maps, tile, at, puts, p);
  }
}

DEVICE void consume_all(const Shared& shared, const TensorMaps& maps, unsigned rank, int consumer,
                        const Operands& operands, const Parameters& p) {
  const int warp = consumer * 4 + thread_index() / 32 % 4;
  const unsigned puts = shared.puts + warp * BUFFERS * PUTS_BYTES, arrived = shared.staged + warp * 8;
  unsigned parity = 0;
  Turn turn;
  int whose = 0;
  if (consumer == 1) pass_turn_to(1);
  for (Index number = first_tile(); number < tiles(p); number += tile_stride(), whose ^= 1) {
    if (whose != consumer) {
      turn.advance(p.steps);
      continue;
    }
    const Tile tile(number, rank, p);
    const Place at = place_in(tile, p);
    const Pointers mine = operands.of(tile.lane);
    if (STAGED && thread_index() % 32 == 0) stage(maps, tile, puts, arrived);
    TileHeld held;
    load_tile(held, mine, at);
    Accumulators sums;
    multiply(sums, shared, turn, consumer, p);
    if constexpr (STAGED) barrier_wait(arrived, parity);
    parity ^= 1;
    finish_from<0>(sums, held, mine, maps, tile, at, puts, p);
  }
  if (thread_index() % 32 == 0) wait_until_read<0>();
}

DEVICE void gemm(const Operands& operands, const TensorMaps& maps, const Parameters& p) {
  const Shared shared;
  const unsigned rank = CLUSTER > 1 ? rank_in_cluster() : 0;
  if (thread_index() == 0) {
    for (int stage = 0; stage < STAGES; ++stage) {
      barrier_init(shared.full + stage * 8, 1);
      barrier_init(shared.empty + stage * 8, 4 * CLUSTER);
    }
    for (int warp = 0; warp < CONSUMER_WARPS; ++warp) barrier_init(shared.staged + warp * 8, 1);
    barriers_made();
  }
  join_stream();
  if constexpr (CLUSTER > 1) wait_for_cluster();
  else wait_for_block();

  const int group = thread_index() / 128;
  if (group == 0) {
    give_registers_back<40>();
    if (thread_index() == 0) fetch_all(shared, maps, rank, p);
  } else {
    take_registers<232>();
    consume_all(shared, maps, rank, group - 1, operands, p);
  }
  if constexpr (CLUSTER > 1) {
    wait_for_warp();
    wait_for_cluster();  // no block leaves while others may still signal its barriers or fetch into it
  }
}
