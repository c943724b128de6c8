// y = body(A B0, A B1, ..., operands) of at most 16 rows: matrix products whose time is that of bringing B, once, from
// memory, with everything pointwise after them.
//
// A [m, k], m at most 16 (8 where HALVES is 1); its lines may hold more than is read of them. B [k, n], or [n, k]
// (B_TRANSPOSED). k and n multiples of 8, all lines on a boundary of 16 bytes. Operands of the body: [m, n], [n], [m, 1], one
// element. Outputs [m, n]. Types of A and B: float16, bfloat16.
// Accuracy: float accumulators, a warp's share of the terms in each, added in the order of the warps and then of the blocks;
// the body reads them unrounded, and each output is rounded once.
//
// A block computes COLUMNS columns of a body's products, of PARTS blocks of a cluster each from a part of the terms; SHARES
// warps of each product take TERMS of those in turns. A warp fetches B for itself, whole lines of 128 bytes where the strip is
// as wide, by copies that run beside it through a ring of STAGES of its own: no warp waits for another one before the sums.
// As many bytes are on their way as the rings of a GPU's blocks hold, and where B is a weight (CONSTANT), which no kernel
// writes, they are before the kernel ahead has ended. A comes from the cache straight to registers, AHEAD steps before it is
// multiplied. Four lanes take neighbouring pieces of 16 bytes of a row of A: lane q the terms 8 q to 8 q + 7 of 32, which are
// its part of two products of fragments, in an order of the terms that B's lines are put into shared memory by.
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
constexpr int AHEAD = HALVES * GROUPS_OF_TERMS == 1 ? 4 : 2;
constexpr int ROWS = 8 * HALVES;
constexpr int PITCH = COLUMNS + 8;                      // floats: eight rows on, a lane meets other banks
constexpr int ACROSS = COLUMNS / WIDTH;                 // threads that finish a row
constexpr int CELLS = ROWS * ACROSS, OWN = CELLS / PARTS;  // that a thread finishes at a time: of the strip, of a block
constexpr int WARPS = ACCUMULATED * SHARES;
static_assert(THREADS == WARPS * 32, "warps are whole");
static_assert(CELLS % PARTS == 0, "each block of a cluster finishes as many cells");
static_assert(COLUMNS % 16 == 0 && COLUMNS <= 64, "a line is read by fragments, and its pieces are exchanged once");
static_assert(SHARED_BYTES >= WARPS * STAGES * STAGE_BYTES && SHARED_BYTES >= WARPS * ROWS * PITCH * 4,
              "the plan counts as the kernel does");

OWN_DYNAMIC_SHARED(float, shared_floats, SHARED_BYTES / 4);

struct Parameters : Stores {
  Index m, n, k, steps;  // steps: STEP_TERMS of a block each
  Index columns;         // strips side by side, of one product
  Index pitch;           // elements from one line of A to the next
  Index lines;           // rows of the innermost matrix of the output
};

// ---- the factors

// Which term of a step a line of B's in shared memory is: line 16 s + 8 h + 2 q + i is term 8 q + 4 s + 2 h + i, for lane q of
// four the `i`-th of half h of product s.
DEVICE constexpr int term_of(int line) { return line % 8 / 2 * 8 + line / 16 * 4 + line / 8 % 2 * 2 + line % 2; }

// A warp's strip of B, from column `column` and term `first` on, to term `end`.
struct Right {
  const Factor* from;  // this lane's first piece
  Index term, end;     // of that piece
  Index pitch;
  int columns;         // that there are from the lane's first one on

  DEVICE Right(const Factor* matrix, Index column, Index first, Index end, const Parameters& p)
      : term(first), end(end), pitch(B_TRANSPOSED ? p.k : p.n) {
    const int lane = thread_index() % 32, line = lane / PIECES, piece = lane % PIECES * 8;
    const int right = B_TRANSPOSED ? line : piece;
    term += B_TRANSPOSED ? piece : term_of(line);
    columns = (int)(p.n - column) - right;
    from = matrix + (B_TRANSPOSED ? (unsigned long long)(column + right) * pitch + term
                                  : (unsigned long long)term * pitch + column + right);
  }
  // Pieces of a line are exchanged by its number, so that those that a warp reads at once lie in different banks.
  static DEVICE int exchanged(int line) { return B_TRANSPOSED ? line % 2 * 4 : line * PIECES / 8 % PIECES; }

  DEVICE void fetch(SharedAddress to) {
    const int lane = thread_index() % 32;
    UNROLLED for (int turn = 0; turn < STAGE_BYTES / 512; ++turn) {
      const int next = turn * (32 / PIECES), line = next + lane / PIECES, down = B_TRANSPOSED ? next : term_of(next);
      const bool there = B_TRANSPOSED ? term < end && next < columns : term + down < end && columns > 0;
      copy_beside<16>(to + (line * LINE_BYTES + ((lane % PIECES ^ exchanged(line)) << 4)),
                      from + (unsigned long long)down * pitch, there);
    }
    term += STEP_TERMS;
    from += B_TRANSPOSED ? STEP_TERMS : (unsigned long long)STEP_TERMS * pitch;
  }
};

