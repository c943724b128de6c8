// y = body(A B0, A B1, ..., operands): matrix products on the tensor cores of sm_80 and all later GPUs, with everything
// pointwise after them.
//
// A [m, k], or [k, m] (A_TRANSPOSED), or what a window sees of images (WINDOW; see window.cuh), or what a functor makes
// of matrices [m, k], vectors [k] and [m, 1] and numbers (PROLOGUE). B [k, n], or [n, k] (B_TRANSPOSED). BATCHED: many such
// products, each with its own A and B out of those there are. Lines of A may hold more than is read of them. Operands of
// the body: [m, n], [n], [m, 1], one element. Outputs [m, n]. Types of A and B: float16, bfloat16, or float32, rounded to
// TF32 unless PRECISE (see include/split.cuh), 8-bit integers, or float8 e4m3 (include/float8.cuh). Any size and any pointer:
// A and B are fetched A_PIECE and B_PIECE bytes at a time.
// Accuracy: float accumulators, which the body reads unrounded; each output is rounded once.
//
// A block computes TILE_M x TILE_N of the output by a multistage pipeline (CUTLASS 2.2, NVIDIA, 2020): asynchronous copies
// bring tiles of A and B into a ring of STAGES in shared memory; each warp multiplies its part of the tile, and loads the
// fragments of the next products while it computes the present ones. WARPS_K groups of warps share the terms of a stage, where
// tiles are too few or too small to keep the GPU busy. The sums then take the ring's memory (sums.cuh), from where all
// threads go over them row by row for the body.
//
// The first BROUGHT right factors are weights, which no kernel writes: they come to the L2 cache while the kernel ahead ends.
//
// The body reads ACCUMULATED products of a tile at once (a gate). SIBLINGS of such bodies are adjacent, as more output
// tiles, each with factors, columns, operands and outputs of its own; one of ACCUMULATED and SIBLINGS is 1.

using Right = typename Either<PACKED, Unpacked<RightFactor, (B_PIECE >= 4)>,
                              Side<TILE_N, FactorOf::RIGHT, !B_TRANSPOSED, B_PIECE>>::Type;

// ---- products

struct Sums { float of[ACCUMULATED][DOWN][RIGHT * 2][4]; };
struct Fragments { unsigned a[DOWN][4], b[ACCUMULATED][RIGHT][4]; };
// Of B those for sixteen columns at a time, where the accumulators leave no registers for more.
constexpr int AHEAD = 3;  // loaded before they are needed
struct Few { unsigned a[2][DOWN][4], b[AHEAD + 1][ACCUMULATED][4]; };

// Where in the block's tile a warp's part begins, and which of the WARPS_K groups it belongs to.
struct Part {
  int row, column, group;

  DEVICE Part() {
    const int warp = thread_index() / 32;
    row = warp % WARPS_M * (TILE_M / WARPS_M);
    column = warp / WARPS_M % WARPS_N * (TILE_N / WARPS_N);
    group = warp / (WARPS_M * WARPS_N);
  }
};

DEVICE void load_fragments(Fragments& held, SharedAddress stage, const Part& part, int slice) {
  const SharedAddress a = stage + part.group * PART_BYTES, b = a + A_BYTES;
  UNROLLED for (int i = 0; i < DOWN; ++i) Left::load(held.a[i], a, part.row + i * 16, slice);
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int j = 0; j < RIGHT; ++j)
      Right::load(held.b[g][j], b + g * B_BYTES, part.column + j * 16, slice);
}

DEVICE void multiply_fragments(Sums& sums, const Fragments& held) {
  if constexpr (PRECISE) {
    const SplitFragments<DOWN> left(held.a);
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int j = 0; j < RIGHT; ++j) {
      const SplitFragments<1> right(held.b[g][j]);
      UNROLLED for (int next = 0; next < 2; ++next)
          left.multiply([&](int i) -> float (&)[4] { return sums.of[g][i][j * 2 + next]; }, right, next * 2);
    }
  } else {
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int i = 0; i < DOWN; ++i)
        UNROLLED for (int j = 0; j < RIGHT * 2; ++j)
            Mma::multiply(sums.of[g][i][j], held.a[i], held.b[g][j / 2][j % 2 * 2], held.b[g][j / 2][j % 2 * 2 + 1]);
  }
}

