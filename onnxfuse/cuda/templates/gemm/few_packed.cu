// y = body(A B0, A B1, ..., operands) of at most ROWS rows, by weights in few bits (packed.cuh): matrix products whose time
// is that of bringing the bits, once, from memory, with everything pointwise after them.
//
// A [m, k]; its lines may hold more than is read of them. B [n, k] of 4 or 8 bits, k a multiple of TERMS, n of 8, all lines
// on a boundary of 16 bytes. Operands of the body: [m, n], [n], [m, 1], one element. Outputs [m, n]. Types of A: float16,
// bfloat16. Accuracy: numbers are multiplied as they are, with what makes elements of their bits, 1024 or 128, added; that
// and the zero point times the sum of A's terms is subtracted, in the float accumulators of a block: within 2^-24 of a
// thousand times A, where an element of float16 would be rounded by 2^-12 of up to eight times A. Multiplied by
// the scale in float they are added, a warp's share of the terms in each, in the order of the warps; the body reads them
// unrounded, and each output is rounded once.
//
// A block computes COLUMNS columns of a body's products; its WARPS take TERMS terms each in turns (split-K within a
// block, stages as in sm80.cu). A warp fetches numbers, scales and zero points for itself, by asynchronous copies
// through a pipeline of STAGES of its own. As many bytes are on their way as the rings of a GPU's blocks hold, and
// where B is a weight (CONSTANT), which no kernel writes, they are before the kernel ahead has ended. Products are
// taken the other way round, B A: sixteen columns are the rows of a fragment, whose elements a lane makes of one word
// of numbers; eight rows of A are its columns, in the order of the terms in which a word gives them, and come from the
// cache straight to registers a step ahead.

constexpr int TERMS = LINE * 8 / RightFactor::BITS;  // of a step of a warp
constexpr int PIECES = LINE / 16;                    // of a column in a step, which has LINE bytes
constexpr int PIECE_TERMS = TERMS / PIECES;
constexpr int PRODUCTS = WORD_PAIRS / 2;                                             // of fragments, of a piece
constexpr int BLOCKS = TERMS > RightFactor::BLOCK ? TERMS / RightFactor::BLOCK : 1;  // of a column in a step
constexpr int PER_BLOCK = PIECES / BLOCKS;                                           // pieces
constexpr int TILES = COLUMNS / 16, PARTS = ROWS / 8;
constexpr int SCALE_BYTES = BLOCKS * 2 < 4 ? 4 : BLOCKS * 2;  // of a column in a step: a word at least
constexpr int ZERO_BYTES = RightFactor::ZEROS == Zeros::MIDDLE   ? 0
                           : RightFactor::ZEROS == Zeros::PACKED ? 4
                                                                 : SCALE_BYTES;
constexpr int SCALES = COLUMNS * LINE, ZEROS = SCALES + COLUMNS * SCALE_BYTES;  // where they begin in a strip
constexpr int STRIP_BYTES = ZEROS + COLUMNS * ZERO_BYTES;                       // of a step, of each product
constexpr int STAGE_BYTES = ACCUMULATED * STRIP_BYTES;
constexpr int STEP_TERMS = WARPS * TERMS;
static_assert(RightFactor::BLOCK >= PIECE_TERMS, "a piece has one scale");
static_assert(LINE == 16 || LINE == 32 || LINE == 64, "lanes fetch whole lines");
static_assert(COLUMNS % 16 == 0 && (ROWS == 8 || ROWS == 16), "fragments are whole");
using Strip = SwizzledTile<LINE, XorSwizzle<PIECES>>;
using Mma = MmaSync<Factor>;
using Pipeline = AsyncPipeline<WarpScope, STAGES>;
static_assert(SHARED_BYTES - LEFT_BYTES >= WARPS * STAGES * STAGE_BYTES &&
                  SHARED_BYTES - LEFT_BYTES >= BlockSums::BYTES,
              "the plan counts as the kernel does");

// ---- the factors

// A warp's strip of B: columns `column` on, from term `term` on.
struct Right {
  RightFactor matrix;
  Index column, term, terms;
  int columns;  // of the strip's

