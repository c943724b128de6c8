// The right factor of the kernel of sm90.cu where it lies in few bits (packed.cuh): a warpgroup of its own computes it stage
// by stage. It copies numbers, scales and zero points to where they will be elements, COPIES stages ahead of the one
// that it computes; another stage is left to the products.
//
// A thread has RUN terms, of one block, of every LINESth column: 64 bytes of the tile, whose first 16 or 32 hold the numbers
// before, the piece behind these the words in which scale and zero point lie.

static_assert(CLUSTER == 1 && B_TRANSPOSED && sizeof(Factor) == 2, "the plan knows");

constexpr int RUN = 32, LINES = 64;
constexpr int RUN_PIECES = RUN * sizeof(Factor) / 16, NUMBER_PIECES = RUN * RightFactor::BITS / 8 / 16;
constexpr int RIGHT_TURNS = (TILE_N + LINES - 1) / LINES;
static_assert(TILE_K == 2 * RUN && RightFactor::BLOCK >= RUN, "two threads have a column, of a block each");

// A thread's run in one of its columns.
struct Run {
  unsigned tile;
  int line, piece;          // of the tile
  Index column, term, k;
  bool there;

  DEVICE Run(unsigned tile, int turn, const Tile& of, Index n, Index step, Index k)
      : tile(tile), line(thread_index() % 128 / 2 + turn * LINES), piece(thread_index() % 2 * RUN_PIECES), column(of.column + line),
        term(step * TILE_K + thread_index() % 2 * RUN), k(k) {
    there = column < n && term < k;
  }
  // Whether the tile has such a column.
  static DEVICE bool inside(int turn) { return TILE_N % LINES == 0 || (int)thread_index() % 128 / 2 + turn * LINES < TILE_N; }
  DEVICE unsigned at(int number) const { return tile + swizzled(line, piece + number); }
  DEVICE Index blocks() const { return k / RightFactor::BLOCK; }
  DEVICE unsigned long long block() const { return (unsigned long long)column * blocks() + term / RightFactor::BLOCK; }
  DEVICE unsigned long long zero_byte() const {
    return RightFactor::zero_byte(column, term / RightFactor::BLOCK, blocks());
  }
  // Copies the word in which something lies.
  DEVICE void copy_word(unsigned to, const void* bytes, unsigned long long byte) const {
    copy_async<4>(to, (const char*)bytes + (byte & ~3ull), there);
  }
  DEVICE void copy(const RightFactor& matrix) const {
    const unsigned char* numbers = matrix.numbers + ((unsigned long long)column * k + term) * RightFactor::BITS / 8;
    UNROLLED for (int i = 0; i < NUMBER_PIECES; ++i) copy_async<16>(at(i), numbers + i * 16, there);
    copy_word(at(NUMBER_PIECES), matrix.scales, block() * 2);
    if constexpr (RightFactor::ZEROS == Zeros::PACKED) copy_word(at(NUMBER_PIECES) + 4, matrix.zeros, zero_byte());
    if constexpr (RightFactor::ZEROS == Zeros::REAL) copy_word(at(NUMBER_PIECES) + 4, matrix.zeros, block() * 2);
  }
};

// What is copied for a run: the numbers, and the bits of the scale and of the zero point.
struct Copied {
  unsigned number[NUMBER_PIECES * 4], scale, zero;

  DEVICE explicit Copied(const Run& run) {
    UNROLLED for (int i = 0; i < NUMBER_PIECES; ++i) {
      unsigned four[4];
      load_shared(four, run.at(i));
      UNROLLED for (int w = 0; w < 4; ++w) number[i * 4 + w] = four[w];
    }
    unsigned beside[2];
    load_shared(beside, run.at(NUMBER_PIECES));
    scale = half_of(beside[0], run);
    zero = half_of(beside[1], run);
    if constexpr (RightFactor::ZEROS == Zeros::PACKED) {
      const int bit = (int)(run.zero_byte() % 4) * 8 + RightFactor::zero_shift(run.term / RightFactor::BLOCK);
      zero = beside[1] >> bit & RightFactor::MASK;
    }
  }
  static DEVICE unsigned half_of(unsigned word, const Run& run) { return word >> (int)(run.block() % 2) * 16 & 0xffffu; }
  DEVICE void compute(const Run& run) const {
    UNROLLED for (int piece = 0; piece < RUN_PIECES; ++piece) {
      unsigned word[4];
      elements_of(word, number + piece * NUMBER_PIECES, scale, zero);
      store_shared(run.at(piece), word);
    }
  }
};

template <>
DEVICE void compute_factor<UnpackedFactor>(const SharedMemory& shared, const Operands& operands, unsigned rank,
                                           const Parameters& p) {
  const Steps steps(rank, p);
  Course here(rank, p), ahead = here;
  const auto each_run = [&](const Course& course, const auto& act) {
    const Index n = course.tile.columns(p);
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
      UNROLLED for (int turn = 0; turn < RIGHT_TURNS; ++turn)
        if (Run::inside(turn))
          act(Run(shared.b(course.state) + g * B_BYTES, turn, course.tile, n, steps.first + course.step, p.k), g);
  };
  const auto copy = [&] {
    if (ahead.goes_on(p)) {
      shared.pipeline.producer_acquire(ahead.state);
      each_run(ahead, [&](const Run& run, int g) { run.copy(right_factor(operands, ahead.tile.sibling + g)); });
      ahead.next(steps, rank, p);
    }
    commit_copies();
  };
  _Pragma("unroll 1") for (int stage = 0; stage < COPIES; ++stage) copy();
  while (here.goes_on(p)) {
    wait_for_copies<COPIES - 1>();
    each_run(here, [&](const Run& run, int) { Copied(run).compute(run); });
    commit_computed(shared, here.state);
    here.next(steps, rank, p);
    copy();
  }
}
