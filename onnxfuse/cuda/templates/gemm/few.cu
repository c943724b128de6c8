// y = body(A B0, A B1, ..., operands) of at most eight rows: matrix products whose time is that of bringing B, once, from
// memory, with everything pointwise after them.
//
// A [m, k]; its lines may hold more than is read of them. B [k, n], or [n, k] (B_TRANSPOSED). k and n multiples of 8, all
// lines on a boundary of 16 bytes. Operands of the body: [m, n], [n], [m, 1], one element. Outputs [m, n]. Types of A and
// B: float16, bfloat16. Accuracy: float accumulators, a warp's share of the terms in each, added in the order of the warps;
// the body reads them unrounded, and each output is rounded once.
//
// A block computes COLUMNS columns of a body's products, a strip; its WARPS take TERMS terms each in turns (split-K within
// a block; stages as in sm80.cu). A warp fetches B for itself, by asynchronous copies through a pipeline of STAGES of its
// own: no warp waits for another one before the sums. As many bytes are on their way as the rings of a GPU's blocks
// hold, and where B is a weight (CONSTANT), which no kernel writes, they are before the kernel ahead has ended. A comes
// from the cache straight to registers, AHEAD steps before it is multiplied. Four lanes take neighbouring pieces of 16
// bytes of a row of A: lane q the terms 8 q to 8 q + 7, which are its part of two products of fragments, in an order of
// the terms that B's lines are put into shared memory by.
//
// Of more strips than the GPU has places for blocks (SEVERAL) each place has one block, which takes every strip at a
// distance of their number, and its warps fill their rings across the end of a strip: copies of the next one are on
// their way while the sums of this one are finished. No block waits for another one: which strips are its own is a matter
// of its number, and it has at least one. Within a block two barriers a strip hold warps back, and all threads meet as
// many, since the strips are the block's. A warp waits for copies of its own alone, by their number: it commits a group
// for each step, an empty one where its strips have come to an end. Sums lie in front of the rings, which copies write
// meanwhile; those of a strip are stored behind the barrier that every thread reaches after it has read those of the strip
// before, and read behind the other one. The sums of an only strip take the place of the rings, once all copies have
// come and all warps have read them.
//
// The body reads ACCUMULATED products of a strip at once (a gate). SIBLINGS of such bodies are adjacent, as more strips,
// each with factors, columns, operands and outputs of its own; one of ACCUMULATED and SIBLINGS is 1.

constexpr int TERMS = 32;                         // of a step of a warp: two products of fragments
constexpr int PIECES = COLUMNS / 8;               // of 16 bytes in a line of a strip
constexpr int STRIP_BYTES = TERMS * COLUMNS * 2;  // of a step, of each product
constexpr int STAGE_BYTES = ACCUMULATED * STRIP_BYTES;
constexpr int STEP_TERMS = WARPS * TERMS;
constexpr int AHEAD = ACCUMULATED * COLUMNS <= 16 ? 8 : ACCUMULATED * COLUMNS <= 32 ? 4 : 2;  // as registers suffice
static_assert(ROWS == 8, "the lanes of a warp have a row each");
static_assert(THREADS == WARPS * 32, "warps are whole");
static_assert(COLUMNS % 16 == 0 && COLUMNS <= 64, "a line is read by fragments, and its pieces are exchanged once");
using Tile =
    SwizzledTile<COLUMNS * 2, XorSwizzle<PIECES>>;  // a line for each term; of B_TRANSPOSED 16 bytes for each lane
using Mma = MmaSync<Factor>;
using Pipeline = AsyncPipeline<WarpScope, STAGES>;
constexpr int RINGS = SEVERAL ? BlockSums::BYTES : 0;  // where they begin
static_assert(SHARED_BYTES - LEFT_BYTES >= RINGS + WARPS * STAGES * STAGE_BYTES &&
                  SHARED_BYTES - LEFT_BYTES >= BlockSums::BYTES && RINGS % 128 == 0,
              "the plan counts as the kernel does");

// ---- the factors

