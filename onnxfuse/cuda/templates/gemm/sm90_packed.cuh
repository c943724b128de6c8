// The right factor of the kernel of sm90.cu where it lies in few bits (packed.cuh): a warpgroup of its own computes it stage
// by stage. It copies numbers, scales and zero points to where they will be elements, COPIES stages ahead of the one
// that it computes; another stage is left to the products.
//
// A thread has RUN terms, of one block, of every LINESth column: 64 bytes of the tile, whose first 16 or 32 hold the numbers
// before, the piece behind these the words in which scale and zero point lie. One warp of each scheduler computes: it loads
// what it has of a stage before it stores any of it, so that the runs' instructions overlap.

static_assert(CLUSTER == 1 && B_TRANSPOSED && sizeof(Factor) == 2, "the plan knows");

constexpr int RUN = 32, LINES = COMPUTERS * WARPGROUP / 2;
constexpr int RUN_PIECES = RUN * sizeof(Factor) / 16, NUMBER_PIECES = RUN * RightFactor::BITS / 8 / 16;
constexpr int RIGHT_TURNS = (TILE_N + LINES - 1) / LINES;
static_assert(TILE_K == 2 * RUN && RightFactor::BLOCK >= RUN, "two threads have a column, of a block each");

DEVICE int computing_thread() { return thread_index() - (CONSUMERS + 1) * WARPGROUP; }
DEVICE int first_line() { return computing_thread() / 2; }
// Where in a tile's line the thread's pieces begin.
DEVICE int own_piece() { return computing_thread() % 2 * RUN_PIECES; }
// Whether the tile has such a column.
DEVICE bool is_inside(int turn) { return TILE_N % LINES == 0 || first_line() + turn * LINES < TILE_N; }
DEVICE unsigned run_at(unsigned tile, int turn, int number) {
  return tile + turn * LINES * ROW_BYTES + swizzled(first_line(), own_piece() + number);
}

// The thread's runs of one tile, from its first term on.
struct Runs {
  Index column, n, k, blocks;
  unsigned long long block;  // of the first column: where it begins among all blocks

  DEVICE Runs(const Tile& tile, const Parameters& p)
      : column(tile.column + first_line()), n(tile.columns(p)), k(p.k), blocks(p.k / RightFactor::BLOCK) {
    block = (unsigned long long)column * blocks;
  }
  DEVICE Index block_of(Index term) const { return term / RightFactor::BLOCK; }
  // Copies the word in which something lies.
  static DEVICE void copy_word(unsigned to, const void* bytes, unsigned long long byte, bool there) {
    copy_async<4>(to, (const char*)bytes + (byte & ~3ull), there);
  }
  DEVICE void copy(unsigned tile, const RightFactor& matrix, Index term) const {
    const unsigned char* numbers = matrix.numbers + (block * RightFactor::BLOCK + term) * RightFactor::BITS / 8;
    UNROLLED for (int turn = 0; turn < RIGHT_TURNS; ++turn) {
      if (!is_inside(turn)) break;
      const bool there = column + turn * LINES < n && term < k;
      UNROLLED for (int i = 0; i < NUMBER_PIECES; ++i) copy_async<16>(run_at(tile, turn, i), numbers + i * 16, there);
      numbers += (unsigned long long)LINES * k * RightFactor::BITS / 8;
      const unsigned beside = run_at(tile, turn, NUMBER_PIECES);
      const unsigned long long scale = (block + (unsigned long long)turn * LINES * blocks + block_of(term)) * 2;
      copy_word(beside, matrix.scales, scale, there);
      if constexpr (RightFactor::ZEROS == Zeros::PACKED)
        copy_word(beside + 4, matrix.zeros, RightFactor::zero_byte(column + turn * LINES, block_of(term), blocks),
                  there);
      if constexpr (RightFactor::ZEROS == Zeros::REAL) copy_word(beside + 4, matrix.zeros, scale, there);
    }
  }
  // Where in its word a scale or REAL zero point, and a packed zero point lies, in bits.
  DEVICE int scale_bit(int turn, Index term) const {
    return (int)(((Index)block + turn * LINES * blocks + block_of(term)) % 2) * 16;
  }
  DEVICE int zero_bit(int turn, Index term) const {
    const Index bytes = (blocks * RightFactor::BITS + 7) / 8, of = block_of(term);
    return (int)(((column + turn * LINES) * bytes + of * RightFactor::BITS / 8) % 4) * 8 + RightFactor::zero_shift(of);
  }
};