  DEVICE Right() {}
  DEVICE Right(const RightFactor& matrix, Index column, Index columns_of_all, Index first, Index terms)
      : matrix(matrix), column(column), term(first), terms(terms), columns((int)(columns_of_all - column)) {}
  DEVICE void next() { term += STEP_TERMS; }
  DEVICE Index blocks() const { return terms / RightFactor::BLOCK; }
  // Of a line's block: where among all, which is its place in the scales and REAL zero points.
  DEVICE unsigned long long block_of(int line, Index first) const {
    return (unsigned long long)(column + line) * blocks() + first / RightFactor::BLOCK;
  }
  DEVICE void fetch(SharedAddress to) const {
    const int lane = thread_index() % 32;
    const bool more = term < terms;
    UNROLLED for (int turn = 0; turn < (COLUMNS * PIECES + 31) / 32; ++turn) {
      const int line = turn * (32 / PIECES) + lane / PIECES, piece = lane % PIECES;
      if (COLUMNS * PIECES % 32 != 0 && line >= COLUMNS) break;
      const unsigned long long number = (unsigned long long)(column + line) * terms + term;
      copy_async<16>(Strip{to}.at(line, piece), matrix.numbers + (number * RightFactor::BITS / 8 + piece * 16),
                     more && line < columns);
    }
    UNROLLED for (int turn = 0; turn < (COLUMNS + 31) / 32; ++turn) {
      const int line = turn * 32 + lane;
      if (COLUMNS % 32 != 0 && line >= COLUMNS) break;
      const bool there = more && line < columns;
      constexpr unsigned long long WHOLE = ~(unsigned long long)(SCALE_BYTES - 1);
      const unsigned long long at = block_of(line, term) * 2 & WHOLE;
      copy_async<SCALE_BYTES>(to + (SCALES + line * SCALE_BYTES), (const char*)matrix.scales + at, there);
      if constexpr (RightFactor::ZEROS == Zeros::REAL)
        copy_async<SCALE_BYTES>(to + (ZEROS + line * SCALE_BYTES), (const char*)matrix.zeros + at, there);
      if constexpr (RightFactor::ZEROS == Zeros::PACKED) {
        const unsigned long long byte = RightFactor::zero_byte(column + line, term / RightFactor::BLOCK, blocks());
        copy_async<4>(to + (ZEROS + line * 4), (const char*)matrix.zeros + (byte & ~3ull), there);
      }
    }
  }
};

// The scales and zero points of one column in a step.
struct OfColumn {
  unsigned scales[SCALE_BYTES / 4], zeros[ZERO_BYTES / 4 + 1];
  int half, bit;  // where in their words they begin

  DEVICE OfColumn() {}
  // `term`: the step's first one.
  DEVICE OfColumn(const Right& b, SharedAddress strip, int line, Index term) : half(0), bit(0) {
    load(scales, strip + (SCALES + line * SCALE_BYTES));
    if constexpr (BLOCKS == 1) half = (int)(b.block_of(line, term) % 2);
    if constexpr (RightFactor::ZEROS == Zeros::REAL) load(zeros, strip + (ZEROS + line * SCALE_BYTES));
    if constexpr (RightFactor::ZEROS == Zeros::PACKED) {
      const Index block = term / RightFactor::BLOCK;
      zeros[0] = load_shared(strip + (ZEROS + line * 4));
      bit = (int)(RightFactor::zero_byte(b.column + line, block, b.blocks()) % 4) * 8 + RightFactor::zero_shift(block);
    }
  }
  template <int WORDS> static DEVICE void load(unsigned (&word)[WORDS], SharedAddress from) {
    if constexpr (SCALE_BYTES == 8) {
      unsigned two[2];
      load_shared(two, from);
      UNROLLED for (int i = 0; i < 2; ++i) word[i] = two[i];
    } else {
      UNROLLED for (int i = 0; i < SCALE_BYTES / 4; ++i) word[i] = load_shared(from + i * 4);
    }
  }
  DEVICE unsigned bits_of(const unsigned* words, int block) const {
    return words[block / 2] >> (BLOCKS == 1 ? half : block % 2) * 16 & 0xffffu;
  }
  DEVICE float scale(int block) const { return decode((unsigned short)bits_of(scales, block), (Factor*)nullptr); }
  DEVICE unsigned packed_zero(int block) const {
    return zeros[0] >> (bit + block * RightFactor::BITS) & RightFactor::MASK;
  }
  // What numbers are too great by, the base included.
  DEVICE float offset(int block) const {
    if constexpr (RightFactor::ZEROS == Zeros::PACKED) return Base<Factor>::VALUE + (float)packed_zero(block);
    if constexpr (RightFactor::ZEROS == Zeros::REAL)
      return Base<Factor>::VALUE + decode((unsigned short)bits_of(zeros, block), (Factor*)nullptr);
    return Base<Factor>::VALUE + RightFactor::MIDDLE;
  }
  DEVICE Zero zero(int block) const {
    Zero found;
    if constexpr (RightFactor::ZEROS == Zeros::PACKED) found.base = Zero::with(packed_zero(block));
    if constexpr (RightFactor::ZEROS == Zeros::REAL) {
      found.base = Zero::with(0);
      found.more = bits_of(zeros, block) * 0x10001u;
    }
    return found;
  }
};

// Of A what a lane has of a step: of PARTS of eight rows the terms of its word of each piece. What has been multiplied is
// loaded again for the next step.
struct Left {
  LeftMatrix from;
  Index row, rows, term, terms, pitch;
  Chunk<WORD_TERMS * 2> held[PIECES][PARTS];