// Which term of a step a line of B's in shared memory is: line 16 s + 8 h + 2 q + i is term 8 q + 4 s + 2 h + i, for lane q of
// four the `i`-th of half h of product s.
DEVICE constexpr int term_of(int line) { return line % 8 / 2 * 8 + line / 16 * 4 + line / 8 % 2 * 2 + line % 2; }

// A warp's strip of B: columns `column` on, from term `term` on.
struct Right {
  const Factor* from;  // this lane's first piece
  Index term, terms;   // of that piece
  Index pitch;
  int columns;  // of the strip's, from the lane's first one on

  DEVICE Right() {}
  DEVICE Right(const Factor* matrix, Index column, Index columns_of_all, Index first, Index terms)
      : term(first), terms(terms), pitch(B_TRANSPOSED ? terms : columns_of_all) {
    const int lane = thread_index() % 32;
    const int right = B_TRANSPOSED ? lane / 4 : lane % PIECES * 8;
    term += B_TRANSPOSED ? lane % 4 * 8 : term_of(lane / PIECES);
    columns = (int)(columns_of_all - column) - right;
    from = matrix + (B_TRANSPOSED ? (unsigned long long)(column + right) * pitch + term
                                  : (unsigned long long)term * pitch + column + right);
  }
  DEVICE void next() {
    term += STEP_TERMS;
    from += B_TRANSPOSED ? STEP_TERMS : (unsigned long long)STEP_TERMS * pitch;
  }
  DEVICE void fetch(SharedAddress to) const {
    const int lane = thread_index() % 32;
    UNROLLED for (int turn = 0; turn < PIECES; ++turn) {
      if constexpr (B_TRANSPOSED) {
        copy_async<16>(to + (turn * 512 + lane * 16), from + (unsigned long long)(turn * 8) * pitch,
                       term < terms && turn * 8 < columns);
      } else {
        const int line = turn * (32 / PIECES) + lane / PIECES, down = term_of(turn * (32 / PIECES));
        copy_async<16>(Tile{to}.at(line, lane % PIECES), from + (unsigned long long)down * pitch,
                       term + down < terms && columns > 0);
      }
    }
  }
};

struct Left {
  LeftMatrix from;
  Index row, rows, term, terms;
  Chunk<16> held[AHEAD];  // of the next steps

  DEVICE Left(LeftMatrix matrix, Index first, const Parameters& p) : rows(p.m), terms(p.k) {
    const int lane = thread_index() % 32;
    row = lane / 4;
    term = first + lane % 4 * 8;
    from = moved(matrix, (unsigned long long)row * p.pitch + term);
    UNROLLED for (int i = 0; i < AHEAD; ++i) load(i);
  }
  // What a lane has of a step.
  DEVICE void load(int i) {
    held[i] = {};
    if (row < rows && term < terms) load_left(held[i], from);
    term += STEP_TERMS;
    from = moved(from, STEP_TERMS);
  }
};

// ---- products

struct Sums { float of[ACCUMULATED][PIECES][4]; };

DEVICE void multiply_step(Sums& sums, const Chunk<16>& held, SharedAddress stage) {
  const int lane = thread_index() % 32;
  const unsigned a[2][4] = {{held.word[0], 0, held.word[1], 0}, {held.word[2], 0, held.word[3], 0}};
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) {
    const SharedAddress strip = stage + g * STRIP_BYTES;
    if constexpr (B_TRANSPOSED) {
      UNROLLED for (int j = 0; j < PIECES; ++j) {
        unsigned b[4];
        load_shared(b, strip + (j * 512 + lane * 16));
        UNROLLED for (int s = 0; s < 2; ++s) Mma::multiply(sums.of[g][j], a[s], b[s * 2], b[s * 2 + 1]);
      }
    } else {
      UNROLLED for (int s = 0; s < 2; ++s) UNROLLED for (int j = 0; j < PIECES; j += 2) {
        unsigned b[4];
        load_matrices<true>(b, Tile{strip}.at(s * 16 + lane % 16, j + lane / 16));
        UNROLLED for (int next = 0; next < 2; ++next)
            Mma::multiply(sums.of[g][j + next], a[s], b[next * 2], b[next * 2 + 1]);
      }
    }
  }
}