// What is copied for a run: the numbers, and the bits of the scale and of the zero point.
struct Copied {
  unsigned number[NUMBER_PIECES * 4], scale, zero;

  DEVICE void load(unsigned tile, int turn, const Runs& runs, Index term) {
    UNROLLED for (int i = 0; i < NUMBER_PIECES; ++i) {
      unsigned four[4];
      load_shared(four, run_at(tile, turn, i));
      UNROLLED for (int w = 0; w < 4; ++w) number[i * 4 + w] = four[w];
    }
    unsigned beside[2];
    load_shared(beside, run_at(tile, turn, NUMBER_PIECES));
    scale = beside[0] >> runs.scale_bit(turn, term) & 0xffffu;
    if constexpr (RightFactor::ZEROS == Zeros::PACKED)
      zero = beside[1] >> runs.zero_bit(turn, term) & RightFactor::MASK;
    else zero = beside[1] >> runs.scale_bit(turn, term) & 0xffffu;
  }
  DEVICE void compute(unsigned tile, int turn) const {
    unsigned word[RUN_PIECES][4];
    UNROLLED for (int piece = 0; piece < RUN_PIECES; ++piece)
        elements_of(word[piece], number + piece * NUMBER_PIECES, scale, zero);
    UNROLLED for (int piece = 0; piece < RUN_PIECES; ++piece) store_shared(run_at(tile, turn, piece), word[piece]);
  }
};

// As many runs at once as registers suffice for.
constexpr int AT_ONCE = RIGHT_TURNS % 2 == 0 ? 2 : 1;
DEVICE void compute_tile(unsigned tile, const Runs& runs, Index term) {
  UNROLLED for (int first = 0; first < RIGHT_TURNS; first += AT_ONCE) {
    Copied copied[AT_ONCE];
    UNROLLED for (int i = 0; i < AT_ONCE; ++i) if (is_inside(first + i)) copied[i].load(tile, first + i, runs, term);
    UNROLLED for (int i = 0; i < AT_ONCE; ++i) if (is_inside(first + i)) copied[i].compute(tile, first + i);
  }
}

template <> DEVICE void compute_factor<UnpackedFactor>(const SharedMemory& shared, const Operands& operands,
                                                       unsigned rank, const Parameters& p) {
  const Steps steps(rank, p);
  Course here(rank, p), ahead = here;
  Runs computed(here.tile, p), copied = computed;
  const Index own = computing_thread() % 2 * RUN;
  const auto copy = [&] {
    if (ahead.goes_on(p)) {
      shared.pipeline.producer_acquire(ahead.state);
      UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
          copied.copy(shared.b(ahead.state) + g * B_BYTES, right_factor(operands, ahead.tile.sibling + g),
                      (steps.first + ahead.step) * TILE_K + own);
      ahead.next(steps, rank, p);
      if (ahead.step == 0) copied = Runs(ahead.tile, p);
    }
    commit_copies();
  };
  _Pragma("unroll 1") for (int stage = 0; stage < COPIES; ++stage) copy();
  while (here.goes_on(p)) {
    wait_for_copies<COPIES - 1>();
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
        compute_tile(shared.b(here.state) + g * B_BYTES, computed, (steps.first + here.step) * TILE_K + own);
    commit_computed(shared, here.state);
    here.next(steps, rank, p);
    if (here.step == 0) computed = Runs(here.tile, p);
    copy();
  }
}