DEVICE void load_left(unsigned (&held)[DOWN][4], SharedAddress stage, const Part& part, int slice) {
  UNROLLED for (int i = 0; i < DOWN; ++i)
      Left::load(held[i], stage + part.group * PART_BYTES, part.row + i * 16, slice);
}
DEVICE void load_right(unsigned (&held)[ACCUMULATED][4], SharedAddress stage, const Part& part, int slice, int right) {
  const SharedAddress b = stage + part.group * PART_BYTES + A_BYTES;
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) Right::load(held[g], b + g * B_BYTES, part.column + right * 16, slice);
}
DEVICE void multiply_few(Sums& sums, const unsigned (&a)[DOWN][4], const unsigned (&b)[ACCUMULATED][4], int right) {
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int i = 0; i < DOWN; ++i)
      UNROLLED for (int next = 0; next < 2; ++next)
          Mma::multiply(sums.of[g][i][right * 2 + next], a[i], b[g][next * 2], b[g][next * 2 + 1]);
}

struct Fetching {
  Left a;
  Right b[ACCUMULATED];

  DEVICE Fetching(const Operands& from, const Tile& tile, const Parameters& p)
      : a(left_of(from, p, tile.of.a,
                  GROUPED        ? 1
                  : A_TRANSPOSED ? p.k
                                 : p.m,
                  GROUPED ? CHANNELS : pitch_of(p)),
          tile.row, p.m, p.k, pitch_of(p), p) {
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) b[g] =
        Right(matrix_at(right_factor(from, tile.sibling + g), (unsigned long long)tile.of.b * p.k * tile.n),
              tile.column, tile.n, p.k, B_TRANSPOSED ? p.k : tile.n, p);
  }
  DEVICE void fetch(SharedAddress stage) const {
    UNROLLED for (int group = 0; group < WARPS_K; ++group) {
      const SharedAddress to = stage + group * PART_BYTES;
      UNROLLED for (int turn = 0; turn < Left::TURNS; ++turn) a.fetch(to, group, turn);
      UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int turn = 0; turn < Right::TURNS; ++turn) b[g]
          .fetch(to + A_BYTES + g * B_BYTES, group, turn);
    }
  }
  // What this thread has fetched becomes elements of the factors.
  DEVICE void compute(SharedAddress stage, Index step) const {
    a.compute(stage, step);
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) b[g].compute(stage + A_BYTES + g * B_BYTES, step);
  }
  DEVICE void next() {
    a.next();
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) b[g].next();
  }
};

using Pipeline = AsyncPipeline<BlockScope, STAGES>;

DEVICE void multiply(Sums& sums, Fetching& fetching, SharedAddress ring, const Part& part, Index steps) {
  const auto produce = [&](const Pipeline::State& producer, Index step) {
    Pipeline::producer_acquire(producer);
    if (step < steps) fetching.fetch(ring + producer.stage * STAGE_BYTES);
    fetching.next();
    Pipeline::producer_commit();
  };
  // The step's tiles are there, and those before have been read by all.
  const auto wait_for_step = [&](const Pipeline::State& consumer, Index step) {
    Pipeline::own_wait(consumer);
    if (step < steps) fetching.compute(ring + consumer.stage * STAGE_BYTES, step);
    BlockScope::sync();
  };
  _Pragma("unroll 1") for (int stage = 0; stage < STAGES - 1; ++stage) produce({stage}, stage);
  Pipeline::State consumer, producer = {STAGES - 1};
  wait_for_step(consumer, 0);
  if constexpr (STREAMED) {
    static_assert(!STREAMED || (SLICES * RIGHT % (AHEAD + 1) == 0 && RIGHT >= AHEAD), "all steps begin alike");
    Few held;
    load_left(held.a[0], ring, part, 0);
    UNROLLED for (int right = 0; right < AHEAD; ++right) load_right(held.b[right], ring, part, 0, right);
    for (Index step = 0; step < steps; ++step) {
      UNROLLED for (int slice = 0; slice < SLICES; ++slice) {
        UNROLLED for (int right = 0; right < RIGHT; ++right) {
          const int number = slice * RIGHT + right, due = number + AHEAD;
          if (due == SLICES * RIGHT) {
            consumer.advance();
            wait_for_step(consumer, step + 1);
          }
          const SharedAddress stage = ring + consumer.stage * STAGE_BYTES;
          if (due % RIGHT == 0) load_left(held.a[due / RIGHT % 2], stage, part, due / RIGHT % SLICES);
          load_right(held.b[due % (AHEAD + 1)], stage, part, due / RIGHT % SLICES, due % RIGHT);
          if (number == 0) {
            produce(producer, step + (STAGES - 1));
            producer.advance();
          }
          multiply_few(sums, held.a[slice % 2], held.b[number % (AHEAD + 1)], right);
        }
      }
    }
  } else {
    Fragments held[2];
    load_fragments(held[0], ring, part, 0);
    for (Index step = 0; step < steps; ++step) {
      UNROLLED for (int slice = 0; slice < SLICES; ++slice) {
        if (slice == SLICES - 1) {
          consumer.advance();
          wait_for_step(consumer, step + 1);
        }
        load_fragments(held[(slice + 1) % 2], ring + consumer.stage * STAGE_BYTES, part, (slice + 1) % SLICES);
        if (slice == 0) {
          produce(producer, step + (STAGES - 1));
          producer.advance();
        }
        multiply_fragments(sums, held[slice % 2]);
      }
    }
  }
}

