// The parts of the kernel of sm90.cu: its tiles, its shared memory, what the producer loads and the consumers multiply.

constexpr int BLOCKS_M = TILE_M / 64 / WARPGROUPS;  // warpgroup products below each other
constexpr int WIDTH = ACCUMULATED * TILE_N;         // of a warpgroup product: the tiles of a gate lie side by side
constexpr int ROW_BYTES = 128;                      // of a factor's tile: TILE_K terms
constexpr int A_BYTES = (LEFT_ROWS * ROW_BYTES + 1023) / 1024 * 1024;  // rows that there are not are read from B
constexpr int B_BYTES = TILE_N * ROW_BYTES;
constexpr int FACTORS_BYTES = A_BYTES + ACCUMULATED * B_BYTES;
constexpr int STAGE_BYTES = FACTORS_BYTES + BESIDE * A_BYTES + (PRECISE ? ACCUMULATED * B_BYTES : 0);
constexpr int CHUNK = 64;  // columns that a warp stores at once; of 32 the rest lie outside the output
constexpr int CHUNK_ROWS = 16;
constexpr int OUTPUT_CHUNK_BYTES = CHUNK_ROWS * CHUNK * OUTPUT_BYTES;  // of all outputs together
constexpr int CHUNKS = (TILE_N + CHUNK - 1) / CHUNK;  // beside each other; the last one ends where the tile does
constexpr int CHUNK_NUMBER = CHUNKS * BLOCKS_M;       // of a warp's share of a tile
constexpr int BUFFERS = STAGED ? CHUNK_NUMBER : 2;    // of a warp, for chunks
constexpr int CONSUMERS = TEAMS * WARPGROUPS;
constexpr bool IN_TURNS = TEAMS > 1 && RINGS == 1;
constexpr int CONSUMER_WARPS = 4 * CONSUMERS;
// Of a producer's thread, and of one that computes the left factor, or splits the right one.
constexpr int PRODUCER_REGISTERS = VOLUME || GROUPED || SPLIT > 1 ? 40 : 24;  // coordinates of more digits
constexpr int COMPUTER_REGISTERS = PRECISE ? 64 : 96;
constexpr int CONSUMER_REGISTERS =
    consumer_registers(THREADS, 1, CONSUMERS, PRODUCER_REGISTERS + COMPUTERS * COMPUTER_REGISTERS);
constexpr int CHUNK_SUMS_BYTES = CHUNK_ROWS * CHUNK * ACCUMULATED * 4;
constexpr int PART_BYTES =
    (CHUNK_NUMBER + SPLIT - 1) / SPLIT * CHUNK_SUMS_BYTES;  // a warp's sums of what one block finishes
constexpr int PANEL = 8;  // cluster tiles below each other before the next column: stays in L2
static_assert(SPLIT == 1 || (CLUSTER == 1 && TEAMS == 1), "who waits for the sums of all blocks");
static_assert(SPLIT <= 2 || TILE_N % CHUNK == 0, "in which order sums are added where chunks lie over each other");

struct Parameters : Source, Stores, Groups, Products {
  Sides<SIBLINGS, EVEN> sides;
  Index m, steps;  // steps: TILE_K terms each
  Index rows;      // cluster tiles below each other
  Index k;
  Index lines;  // rows of the innermost matrix of the output
};

// ---- the tiles of a persistent block

struct Tile {
  Index row, column;  // of the product
  int sibling;        // which of the bodies side by side
  Index batch;        // which product

  DEVICE Tile(Index number, unsigned rank, const Parameters& p) : batch(0) {
    const Index across = p.sides.across();
    if constexpr (BATCHED) {
      batch = number / (p.rows * across);
      number -= batch * (p.rows * across);
    }
    const Index panel = number / (PANEL * across), inside = number - panel * (PANEL * across);
    const Index first = panel * PANEL, height = p.rows - first < PANEL ? p.rows - first : PANEL;
    const Index x = inside / height;
    sibling = p.sides.sibling(x);
    row = ((first + inside % height) * CLUSTER + (CLUSTER > 1 ? rank : 0)) * TILE_M;
    column = p.sides.own(x, sibling) * TILE_N;
    // The last one ends with the columns and computes some of the one before it again: of a factor's rows that there are
    // not TMA writes zeros, 7 ns for each, where it brings one in 1.2 (128x128 of 320 filters, H200, 2026-11).
    const Index n = columns(p);
    if (B_TRANSPOSED && n >= TILE_N && column + TILE_N > n) column = n - TILE_N;
  }
  // Of its body's products: looked up, since beside the sums no register is left for it.
  DEVICE Index columns(const Parameters& p) const { return p.sides.columns_of(sibling); }
};

