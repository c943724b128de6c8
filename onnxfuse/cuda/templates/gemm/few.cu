// y = body(A B0, A B1, ..., operands) of at most eight rows: matrix products whose time is that of bringing B, once, from
// memory, with everything pointwise after them.
//
// A [m, k]; its lines may hold more than is read of them. B [k, n], or [n, k] (B_TRANSPOSED). k and n multiples of 8, all
// lines on a boundary of 16 bytes. Operands of the body: [m, n], [n], [m, 1], one element. Outputs [m, n]. Types of A and
// B: float16, bfloat16. Accuracy: float accumulators, a warp's share of the terms in each, added in the order of the warps;
// the body reads them unrounded, and each output is rounded once.
//
// A block computes COLUMNS columns of a body's products; its WARPS take TERMS terms each in turns (split-K within a
// block; stages as in sm80.cu). A warp fetches B for itself, by asynchronous copies through a pipeline of STAGES of its
// own: no warp waits for another one before the sums. As many bytes are on their way as the rings of a GPU's blocks
// hold, and where B is a weight (CONSTANT), which no kernel writes, they are before the kernel ahead has ended. A comes
// from the cache straight to registers, AHEAD steps before it is multiplied. Four lanes take neighbouring pieces of 16
// bytes of a row of A: lane q the terms 8 q to 8 q + 7, which are its part of two products of fragments, in an order of
// the terms that B's lines are put into shared memory by.
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
using Strip =
    SwizzledTile<COLUMNS * 2, XorSwizzle<PIECES>>;  // a line for each term; of B_TRANSPOSED 16 bytes for each lane
using Mma = MmaSync<Factor>;
using Pipeline = AsyncPipeline<WarpScope, STAGES>;
static_assert(SHARED_BYTES - LEFT_BYTES >= WARPS * STAGES * STAGE_BYTES &&
                  SHARED_BYTES - LEFT_BYTES >= BlockSums::BYTES,
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
        copy_async<16>(Strip{to}.at(line, lane % PIECES), from + (unsigned long long)down * pitch,
                       term + down < terms && columns > 0);
      }
    }
  }
};

struct Left {
  LeftMatrix from;
  Index row, rows, term, terms;

  DEVICE Left(LeftMatrix matrix, Index first, const Parameters& p) : rows(p.m), terms(p.k) {
    const int lane = thread_index() % 32;
    row = lane / 4;
    term = first + lane % 4 * 8;
    from = moved(matrix, (unsigned long long)row * p.pitch + term);
  }
  // What a lane has of a step.
  DEVICE void load(Chunk<16>& held) {
    held = {};
    if (row < rows && term < terms) load_left(held, from);
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
        load_matrices<true>(b, Strip{strip}.at(s * 16 + lane % 16, j + lane / 16));
        UNROLLED for (int next = 0; next < 2; ++next)
            Mma::multiply(sums.of[g][j + next], a[s], b[next * 2], b[next * 2 + 1]);
      }
    }
  }
}

// ---- the kernel

DEVICE void gemm(const Operands& operands, const Results& to, const Parameters& p) {
  const int sibling = p.sides.sibling(block_index()), warp = thread_index() / 32;
  const Index first_column = p.sides.own(block_index(), sibling) * COLUMNS, n = p.sides.columns_of(sibling);
  const Index first = warp * TERMS;
  const SharedAddress ring = shared_address(shared_floats) + warp * (STAGES * STAGE_BYTES);
  Right b[ACCUMULATED];
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) b[g] =
      Right(right_factor(operands, sibling + g), first_column, n, first, p.k);
  Pipeline::State producer, consumer;
  const auto produce = [&] {
    Pipeline::producer_acquire(producer);
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) {
      b[g].fetch(ring + (producer.stage * STAGE_BYTES + g * STRIP_BYTES));
      b[g].next();
    }
    Pipeline::producer_commit();
  };

  if constexpr (!CONSTANT) join_stream();
  UNROLLED for (int stage = 0; stage < STAGES - 1; ++stage) {
    produce();
    producer.advance();
  }
  bring_left_near(operands);
  if constexpr (CONSTANT) join_stream();
  Left a(left_factor(operands, p), first, p);
  Chunk<16> held[AHEAD];
  UNROLLED for (int i = 0; i < AHEAD; ++i) a.load(held[i]);
  const Pointers mine = operands.of(sibling);
  Cells cells[TURNS];
  UNROLLED for (int turn = 0; turn < TURNS; ++turn) cells[turn].load(mine, turn, first_column, n, p);

  Sums sums = {};
  for (Index step = 0; step < p.steps; step += AHEAD) {
    UNROLLED for (int i = 0; i < AHEAD; ++i) {
      if (step + i >= p.steps) break;
      Pipeline::consumer_wait(consumer);
      produce();
      multiply_step(sums, held[i], ring + consumer.stage * STAGE_BYTES);
      a.load(held[i]);
      Pipeline::consumer_release(consumer);
      consumer.advance();
      producer.advance();
    }
  }
  Pipeline::drain();
  wait_for_block();
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) BlockSums::store(warp, g, 0, 0, sums.of[g], 0);
  wait_for_block();
  UNROLLED for (int turn = 0; turn < TURNS; ++turn) cells[turn].finish(to, sibling, p);
}