// What a lane has of a step of A.
struct Held {
  Chunk<16> row[HALVES][GROUPS_OF_TERMS];
};

struct Left {
  const Factor* from;
  Index row, rows, term, end, pitch;

  DEVICE Left(const Factor* matrix, Index first, Index end, const Parameters& p) : rows(p.m), end(end), pitch(p.pitch) {
    const int lane = thread_index() % 32;
    row = lane / 4;
    term = first + lane % 4 * 8;
    from = matrix + ((unsigned long long)row * pitch + term);
  }
  DEVICE void load(Held& held) {
    UNROLLED for (int half = 0; half < HALVES; ++half)
      UNROLLED for (int group = 0; group < GROUPS_OF_TERMS; ++group) {
        held.row[half][group] = {};
        if (row + half * 8 < rows && term + group * 32 < end)
          held.row[half][group] =
              read((const Chunk<16>*)(from + (unsigned long long)(half * 8) * pitch + group * 32));
      }
    term += STEP_TERMS;
    from += STEP_TERMS;
  }
};

// ---- products

struct Sums {
  float of[EIGHTS][4];
};

DEVICE void multiply_step(Sums& sums, const Held& held, SharedAddress stage) {
  const int lane = thread_index() % 32;
  UNROLLED for (int group = 0; group < GROUPS_OF_TERMS; ++group) {
    unsigned a[2][4] = {};
    UNROLLED for (int s = 0; s < 2; ++s)
      UNROLLED for (int half = 0; half < HALVES; ++half)
        UNROLLED for (int h = 0; h < 2; ++h) a[s][h * 2 + half] = held.row[half][group].word[s * 2 + h];
    if constexpr (B_TRANSPOSED) {
      UNROLLED for (int j = 0; j < EIGHTS; ++j) {
        const int line = j * 8 + lane / 4, piece = group * 4 + lane % 4;
        unsigned b[4];
        load_shared(b, stage + (line * LINE_BYTES + ((piece ^ Right::exchanged(line)) << 4)));
        UNROLLED for (int s = 0; s < 2; ++s) product(sums.of[j], a[s], b[s * 2], b[s * 2 + 1], (Factor*)nullptr);
      }
    } else {
      UNROLLED for (int s = 0; s < 2; ++s)
        UNROLLED for (int j = 0; j < EIGHTS; j += 2) {
          const int line = s * 16 + lane % 16, piece = j + lane / 16;
          unsigned b[4];
          load_blocks<true>(b, stage + (line * LINE_BYTES + ((piece ^ Right::exchanged(line)) << 4)));
          UNROLLED for (int next = 0; next < 2; ++next)
            product(sums.of[j + next], a[s], b[next * 2], b[next * 2 + 1], (Factor*)nullptr);
        }
    }
  }
}

// ---- the body

DEVICE float* sums_row(int product, int share, int row) {
  return shared_floats + ((product * SHARES + share) * ROWS + row) * PITCH;
}

DEVICE void put_sums(const Sums& sums, int product, int share) {
  const int lane = thread_index() % 32;
  UNROLLED for (int half = 0; half < HALVES; ++half) {
    float* to = sums_row(product, share, half * 8 + lane / 4) + lane % 4 * 2;
    UNROLLED for (int j = 0; j < EIGHTS; ++j) {
      const float(&mine)[4] = sums.of[j];
      *reinterpret_cast<Chunk<8>*>(to + j * 8) = {bits_of_float(mine[half * 2]), bits_of_float(mine[half * 2 + 1])};
    }
  }
}

// WIDTH neighbours of a row of the sums, of each product.
struct Cell {
  float of[ACCUMULATED][WIDTH];
};

// Of all warps.
DEVICE Cell cell_of_block(int row, int column) {
  Cell cell;
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) {
    UNROLLED for (int share = 0; share < SHARES; ++share) {
      using Held = Pack<float, WIDTH>;
      Held held;
      const auto* from = reinterpret_cast<const Chunk<Held::CHUNK>*>(sums_row(g, share, row) + column);
      UNROLLED for (int i = 0; i < Held::CHUNKS; ++i) held.chunk[i] = from[i];
      UNROLLED for (int i = 0; i < WIDTH; ++i) cell.of[g][i] = share == 0 ? held.get(i) : cell.of[g][i] + held.get(i);
    }
  }
  return cell;
}