// ---- PRECISE: a block that finds a sum that is not finite adds up all of its own again, term by term in float32

// The terms of a stage, one after the other, to the sums of this thread: of the rows and columns that fragments give it.
DEVICE void multiply_plainly(Sums& sums, SharedAddress a, const Part& part) {
  const int lane = thread_index() % 32;
  _Pragma("unroll 1") for (int term = 0; term < TERMS; ++term) {
    float left[DOWN * 2];
    UNROLLED for (int i = 0; i < DOWN * 2; ++i) left[i] = Left::element(a, part.row + i * 8 + lane / 4, term);
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int j = 0; j < RIGHT * 4; ++j) {
      const int across = part.column + j / 2 * 8 + lane % 4 * 2 + j % 2;
      const float right = Right::element(a + A_BYTES + g * B_BYTES, across, term);
      UNROLLED for (int i = 0; i < DOWN * 2; ++i) sums.of[g][i / 2][j / 2][i % 2 * 2 + j % 2] += left[i] * right;
    }
  }
}

DEVICE void multiply_plainly(Sums& sums, Fetching& fetching, SharedAddress ring, const Part& part, Index steps) {
  _Pragma("unroll 1") for (Index step = 0; step < steps; ++step) {
    fetching.fetch(ring);
    fetching.next();
    Pipeline::producer_commit();
    Pipeline::drain();
    fetching.compute(ring, step);
    wait_for_block();
    multiply_plainly(sums, ring + part.group * PART_BYTES, part);
    wait_for_block();
  }
}

// ---- the body

DEVICE void store_sums(const Sums& sums, const Part& part) {
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) UNROLLED for (int i = 0; i < DOWN; ++i)
      UNROLLED for (int half = 0; half < 2; ++half)
          BlockSums::store(part.group, g, part.row + i * 16, part.column, sums.of[g][i], half);
}

constexpr int ACROSS = TILE_N / WIDTH;  // threads along a row
constexpr int ROWS_AT_ONCE = THREADS / ACROSS;
static_assert(ROWS_AT_ONCE > 0, "a block has a thread for each column");

DEVICE void finish(const Pointers& operands, const Results& to, const Tile& tile, const Parameters& p) {
  const int column = thread_index() % ACROSS * WIDTH, first = thread_index() / ACROSS;
  const Index above = GROUPED ? 0 : tile.batch * p.m, before = GROUPED ? tile.batch * tile.n : 0;
  const Index pitch = GROUPED ? p.products() * tile.n : tile.n;
  Place at = {above + tile.row + first, before + tile.column + column, above + p.m, before + tile.n, p.lines, pitch};
  // A thread stays in its columns: those beyond the last whole row have none.
  if (at.column >= at.n || first >= ROWS_AT_ONCE) return;
  const ColumnHeld<WIDTH> columns = load_column<WIDTH>(operands, at, 0);
  _Pragma("unroll 2") for (int row = first; row < TILE_M; row += ROWS_AT_ONCE) {
    at.row = above + tile.row + row;
    if (at.row < at.m) {
      const CellHeld<WIDTH> cells = load_cell<WIDTH>(operands, at, 0, 0);
      const RowHeld rows = load_rows(operands, at, 0);
      BlockSums::finish(to, p, tile.sibling, at, row, column, columns, cells, rows);
    }
  }
}

DEVICE void gemm(const Operands& operands, const Results& to, const Parameters& p) {
  bring_factors<BROUGHT, SIBLINGS>(operands, p);
  join_stream();
  const Tile tile(block_index(), p);
  const Part part;
  const SharedAddress ring = shared_address(shared_floats);
  Fetching fetching(operands, tile, p);
  if constexpr (WINDOW) wait_for_block();
  Sums sums = {};
  multiply(sums, fetching, ring, part, p.steps);
  Pipeline::drain();
  if constexpr (PRECISE) {
    if (any_of_block(!are_finite(sums.of))) {
      Fetching again(operands, tile, p);
      if constexpr (WINDOW) wait_for_block();
      sums = {};
      multiply_plainly(sums, again, ring, part, p.steps);
    }
  } else {
    wait_for_block();
  }
  store_sums(sums, part);
  wait_for_block();
  finish(operands.of(tile.sibling), to, tile, p);
}
