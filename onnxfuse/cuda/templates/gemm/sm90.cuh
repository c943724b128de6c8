// What the kernel of sm90.cu does up to the sums of a tile: fetching, computing a left factor, products.

constexpr int BLOCKS_M = TILE_M / 64 / WARPGROUPS;  // warpgroup products below each other
constexpr int WIDTH = ACCUMULATED * TILE_N;      // of a warpgroup product: the tiles of a gate lie side by side
constexpr int ROW_BYTES = 128;                   // of a factor's tile: TILE_K terms
constexpr int A_BYTES = (LEFT_ROWS * ROW_BYTES + 1023) / 1024 * 1024;  // rows that there are not are read from B
constexpr int B_BYTES = TILE_N * ROW_BYTES;
constexpr int FACTORS_BYTES = A_BYTES + ACCUMULATED * B_BYTES;
constexpr int STAGE_BYTES = FACTORS_BYTES + BESIDE * A_BYTES + (PRECISE ? ACCUMULATED * B_BYTES : 0);
constexpr int CHUNK = 64;                        // columns that a warp puts at once; of 32 the rest lie outside the output
constexpr int CHUNK_ROWS = 16;
constexpr int PUTS_BYTES = CHUNK_ROWS * CHUNK * OUTPUT_BYTES;  // of all outputs together
constexpr int CHUNKS = (TILE_N + CHUNK - 1) / CHUNK;     // beside each other; the last one ends where the tile does
constexpr int CHUNK_NUMBER = CHUNKS * BLOCKS_M;          // of a warp's share of a tile
constexpr int BUFFERS = STAGED ? CHUNK_NUMBER : 2;       // of a warp, for chunks
constexpr int CONSUMERS = TEAMS * WARPGROUPS;
constexpr int FETCHER_REGISTERS = VOLUME || GROUPED || SPLIT > 1 ? 40 : 24;  // places of more digits
// What 65536 registers leave: of a thread at first, and once the fetching warpgroup has given its own back.
constexpr int LAUNCHED_REGISTERS = 65536 / THREADS / 8 * 8;
constexpr int COMPUTER_REGISTERS = PRECISE ? 64 : 96;  // of the warpgroup that computes the left factor, or splits the right
constexpr int CONSUMER_REGISTERS =
    (THREADS * LAUNCHED_REGISTERS - 128 * FETCHER_REGISTERS - (PROLOGUE ? 128 * COMPUTER_REGISTERS : 0)) /
    (CONSUMERS * 128) / 8 * 8;
constexpr int CONSUMER_WARPS = 4 * CONSUMERS;
static_assert(SPLIT == 1 || (CLUSTER == 1 && TEAMS == 1), "who waits for the sums of all blocks");
static_assert(SPLIT <= 2 || TILE_N % CHUNK == 0, "in which order sums are added where chunks lie over each other");
constexpr int CHUNK_SUMS_BYTES = CHUNK_ROWS * CHUNK * ACCUMULATED * 4;
constexpr int PART_BYTES = (CHUNK_NUMBER + SPLIT - 1) / SPLIT * CHUNK_SUMS_BYTES;  // a warp's sums of what one block finishes
constexpr int PANEL = 8;                         // cluster tiles below each other before the next column: stays in L2

// Where a chunk begins in the tile. Of 160 columns the third one computes half of the second one's again: the copy engine
// puts 64 at a time.
DEVICE constexpr int first_column(int number) {
  const int column = number % CHUNKS * CHUNK;
  return column + CHUNK > TILE_N && TILE_N > CHUNK ? TILE_N - CHUNK : column;
}

struct Parameters : Source, Stores, Groups, Products {
  Sides<SIBLINGS, EVEN> sides;
  Index m, steps;             // steps: TILE_K terms each
  Index rows;                 // cluster tiles below each other
  Index k;
  Index lines;                // rows of the innermost matrix of the output
};

