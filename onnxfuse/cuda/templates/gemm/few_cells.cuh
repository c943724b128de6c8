// What kernels for few rows share: their parameters, and the body, which all threads of a block compute of the sums that its
// warps have put into shared memory (sums.cuh). ROWS by COLUMNS are a block's of each product, WARPS share the terms.

constexpr int ACROSS = COLUMNS / WIDTH;  // threads that finish a row
constexpr int TURNS = (ROWS * ACROSS + THREADS - 1) / THREADS;
static_assert(THREADS == WARPS * 32, "warps are whole");
using BlockSums = SharedSums<WARPS, ROWS, COLUMNS>;

struct Parameters : Stores, LeftParameters {
  Sides<SIBLINGS, EVEN> sides;
  Index m, k, steps;  // steps: of each warp
  Index pitch;        // elements from one line of A to the next
  Index lines;        // rows of the innermost matrix of the output
};

// The cells that a thread finishes in one turn, and what the body reads there beside the products.
struct Cells {
  Place at;
  int row, column;  // of the sums
  bool there;
  ColumnHeld<WIDTH> columns;
  CellHeld<WIDTH> cells;
  RowHeld rows;

  DEVICE void load(const Pointers& operands, int turn, Index first_column, Index n, const Parameters& p) {
    const int number = turn * THREADS + thread_index();
    row = number / ACROSS;
    column = number % ACROSS * WIDTH;
    at = {(Index)row, first_column + column, p.m, n, p.lines, n};
    there = at.row < at.m && at.column < at.n;
    if (!there) return;
    columns = load_column<WIDTH>(operands, at, 0);
    cells = load_cell<WIDTH>(operands, at, 0, 0);
    rows = load_rows(operands, at, 0);
  }
  DEVICE void finish(const Results& to, int sibling, const Parameters& p) const {
    if (!there) return;
    BlockSums::finish(to, p, sibling, at, row, column, columns, cells, rows);
  }
};

// The left factor, where it lies: in memory, or in the block's shared memory.
DEVICE const Factor* moved(const Factor* from, unsigned long long elements) { return from + elements; }
DEVICE SharedAddress moved(SharedAddress from, unsigned long long elements) {
  return from + (unsigned)(elements * sizeof(Factor));
}
template <int BYTES> DEVICE void load_left(Chunk<BYTES>& to, const Factor* from) {
  to = read((const Chunk<BYTES>*)from);
}
template <int BYTES> DEVICE void load_left(Chunk<BYTES>& to, SharedAddress from) { load_shared(to.word, from); }