// The steps of a block: all of them, or its share.
struct Steps {
  Index first, count;

  DEVICE Steps(unsigned rank, const Parameters& p) {
    first = SPLIT > 1 ? p.steps * rank / SPLIT : 0;
    count = (SPLIT > 1 ? p.steps * (rank + 1) / SPLIT : p.steps) - first;
  }
};

DEVICE Index tiles(const Parameters& p) { return p.rows * p.sides.across() * p.products(); }
DEVICE Index first_tile() { return block_index() / TOGETHER; }
DEVICE Index tile_stride() { return (last_block() + 1) / TOGETHER; }

// ---- shared memory

using State = PipelineState<STAGES>;

// The stages of a ring, of which each team may have its own, the chunks that warps store, the sums that other blocks send, the
// barriers. A stage is full once TMA has brought its factors and, behind a prologue, four warps have computed the left one.
struct SharedMemory {
  unsigned stages, outputs, parts;
  TmaPipeline<STAGES, PROLOGUE ? 2 : 1, CLUSTER> pipeline;
  unsigned staged, pieces;

  DEVICE explicit SharedMemory(int ring) {
    stages = (shared_address(dynamic_shared) + 1023) & ~1023u;
    outputs = stages + RINGS * STAGES * STAGE_BYTES;
    parts = outputs + CONSUMER_WARPS * BUFFERS * OUTPUT_CHUNK_BYTES;
    pipeline = {parts + (SPLIT - 1) * PART_WARPS * PART_BYTES};
    staged = pipeline.barriers + RINGS * pipeline.BARRIER_BYTES;
    if constexpr (RINGS > 1) {
      stages += ring * STAGES * STAGE_BYTES;
      pipeline.barriers += ring * pipeline.BARRIER_BYTES;
    }
    pieces = (staged + CONSUMER_WARPS * 8 + 15) & ~15u;
  }
  DEVICE unsigned a(const State& at) const { return stages + at.stage * STAGE_BYTES; }
  DEVICE unsigned b(const State& at) const { return a(at) + A_BYTES; }
};

// ---- the producer

DEVICE void produce(const SharedMemory& shared, const TensorMaps& maps, unsigned rank, int ring, const Parameters& p) {
  const auto& pipeline = shared.pipeline;
  State state;
  for (Index number = first_tile() + ring * tile_stride(); number < tiles(p); number += RINGS * tile_stride()) {
    const Tile tile(number, rank, p);
    const Steps steps(rank, p);
    Terms terms(tile.row, steps.first, p.matrices(tile.batch), p);
    for (Index step = 0; step < steps.count; ++step) {
      pipeline.producer_acquire(state);
      const unsigned full = pipeline.full(state), a = shared.a(state);
      pipeline.producer_expect(state,
                               (FETCHED_LEFT * LEFT_ROWS + (PACKED ? 0 : ACCUMULATED * TILE_N)) * FETCHED_SLICES * 32);
      load_left(maps, terms, a, a + FACTORS_BYTES, A_BYTES, full);
      UNROLLED for (int g = 0; g < ACCUMULATED; ++g) load_right(
          maps, terms, shared.b(state) + g * B_BYTES, tile.sibling + g, tile.column, CLUSTER > 1 ? rank : 0, full);
      terms.next();
      state.advance();
    }
  }
}

// What a warpgroup of its own makes of a stage's factors, for a kernel with a PROLOGUE: sm90_prologue.cuh, sm90_precise.cuh,
// sm90_packed.cuh.
template <class Prologue>
DEVICE void compute_factor(const SharedMemory& shared, const Operands& operands, unsigned rank, const Parameters& p);
template <> DEVICE void compute_factor<GivenFactor>(const SharedMemory&, const Operands&, unsigned, const Parameters&) {
}