// ---- strips

// One of the strips of all bodies: which body it is of, and its columns there.
struct Strip {
  int sibling;
  Index column, n;

  DEVICE Strip(Index number, const Parameters& p)
      : sibling(p.sides.sibling(number)),
        column(p.sides.own(number, sibling) * COLUMNS),
        n(p.sides.columns_of(sibling)) {}
};

// A warp's way through the strips of its block, with copies of the steps to come on their way.
struct Course {
  const Operands& operands;
  const Parameters& p;
  Right b[ACCUMULATED];    // what is copied next
  Index filling, missing;  // of SEVERAL: which strip that is of, and how many of its steps are left to copy
  Pipeline::State producer, consumer;
  SharedAddress ring;

  DEVICE Course(const Operands& operands, const Parameters& p) : operands(operands), p(p) {
    ring = shared_address(shared_floats) + RINGS + thread_index() / 32 * (STAGES * STAGE_BYTES);
    begin(block_index());
  }
  static DEVICE Index first_term() { return thread_index() / 32 * TERMS; }
  static DEVICE Index after(Index number) { return number + last_block() + 1; }
  DEVICE bool has(Index number) const { return number < p.sides.across(); }
  DEVICE void begin(Index number) {
    filling = number;
    missing = p.steps;
    if (SEVERAL && !has(number)) return;
    const Strip strip(number, p);
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) b[g] =
        Right(right_factor(operands, strip.sibling + g), strip.column, strip.n, first_term(), p.k);
  }
  // Copies a step; of an only strip, nothing behind its last term.
  DEVICE void copy() {
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) {
      b[g].fetch(ring + (producer.stage * STAGE_BYTES + g * STRIP_BYTES));
      b[g].next();
    }
  }
  DEVICE void produce() {
    Pipeline::producer_acquire(producer);
    if constexpr (SEVERAL) {
      if (has(filling)) {
        copy();
        if (--missing == 0) begin(after(filling));
      }
    } else {
      copy();
    }
    Pipeline::producer_commit();
  }
  DEVICE void fill() {
    UNROLLED for (int stage = 0; stage < STAGES - 1; ++stage) {
      produce();
      producer.advance();
    }
  }
  // The step that has come; the one before it makes room for another.
  DEVICE SharedAddress wait() {
    Pipeline::consumer_wait(consumer);
    produce();
    return ring + consumer.stage * STAGE_BYTES;
  }
  DEVICE void release() {
    Pipeline::consumer_release(consumer);
    consumer.advance();
    producer.advance();
  }
};

// ---- the kernel

DEVICE void gemm(const Operands& operands, const Results& to, const Parameters& p) {
  Course course(operands, p);
  if constexpr (!CONSTANT) join_stream();
  course.fill();
  bring_left_near(operands);
  if constexpr (CONSTANT) join_stream();
  const LeftMatrix left = left_factor(operands, p);
  Left a(left, Course::first_term(), p);
  for (Index number = block_index();;) {
    const Strip strip(number, p);
    const Pointers mine = operands.of(strip.sibling);
    Cells cells[TURNS];
    UNROLLED for (int turn = 0; turn < TURNS; ++turn) cells[turn].load(mine, turn, strip.column, strip.n, p);

    Sums sums = {};
    for (Index step = 0; step < p.steps; step += AHEAD) {
      UNROLLED for (int i = 0; i < AHEAD; ++i) {
        if (step + i >= p.steps) break;
        multiply_step(sums, a.held[i], course.wait());
        a.load(i);
        course.release();
      }
    }
    if constexpr (SEVERAL) a = Left(left, Course::first_term(), p);
    else Pipeline::drain();
    wait_for_block();
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) BlockSums::store(thread_index() / 32, g, 0, 0, sums.of[g], 0);
    wait_for_block();
    UNROLLED for (int turn = 0; turn < TURNS; ++turn) cells[turn].finish(to, strip.sibling, p);
    if constexpr (!SEVERAL) break;
    number = Course::after(number);
    if (!course.has(number)) break;
  }
}
