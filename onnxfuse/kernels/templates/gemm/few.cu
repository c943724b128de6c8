// The products and the body of the kernel for few rows; see few.cuh.

// ---- the factors

// What a lane has of a step of A.
struct Held {
  Chunk<16> of[GROUPS_OF_TERMS];
};

struct Left {
  const Factor* from;
  Index term, end;

  DEVICE Left(const Factor* matrix, Index first, Index end, const Parameters& p) : end(end) {
    const int lane = thread_index() % 32;
    const Index row = lane / 4;
    term = first + lane % 4 * 8;
    from = matrix + ((unsigned long long)row * p.pitch + term);
    if (row >= p.m) this->end = 0;
  }
  DEVICE void load(Held& held) {
    UNROLLED for (int group = 0; group < GROUPS_OF_TERMS; ++group) {
      held.of[group] = {};
      if (term + group * 32 < end) held.of[group] = read((const Chunk<16>*)(from + group * 32));
    }
    term += STEP_TERMS;
    from += STEP_TERMS;
  }
};

// ---- products

struct Sums {
  float of[EIGHTS][4];
};

// Of B [k, n] the fragments' lines are those of 32 terms that lie in different banks: for lane q of four its half h of product
// s has word (2 s + h + q) % 4 of its piece of A. Of [n, k] a lane reads a piece of a line as it does of A.
DEVICE void turn(Chunk<16>& piece) {
  const int lane = thread_index() % 4;
  if constexpr (!B_TRANSPOSED) {
    UNROLLED for (int by = 1; by < 4; by *= 2) {
      const Chunk<16> as = piece;
      UNROLLED for (int i = 0; i < 4; ++i) piece.word[i] = lane & by ? as.word[(i + by) % 4] : as.word[i];
    }
  }
}

DEVICE void multiply_step(Sums& sums, const Held& held, SharedAddress stage) {
  const int lane = thread_index() % 32;
  UNROLLED for (int group = 0; group < GROUPS_OF_TERMS; ++group) {
    Chunk<16> piece = held.of[group];
    turn(piece);
    const unsigned a[2][4] = {{piece.word[0], 0, piece.word[1], 0}, {piece.word[2], 0, piece.word[3], 0}};
    if constexpr (B_TRANSPOSED) {
      UNROLLED for (int j = 0; j < EIGHTS; ++j) {
        unsigned b[4];
        load_shared(b, stage + place(j * 8 + lane / 4, group * 4 + lane % 4));
        UNROLLED for (int s = 0; s < 2; ++s) product(sums.of[j], a[s], b[s * 2], b[s * 2 + 1], (Factor*)nullptr);
      }
    } else {
      UNROLLED for (int s = 0; s < 2; ++s)
        UNROLLED for (int j = 0; j < EIGHTS; j += 2) {
          const int row = lane % 8, line = row / 2 * 8 + (s * 4 + lane / 8 % 2 * 2 + row) % 8;
          unsigned b[4];
          load_blocks<true>(b, stage + place(line, j + lane / 16));
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
  float* to = sums_row(product, share, lane / 4) + lane % 4 * 2;
  UNROLLED for (int j = 0; j < EIGHTS; ++j)
    *reinterpret_cast<Chunk<8>*>(to + j * 8) = {bits_of_float(sums.of[j][0]), bits_of_float(sums.of[j][1])};
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

DEVICE void gemm(const Operands& operands, const Results& to, const Weights& weights, const Parameters& p) {
  const int part = block_index() % PARTS, warp = thread_index() / 32, number = warp / SHARES, share = warp % SHARES;
  const Index strip = block_index() / PARTS;
  const int sibling = SIBLINGS == 1 ? 0 : (int)(strip / p.columns);
  const Index first_column = (strip - sibling * p.columns) * COLUMNS;
  const Index begin = part * p.steps * STEP_TERMS, behind = begin + p.steps * STEP_TERMS;
  const Index first = begin + share * TERMS, end = behind < p.k ? behind : p.k;
  Fetching b(weights, sibling + number, first_column, first, end, p);

  if constexpr (!CONSTANT) join_stream();
  UNROLLED for (int stage = 0; stage < STAGES; ++stage) b.fetch(stage);
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
  unsigned round = 0;
  for (Index step = 0; step < p.steps; step += AHEAD) {
    UNROLLED for (int i = 0; i < AHEAD; ++i) {
      if (first + (step + i) * STEP_TERMS >= end) break;
      b.wait(stage, round);
      multiply_step(sums, held[i], b.ring + stage * STAGE_BYTES);
      a.load(held[i]);
      wait_for_warp();
      b.fetch(stage);
      stage = stage == STAGES - 1 ? 0 : stage + 1;
      round += stage == 0;
    }
  }
  b.end_all();
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