// Where it is on its way through the steps of all tiles of its block.
struct Course {
  Index number, step;
  Tile tile;
  State state;

  DEVICE Course(unsigned rank, const Parameters& p) : number(first_tile()), step(0), tile(number, rank, p) {}
  DEVICE bool goes_on(const Parameters& p) const { return number < tiles(p); }
  DEVICE void next(const Steps& steps, unsigned rank, const Parameters& p) {
    state.advance();
    if (++step < steps.count) return;
    step = 0;
    number += tile_stride();
    if (goes_on(p)) tile = Tile(number, rank, p);
  }
};
// Stages that its own copies bring, if TMA does not, while it computes one. Another one is left to the products.
constexpr int COPIES = STAGES > 2 ? STAGES - 2 : 1;

// This warp has computed its part of a stage.
DEVICE void commit_computed(const SharedMemory& shared, const State& state) {
  fence_async_proxy();
  wait_for_warp();
  if (thread_index() % 32 == 0) shared.pipeline.producer_commit(state, 1);
}

// ---- the consumers. Two teams multiply in turns (ping-pong), unless each has a ring of its own

struct Accumulators { float of[BLOCKS_M][WIDTH / 2]; };

DEVICE int this_team() { return thread_index() / (WARPGROUP * WARPGROUPS); }
DEVICE void wait_for_turn() {
  if constexpr (IN_TURNS) named_barrier_sync<CONSUMERS * WARPGROUP>(1 + this_team());
}
DEVICE void pass_turn() {
  if constexpr (IN_TURNS) named_barrier_arrive<CONSUMERS * WARPGROUP>(2 - this_team());
}

template <int COUNT> DEVICE void multiply_slices(Accumulators& sums, unsigned a, unsigned b, bool begun) {
  UNROLLED for (int k = 0; k < COUNT; ++k) {
    const unsigned long long right =
        B_TRANSPOSED ? descriptor(b + k * 32, 16, 1024) : descriptor(b + k * 2048, 8192, 1024);
    UNROLLED for (int block = 0; block < BLOCKS_M; ++block)
        wgmma(sums.of[block], descriptor(a + block * 8192 + k * 32, 16, 1024), right, begun || k > 0);
  }
}

// The products of this warpgroup's rows, the `member`th of its team, of one step; those of the step before are done then.
template <int COUNT> DEVICE void multiply_step(Accumulators& sums, const SharedMemory& shared, State& state,
                                               State& before, int member, bool begun) {
  const unsigned a = shared.a(state);
  shared.pipeline.consumer_wait(state);
  wgmma_fence();
  multiply_slices<COUNT>(sums, a + member * BLOCKS_M * 8192, a + A_BYTES, begun);
  wgmma_commit();
  if (begun) {
    wgmma_wait<1>();
    shared.pipeline.consumer_release(before);
  }
  before = state;
  state.advance();
}

// Of all steps. Where the last one has terms in LAST_SLICES only, it is a step of its own behind the others: a branch in
// its midst would have the compiler wait for each product. 32 x 384x768x196 with GELU: 15.0 us, 16.0 without (H200,
// 2026-11). Beside what writes moved outputs there are no registers left for it.
template <class Prologue>
DEVICE void multiply(Accumulators& sums, const SharedMemory& shared, State& state, int member, Index steps) {
  constexpr bool RAGGED = LAST_SLICES < SLICES && SPLIT == 1 && !MOVED;
  State before;
  wait_for_turn();
  for (Index step = 0; step < steps - RAGGED; ++step)
    multiply_step<SLICES>(sums, shared, state, before, member, step > 0);
  if constexpr (RAGGED) multiply_step<LAST_SLICES>(sums, shared, state, before, member, steps > 1);
  pass_turn();
  wgmma_wait<0>();
  shared.pipeline.consumer_release(before);
}

// A warpgroup whose rows all lie below the matrix lets its stages go by.
DEVICE void skip_steps(const SharedMemory& shared, State& state, Index steps) {
  wait_for_turn();
  for (Index step = 0; step < steps; ++step, state.advance()) {
    shared.pipeline.consumer_wait(state);
    shared.pipeline.consumer_release(state);
  }
  pass_turn();
}