  DEVICE Left(LeftMatrix matrix, Index first, const Parameters& p)
      : rows(p.m), term(first), terms(p.k), pitch(p.pitch) {
    const int lane = thread_index() % 32;
    row = lane / 4;
    from = moved(matrix, (unsigned long long)row * p.pitch + first + lane % 4 * WORD_TERMS);
    UNROLLED for (int piece = 0; piece < PIECES; ++piece) load(piece);
  }
  DEVICE void load(int piece) {
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      held[piece][part] = {};
      if (row + part * 8 < rows && term < terms)
        load_left(held[piece][part], moved(from, (unsigned long long)(part * 8) * pitch + piece * PIECE_TERMS));
    }
  }
  DEVICE void next() {
    term += STEP_TERMS;
    from = moved(from, STEP_TERMS);
  }
  // The pairs that B's are multiplied by.
  DEVICE void pairs(unsigned (&pair)[WORD_PAIRS], int piece, int part) const {
    const auto& word = held[piece][part].word;
    if constexpr (RightFactor::BITS == 4) {
      pair[0] = select_bytes(word[0], word[2], 0x5410);
      pair[1] = select_bytes(word[0], word[2], 0x7632);
      pair[2] = select_bytes(word[1], word[3], 0x5410);
      pair[3] = select_bytes(word[1], word[3], 0x7632);
    } else {
      pair[0] = word[0];
      pair[1] = word[1];
    }
  }
};

// ---- products

struct Sums { float of[ACCUMULATED][TILES][PARTS][4]; };
DEVICE bool are_finite(const Sums& sums) {
  bool finite = true;
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int tile = 0; tile < TILES; ++tile)
      UNROLLED for (int part = 0; part < PARTS; ++part) UNROLLED for (int cell = 0; cell < 4; ++cell) finite &=
      ::fabsf(sums.of[g][tile][part][cell]) < float_of_bits(0x7f800000u);
  return finite;
}

// The pieces of A that belong to one block of B's numbers, and their sums: of the two rows that a lane has of a tile.
struct BlockRows {
  unsigned pair[PER_BLOCK][PARTS][WORD_PAIRS];
  float total[PARTS][4];

  DEVICE BlockRows(const Left& a, int block) {
    constexpr unsigned ONE = (BASE == 0x6400 ? 0x3c00u : 0x3f80u) * 0x10001u;
    const unsigned ones[4] = {ONE, ONE, ONE, ONE};
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      UNROLLED for (int cell = 0; cell < 4; ++cell) total[part][cell] = 0.0f;
      UNROLLED for (int i = 0; i < PER_BLOCK; ++i) {
        a.pairs(pair[i][part], block * PER_BLOCK + i, part);
        UNROLLED for (int s = 0; s < PRODUCTS; ++s)
            Mma::multiply(total[part], ones, pair[i][part][s * 2], pair[i][part][s * 2 + 1]);
      }
    }
  }
};

// Sixteen columns of a strip, one block of terms. SHIFTED: the sums of A's rows take what the numbers are too great by from
// the products; else each is made smaller before.
template <bool SHIFTED> DEVICE void multiply_block(float (&sums)[PARTS][4], const BlockRows& rows,
                                                   const OfColumn (&of)[2], SharedAddress strip, int tile, int block) {
  const int lane = thread_index() % 32, line = tile * 16 + lane / 4;
  float part[PARTS][4];
  const float offsets[2] = {of[0].offset(block), of[1].offset(block)};
  UNROLLED for (int r = 0; r < PARTS; ++r) UNROLLED for (int cell = 0; cell < 4; ++cell) part[r][cell] =
      SHIFTED ? -offsets[RightFactor::ZEROS == Zeros::MIDDLE ? 0 : cell / 2] * rows.total[r][cell % 2] : 0.0f;
  UNROLLED for (int i = 0; i < PER_BLOCK; ++i) {
    unsigned pair[2][WORD_PAIRS];
    UNROLLED for (int half = 0; half < 2; ++half) {
      const unsigned word = load_shared(Strip{strip}.at(line + half * 8, block * PER_BLOCK + i) + lane % 4 * 4);
      if constexpr (SHIFTED) raw_pairs(pair[half], word);
      else pairs_of(pair[half], word, of[half].zero(block));
    }
    UNROLLED for (int s = 0; s < PRODUCTS; ++s) {
      const unsigned a[4] = {pair[0][s * 2], pair[1][s * 2], pair[0][s * 2 + 1], pair[1][s * 2 + 1]};
      UNROLLED for (int r = 0; r < PARTS; ++r)
          Mma::multiply(part[r], a, rows.pair[i][r][s * 2], rows.pair[i][r][s * 2 + 1]);
    }
  }
  const float scales[2] = {of[0].scale(block), of[1].scale(block)};
  UNROLLED for (int r = 0; r < PARTS; ++r) UNROLLED for (int cell = 0; cell < 4; ++cell) sums[r][cell] =
      ::fmaf(part[r][cell], scales[cell / 2], sums[r][cell]);
}