// Where the cells lie that a thread finishes in one turn, and what the body reads there beside the products.
struct Finish {
  Place at;
  int row, column;  // of the sums
  bool there;
  ColumnHeld<WIDTH> columns;
  CellHeld<WIDTH> cells;
  RowHeld rows;

  DEVICE void load(const Pointers& operands, int number, bool mine, Index first_column, const Parameters& p) {
    row = number / ACROSS;
    column = number % ACROSS * WIDTH;
    at = {(Index)row, first_column + column, p.m, p.n, p.lines, p.n};
    there = mine && at.row < at.m && at.column < at.n;
    if (!there) return;
    columns = load_column<WIDTH>(operands, at, 0);
    cells = load_cell<WIDTH>(operands, at, 0, 0);
    rows = load_rows(operands, at, 0);
  }
  DEVICE void put(const Cell& sum, const Results& to, int sibling, const Parameters& p) const {
    Result result[WIDTH];
    UNROLLED for (int i = 0; i < WIDTH; ++i) {
      float product[ACCUMULATED];
      UNROLLED for (int g = 0; g < ACCUMULATED; ++g) product[g] = sum.of[g][i];
      result[i] = apply(element(product, columns, cells, rows, 0, i));
    }
    store_results<WIDTH>(to, p, sibling, at, result);
  }
};

DEVICE void gemm(const Operands& operands, const Results& to, const Parameters& p) {
  const int part = block_index() % PARTS, warp = thread_index() / 32, number = warp / SHARES, share = warp % SHARES;
  const Index strip = block_index() / PARTS;
  const int sibling = SIBLINGS == 1 ? 0 : (int)(strip / p.columns);
  const Index first_column = (strip - sibling * p.columns) * COLUMNS;
  const Index begin = part * p.steps * STEP_TERMS, behind = begin + p.steps * STEP_TERMS;
  const Index first = begin + share * TERMS, end = behind < p.k ? behind : p.k;
  const SharedAddress ring = shared_address(shared_floats) + warp * (STAGES * STAGE_BYTES);
  Right b(right_factor(operands, sibling + number), first_column, first, end, p);

  if constexpr (!CONSTANT) join_stream();
  UNROLLED for (int stage = 0; stage < STAGES; ++stage) {
    b.fetch(ring + stage * STAGE_BYTES);
    close_group_of_copies();
  }
  if constexpr (CONSTANT) join_stream();
  Left a(operands.a(), first, end, p);
  Held held[AHEAD];
  UNROLLED for (int i = 0; i < AHEAD; ++i) a.load(held[i]);
  constexpr int TURNS = (OWN + THREADS - 1) / THREADS;
  const Pointers mine = operands.of(sibling);
  Finish finish[TURNS];
  UNROLLED for (int turn = 0; turn < TURNS; ++turn) {
    const int cell = turn * THREADS + thread_index();
    finish[turn].load(mine, part * OWN + cell, cell < OWN, first_column, p);
  }

  Sums sums = {};
  int stage = 0;
  for (Index step = 0; step < p.steps; step += AHEAD) {
    UNROLLED for (int i = 0; i < AHEAD; ++i) {
      if (step + i >= p.steps) break;
      wait_for_copies<STAGES - 1>();
      wait_for_warp();
      multiply_step(sums, held[i], ring + stage * STAGE_BYTES);
      a.load(held[i]);
      wait_for_warp();
      b.fetch(ring + stage * STAGE_BYTES);
      close_group_of_copies();
      stage = stage == STAGES - 1 ? 0 : stage + 1;
    }
  }
  wait_for_copies<0>();
  wait_for_block();
  put_sums(sums, number, share);
  wait_for_block();
  if constexpr (PARTS == 1) {
    UNROLLED for (int turn = 0; turn < TURNS; ++turn)
      if (finish[turn].there)
        finish[turn].put(cell_of_block(finish[turn].row, finish[turn].column), to, sibling, p);
  } else {
    SHARED Shared<Cell, CELLS> found;
    for (int cell = thread_index(); cell < CELLS; cell += THREADS)
      if (cell / ACROSS < (int)p.m) found.mine()[cell] = cell_of_block(cell / ACROSS, cell % ACROSS * WIDTH);
    wait_for_blocks();
    UNROLLED for (int turn = 0; turn < TURNS; ++turn) {
      if (!finish[turn].there) continue;
      Cell of[PARTS];
      UNROLLED for (int block = 0; block < PARTS; ++block)
        of[block] = found.of(block, part * OWN + turn * THREADS + (int)thread_index());
      UNROLLED for (int block = 1; block < PARTS; ++block)
        UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
          UNROLLED for (int i = 0; i < WIDTH; ++i) of[0].of[g][i] += of[block].of[g][i];
      finish[turn].put(of[0], to, sibling, p);
    }
    wait_for_blocks();  // no block leaves while others read what it has
  }
}