struct Tile {
  Index row, column;  // of the product
  int sibling;           // which of the bodies side by side
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
    // not the copy engine writes zeros, 7 ns for each, where it brings one in 1.2 (128x128 of 320 filters, H200, 2026-11).
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

// Shared memory: the ring, what the warps put out, what other blocks send, the barriers.
struct Shared {
  unsigned ring, puts, parts, full, empty, staged, made, pieces;

  DEVICE Shared() {
    ring = (shared_address(dynamic_shared) + 1023) & ~1023u;
    puts = ring + STAGES * STAGE_BYTES;
    parts = puts + CONSUMER_WARPS * BUFFERS * PUTS_BYTES;
    full = parts + (SPLIT - 1) * PART_WARPS * PART_BYTES;
    empty = full + STAGES * 8;
    staged = empty + STAGES * 8;
    made = staged + CONSUMER_WARPS * 8;
    pieces = (made + STAGES * 8 + 15) & ~15u;
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
  barrier_expect(full, FETCHED_LEFT * LEFT_ROWS * ROW_BYTES + ACCUMULATED * B_BYTES);
  fetch_left(maps, terms, a, a + FACTORS_BYTES, A_BYTES, full);
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
    terms.fetch_right(a + A_BYTES + g * B_BYTES, &maps.b[tile.sibling + g], tile.column, CLUSTER > 1 ? rank : 0, full);
}

DEVICE void fetch_all(const Shared& shared, const TensorMaps& maps, unsigned rank, const Parameters& p) {
  Turn turn;
  for (Index number = first_tile(); number < tiles(p); number += tile_stride()) {
    const Tile tile(number, rank, p);
    const Steps steps(rank, p);
    Terms terms(tile.row, steps.first, p.matrices(tile.batch), p);
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
DEVICE int place_of_piece() {
  const int down = thread_index() % 128 / 8, piece = thread_index() % 8;
  return down * ROW_BYTES + ((piece ^ down % 8) << 4);
}
template <class From> struct Ahead {
  typename From::Columns columns;
  typename From::Rows rows[TURNS];
  int there;  // terms from this thread's on

  DEVICE void load(const From& from, const LeftRows& left, Index step) {
    load_rows(from, left, step);
    columns = from.columns(left.term + step * TILE_K + thread_index() % 8 * From::W, there);
  }
  DEVICE void load_rows(const From& from, const LeftRows& left, Index step) {
    const Index term = left.term + step * TILE_K + thread_index() % 8 * From::W, row = left.row + thread_index() % 128 / 8;
    there = term < left.k ? (int)(left.k - term) : 0;
    UNROLLED for (int turn = 0; turn < TURNS; ++turn)
      rows[turn] = from.rows(row + turn * 16, row + turn * 16 < left.m, term, there);
  }
  DEVICE void compute(unsigned a) const {
    const int down = thread_index() % 128 / 8;
    const unsigned place = a + place_of_piece();
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

// This warp has computed its part of a stage.
DEVICE void hand_over(const Shared& shared, int stage) {
  show_to_copy_engine();
  wait_for_warp();
  if (thread_index() % 32 == 0) barrier_arrive(shared.made + stage * 8);
}

// A warpgroup of its own computes it, stage by stage, as far ahead of the products as the ring is long.
template <class From>
DEVICE void compute_fetched(const Shared& shared, const Operands& operands, unsigned rank, const Parameters& p) {
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
      hand_over(shared, turn.stage);
    }
  }
}

// Where a block is on its way through the steps of all its tiles.
struct Course {
  Index number, row, step;
  Turn turn;

  DEVICE Course(unsigned rank, const Parameters& p) : number(first_tile()), row(Tile(number, rank, p).row), step(0) {}
  DEVICE bool goes_on(const Parameters& p) const { return number < tiles(p); }
  DEVICE void next(const Steps& steps, unsigned rank, const Parameters& p) {
    turn.next();
    if (++step < steps.count) return;
    step = 0;
    number += tile_stride();
    if (goes_on(p)) row = Tile(number, rank, p).row;
  }
};

// Of matrices whose terms lie side by side each thread copies its own pieces, whichever of them they are in: COPIES stages
// are on their way while it computes one. Another one is left to the products.
constexpr int COPIES = STAGES > 2 ? STAGES - 2 : 1;

// What is the same for all rows of 16 bytes of terms, in shared memory: which of the matrices they are in is a comparison
// with each, and the vectors come too late from global memory.
template <class From> struct alignas(16) Piece {
  typename From::Columns columns;
  typename From::Run run;
};
template <class From> DEVICE Piece<From>* pieces(const Shared& shared) {
  static_assert(sizeof(Piece<From>) <= PIECE_BYTES, "the plan counts as the kernel does");
  return (Piece<From>*)(dynamic_shared + (shared.pieces - shared_address(dynamic_shared)));
}
template <class From> DEVICE void find_pieces(Piece<From>* to, const From& from, const Parameters& p) {
  for (Index number = thread_index() % 128; number < p.steps * 8; number += 128) {
    const Index term = number * From::W;
    to[number].columns = from.columns(term, term < p.k ? (int)(p.k - term) : 0);
    to[number].run = from.run(term);
  }
}

template <class Run>
DEVICE void copy_pieces(unsigned a, const Run& run, Index term, Index row, const Parameters& p) {
  const int down = thread_index() % 128 / 8;
  const unsigned place = a + place_of_piece();
  row += down;
  UNROLLED for (int turn = 0; turn < TURNS; ++turn) {
    if (down + turn * 16 >= LEFT_ROWS) break;
    const bool there = term < p.k && row + turn * 16 < p.m;
    copy_beside<16>(place + turn * 16 * ROW_BYTES, there ? run.at(row + turn * 16) : run.from, there);
  }
}
template <class From>
DEVICE void compute_joined(const Shared& shared, const Operands& operands, unsigned rank, const Parameters& p) {
  const Steps steps(rank, p);
  Course here(rank, p), ahead = here;
  LeftRows left(operands, here.row, steps.first, p);
  Piece<From>* const mine = pieces<From>(shared) + thread_index() % 8;
  const auto copy = [&](const auto& run_of) {
    if (ahead.goes_on(p)) {
      const Index step = steps.first + ahead.step;
      barrier_wait(shared.empty + ahead.turn.stage * 8, ahead.turn.parity ^ 1);
      copy_pieces(shared.ring + ahead.turn.stage * STAGE_BYTES, run_of(step), step * TILE_K + thread_index() % 8 * From::W,
                  ahead.row, p);
      ahead.next(steps, rank, p);
    }
    close_group_of_copies();
  };
  _Pragma("unroll 1") for (int stage = 0; stage < COPIES; ++stage)
    copy([&](Index step) { return left.from.run(step * TILE_K + thread_index() % 8 * From::W); });
  find_pieces(pieces<From>(shared), left.from, p);
  wait_for_turn<128>(3);
  Ahead<From> vectors;
  if (here.goes_on(p)) vectors.load_rows(left.from, left, 0);
  while (here.goes_on(p)) {
    const int stage = here.turn.stage;
    vectors.columns = mine[(steps.first + here.step) * 8].columns;
    wait_for_copies<COPIES - 1>();
    vectors.compute(shared.ring + stage * STAGE_BYTES);
    hand_over(shared, stage);
    here.next(steps, rank, p);
    if (here.goes_on(p)) {
      left.row = here.row;
      vectors.load_rows(left.from, left, here.step);
    }
    copy([&](Index step) { return mine[step * 8].run; });
  }
}

template <class From>
DEVICE void compute_all(const Shared& shared, const Operands& operands, unsigned rank, const Parameters& p) {
  if constexpr (FETCHED_LEFT > 0) compute_fetched<From>(shared, operands, rank, p);
  else compute_joined<From>(shared, operands, rank, p);
}
template <>
DEVICE void compute_all<GivenFactor>(const Shared&, const Operands&, unsigned, const Parameters&) {}

// ---- products

struct Accumulators {
  float of[BLOCKS_M][WIDTH / 2];
};

template <int COUNT> DEVICE void multiply_slices(Accumulators& sums, unsigned a, unsigned b, bool begun) {
  UNROLLED for (int k = 0; k < COUNT; ++k) {
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

// The products of this warpgroup's rows, the `member`th of its team, of one step; those of the step before are done then.
template <int COUNT>
DEVICE void multiply_step(Accumulators& sums, const Shared& shared, Turn& turn, int& before, int member, bool begun) {
  const unsigned a = shared.ring + turn.stage * STAGE_BYTES;
  wait_for_stage(shared, turn);
  products_begin();
  multiply_slices<COUNT>(sums, a + member * BLOCKS_M * 8192, a + A_BYTES, begun);
  close_group_of_products();
  if (begun) {
    wait_for_products<1>();
    release(shared, before);
  }
  before = turn.stage;
  turn.next();
}

// Of all steps. Where the last one has terms in LAST_SLICES only, it is a step of its own behind the others: a branch in
// its midst would have the compiler wait for each product. 32 x 384x768x196 with GELU: 15.0 us, 16.0 without (H200,
// 2026-11). Beside what writes moved outputs there are no registers left for it.
template <class From>
DEVICE void multiply(Accumulators& sums, const Shared& shared, Turn& turn, int member, Index steps) {
  constexpr bool RAGGED = LAST_SLICES < SLICES && SPLIT == 1 && !MOVED;
  int before = 0;
  if constexpr (TEAMS > 1) wait_for_turn<CONSUMERS * 128>(1 + this_team());
  for (Index step = 0; step < steps - RAGGED; ++step)
    multiply_step<SLICES>(sums, shared, turn, before, member, step > 0);
  if constexpr (RAGGED) multiply_step<LAST_SLICES>(sums, shared, turn, before, member, steps > 1);
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

// Of a split tile each block finishes a share of the chunks; those of a cluster that share a factor finish all of their own.
DEVICE constexpr bool is_mine(int number, unsigned rank) { return SPLIT == 1 || number % SPLIT == (int)rank; }
DEVICE constexpr int number_of_mine(unsigned rank) {
  return SPLIT == 1 ? CHUNK_NUMBER : (CHUNK_NUMBER + SPLIT - 1 - (int)rank) / SPLIT;
}

// Where a warp's sums of a chunk lie in the block that finishes it, for each of the others, in the order of their ranks.
DEVICE unsigned part_of(const Shared& shared, int number, int other) {
  const unsigned lane = thread_index() % 32, warp = thread_index() / 32;
  return shared.parts + (other * PART_WARPS + warp) * PART_BYTES + number / SPLIT * CHUNK_SUMS_BYTES + lane * 16;
}

// The first of a thread's four sums of a group of eight columns of a chunk, those of all products of a gate.
DEVICE constexpr int first_sum(int number, int group) {
  constexpr int GROUPS = CHUNK / 8;
  return group / GROUPS * (TILE_N / 2) + first_column(number) / 2 + group % GROUPS * 4;
}

DEVICE void send(const Accumulators& sums, const Shared& shared, unsigned rank) {
  UNROLLED for (int number = 0; number < CHUNK_NUMBER; ++number) {
    const unsigned owner = number % SPLIT;
    if (owner == rank) continue;
    const unsigned to = address_in(part_of(shared, number, rank - (rank > owner)), owner);
    UNROLLED for (int group = 0; group < ACCUMULATED * CHUNK / 8; ++group)
      store_there(to + group * 512, &sums.of[number / CHUNKS][first_sum(number, group)]);
  }
}

DEVICE void gather(Accumulators& sums, const Shared& shared, int number) {
  for (int other = 0; other < SPLIT - 1; ++other) {
    const unsigned from = part_of(shared, number, other);
    UNROLLED for (int group = 0; group < ACCUMULATED * CHUNK / 8; ++group)
      add_shared(&sums.of[number / CHUNKS][first_sum(number, group)], from + group * 512);
  }
}