// A warp's step: what has been multiplied of A is loaded again for the next one.
template <bool SHIFTED>
DEVICE void multiply_step(Sums& sums, Left& a, const Right (&b)[ACCUMULATED], SharedAddress stage, Index term) {
  const int lane = thread_index() % 32;
  OfColumn of[ACCUMULATED][TILES][2];
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int tile = 0; tile < TILES; ++tile)
      UNROLLED for (int half = 0; half < 2; ++half) of[g][tile][half] =
          OfColumn(b[g], stage + g * STRIP_BYTES, tile * 16 + half * 8 + lane / 4, term);
  UNROLLED for (int block = 0; block < BLOCKS; ++block) {
    const BlockRows rows(a, block);
    UNROLLED for (int i = 0; i < PER_BLOCK; ++i) a.load(block * PER_BLOCK + i);
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int tile = 0; tile < TILES; ++tile)
        multiply_block<SHIFTED>(sums.of[g][tile], rows, of[g][tile], stage + g * STRIP_BYTES, tile, block);
  }
}

// A warp's way through its steps.
struct Course {
  Right b[ACCUMULATED];
  Pipeline::State producer, consumer;
  SharedAddress ring;
  Index first;  // term

  DEVICE Course(const Operands& operands, int sibling, Index column, Index n, const Parameters& p) {
    const int warp = thread_index() / 32;
    ring = shared_address(shared_floats) + warp * (STAGES * STAGE_BYTES);
    first = warp * TERMS;
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) b[g] =
        Right(right_factor(operands, sibling + g), column, n, first, p.k);
  }
  DEVICE void produce() {
    Pipeline::producer_acquire(producer);
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) {
      b[g].fetch(ring + (producer.stage * STAGE_BYTES + g * STRIP_BYTES));
      b[g].next();
    }
    Pipeline::producer_commit();
    producer.advance();
  }
  DEVICE void begin() { UNROLLED for (int stage = 0; stage < STAGES - 1; ++stage) produce(); }
  template <bool SHIFTED> DEVICE void multiply(Sums& sums, Left& a, Index steps) {
    for (Index step = 0, term = first; step < steps; ++step, term += STEP_TERMS) {
      a.next();
      Pipeline::consumer_wait(consumer);
      produce();
      multiply_step<SHIFTED>(sums, a, b, ring + consumer.stage * STAGE_BYTES, term);
      Pipeline::consumer_release(consumer);
      consumer.advance();
    }
    Pipeline::drain();
  }
};

// A lane has of a tile two neighbouring rows of A, in the columns lane / 4 and eight on.
DEVICE void store_sums(const Sums& sums, int warp) {
  const int lane = thread_index() % 32;
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int part = 0; part < PARTS; ++part)
      UNROLLED for (int next = 0; next < 2; ++next) {
    float* to = BlockSums::row(warp, g, part * 8 + lane % 4 * 2 + next) + lane / 4;
    UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int half = 0; half < 2; ++half)
        to[tile * 16 + half * 8] = sums.of[g][tile][part][half * 2 + next];
  }
}

// ---- the kernel

DEVICE void gemm(const Operands& operands, const Results& to, const Parameters& p) {
  const int sibling = p.sides.sibling(block_index());
  const Index first_column = p.sides.own(block_index(), sibling) * COLUMNS, n = p.sides.columns_of(sibling);
  Course course(operands, sibling, first_column, n, p);
  if constexpr (!CONSTANT) join_stream();
  course.begin();
  bring_left_near(operands);
  if constexpr (CONSTANT) join_stream();
  const LeftMatrix left = left_factor(operands, p);
  Left a(left, course.first, p);
  const Pointers mine = operands.of(sibling);
  Cells cells[TURNS];
  UNROLLED for (int turn = 0; turn < TURNS; ++turn) cells[turn].load(mine, turn, first_column, n, p);

  Sums sums = {};
  course.multiply<true>(sums, a, p.steps);
  // An infinity in A has to meet the numbers as they are: a block that finds a sum that is not finite adds up all of its own
  // again.
  if (any_of_block(!are_finite(sums))) {
    Course again(operands, sibling, first_column, n, p);
    again.begin();
    Left from(left, again.first, p);
    sums = {};
    again.multiply<false>(sums, from, p.steps);
    wait_for_block();
  }
  store_sums(sums, thread_index() / 32);
  wait_for_block();
  UNROLLED for (int turn = 0; turn < TURNS; ++turn) cells[turn].finish(to, sibling, p);
}
