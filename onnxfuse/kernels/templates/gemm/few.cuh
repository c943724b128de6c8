// y = body(A B0, A B1, ..., operands) of at most eight rows: matrix products whose time is that of bringing B, once, from
// memory, with everything pointwise after them.
//
// A [m, k]; its lines may hold more than is read of them. B [k, n], or [n, k] (B_TRANSPOSED). k and n multiples of 8, all
// lines on a boundary of 16 bytes. Operands of the body: [m, n], [n], [m, 1], one element. Outputs [m, n]. Types of A and B:
// float16, bfloat16.
// Accuracy: float accumulators, a warp's share of the terms in each, added in the order of the warps and then of the blocks;
// the body reads them unrounded, and each output is rounded once.
//
// A block computes COLUMNS columns of a body's products, of PARTS blocks of a cluster each from a part of the terms; SHARES
// warps of each product take TERMS of those in turns. A warp fetches B for itself, through a ring of STAGES of its own (see
// few_copies.cuh and few_boxes.cuh): no warp waits for another one before the sums. As many bytes are on their way as the
// rings of a GPU's blocks hold, and where B is a weight (CONSTANT), which no kernel writes, they are before the kernel ahead has
// ended. A comes from the cache straight to registers, AHEAD steps before it is multiplied. Four lanes take neighbouring pieces
// of 16 bytes of a row of A: lane q the terms 8 q to 8 q + 7 of 32, which are its part of two products of fragments.
//
// The body reads ACCUMULATED products of a strip at once (a gate). SIBLINGS of such bodies lie side by side, as more strips,
// each with factors, operands and outputs of its own; one of ACCUMULATED and SIBLINGS is 1.

constexpr int TERMS = B_TRANSPOSED ? 64 : 32;           // of a step of a warp, in groups of 32: two products of fragments
constexpr int GROUPS_OF_TERMS = TERMS / 32;
constexpr int EIGHTS = COLUMNS / 8;                     // of columns
constexpr int LINE_BYTES = B_TRANSPOSED ? TERMS * 2 : COLUMNS * 2;
constexpr int PIECES = LINE_BYTES / 16;                 // of a line of a strip
constexpr int STAGE_BYTES = TERMS * COLUMNS * 2;
constexpr int STEP_TERMS = SHARES * TERMS;              // of all warps of a product
constexpr int AHEAD = GROUPS_OF_TERMS == 1 ? 4 : 2;
constexpr int ROWS = 8;
constexpr int PITCH = COLUMNS + 8;                      // floats: eight rows on, a lane meets other banks
constexpr int ACROSS = COLUMNS / WIDTH;                 // threads that finish a row
constexpr int CELLS = ROWS * ACROSS, OWN = CELLS / PARTS;  // that a thread finishes at a time: of the strip, of a block
constexpr int WARPS = ACCUMULATED * SHARES;
static_assert(THREADS == WARPS * 32, "warps are whole");
static_assert(CELLS % PARTS == 0, "each block of a cluster finishes as many cells");
static_assert(COLUMNS % 16 == 0 && COLUMNS <= 64, "a line is read by fragments, and its pieces are exchanged once");
static_assert(SHARED_BYTES >= WARPS * STAGES * STAGE_BYTES + 1024 && SHARED_BYTES >= WARPS * ROWS * PITCH * 4,
              "the plan counts as the kernel does");

struct Parameters : Stores {
  Index m, n, k, steps;  // steps: STEP_TERMS of a block each
  Index columns;         // strips side by side, of one product
  Index pitch;           // elements from one line of A to the next
  Index lines;           // rows of the innermost matrix of the output
};

OWN_DYNAMIC_SHARED(float, shared_floats, SHARED_BYTES / 4);

// Where piece `piece` of line `line` lies in a stage: pieces are exchanged as the copy engine does, so that those which a warp
// reads at once lie in different banks.
DEVICE int place(int line, int piece) {
  const int at = line * LINE_BYTES + piece * 16;
  return at ^ (at >> 7 & 7) << 4;
}
