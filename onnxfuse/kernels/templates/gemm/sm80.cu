// y = body(A B0, A B1, ..., operands): matrix products on the tensor cores of sm_80 and all later GPUs, with everything
// pointwise after them.
//
// A [m, k], or [k, m] (A_TURNED), or what a window sees of images (WINDOW; see window.cuh), or what a functor makes
// of matrices [m, k], vectors [k] and [m, 1] and numbers (PROLOGUE). B [k, n], or [n, k] (B_TRANSPOSED). BATCHED: many such products, each with its own A and
// B out of those there are. Operands of the body: [m, n], [n], [m, 1], one element. Outputs [m, n]. Types of A and B:
// float16, bfloat16, or float32, rounded to TF32. Any size and any pointer: A and B are fetched A_PIECE and B_PIECE bytes at
// a time. Accuracy: float accumulators, which the body reads unrounded; each output is rounded once.
//
// A block computes TILE_M x TILE_N of the output. Copies that run beside the threads fetch tiles of A and B through a ring
// of STAGES in shared memory; each warp multiplies its part of the tile, of which it holds the fragments for the products
// to come while it computes those of now. WARPS_K groups of warps share the terms of a stage, where tiles are too few or
// too small to keep the GPU busy. The sums then take the ring's place, from where all threads go over them row by row for
// the body, so that operands and outputs move in 16 bytes.
//
// The body reads ACCUMULATED products of a tile at once (a gate). LANES of such bodies lie side by side, as more output
// tiles, each with factors, operands and outputs of its own; one of ACCUMULATED and LANES is 1.

constexpr int LINE = 128;                                  // bytes of a line of a factor's tile
constexpr int TERMS = LINE / sizeof(Factor);               // terms of a tile; as many elements as a line has
constexpr int SLICES = LINE / 32;                          // products of fragments along the terms of a tile
constexpr int A_BYTES = TILE_M * LINE;
constexpr int B_BYTES = TILE_N * LINE;
constexpr int BESIDE = A_BYTES + ACCUMULATED * B_BYTES;  // where that begins which A is computed from
constexpr int PART_BYTES = BESIDE + beside_bytes<Prologue>();  // what one of the WARPS_K groups multiplies of a stage
constexpr int STAGE_BYTES = WARPS_K * PART_BYTES;
constexpr int STAGE_TERMS = WARPS_K * TERMS;
constexpr int DOWN = TILE_M / WARPS_M / 16, RIGHT = TILE_N / WARPS_N / 16;  // fragments of a warp
constexpr int PITCH = TILE_N + 8;                          // floats: eight rows on, a lane meets other banks
constexpr int SHARES = 1;                                  // slices over which the fetching of a stage is spread
constexpr int PANEL = 8;                                   // tiles below each other before the next column: stays in L2
static_assert(THREADS == WARPS_M * WARPS_N * WARPS_K * 32, "each warp has a part");
constexpr int SEEN_BYTES = WINDOW ? TILE_M * 16 : 0;       // of where the tile's rows lie in the images
static_assert(SHARED_BYTES >= STAGES * STAGE_BYTES + SEEN_BYTES &&
              SHARED_BYTES >= WARPS_K * ACCUMULATED * TILE_M * PITCH * 4 + SEEN_BYTES, "the plan counts as the kernel does");

DYNAMIC_SHARED(float, shared_floats, SHARED_BYTES / 4);

struct Parameters : Source, Stores, Groups {
  Index m, n, k, steps;           // steps: STAGE_TERMS each
  Index rows, columns;            // tiles below each other; side by side, of one product
  Index middle, inner;            // BATCHED: extents of the two inner batch dimensions
  Index a_outer, a_middle, a_inner, b_outer, b_middle, b_inner;  // matrices from one to the next
};

struct Tile {
  Index row, column;  // of the product
  int lane;           // which of the bodies side by side
  Index batch, a, b;  // which product, which of the matrices A and B

  DEVICE Tile(Index number, const Parameters& p) : batch(0), a(0), b(0) {
    const Index across = p.columns * LANES;
    if constexpr (BATCHED) {
      batch = number / (p.rows * across);
      number -= batch * (p.rows * across);
      const Index inner = batch % p.inner, above = batch / p.inner, middle = above % p.middle, outer = above / p.middle;
      a = outer * p.a_outer + middle * p.a_middle + inner * p.a_inner;
      b = outer * p.b_outer + middle * p.b_middle + inner * p.b_inner;
    }
    const Index panel = number / (PANEL * across), inside = number - panel * (PANEL * across);
    const Index first = panel * PANEL, height = p.rows - first < PANEL ? p.rows - first : PANEL;
    const Index x = inside / height;
    lane = LANES == 1 ? 0 : (int)(x / p.columns);
    row = (first + inside % height) * TILE_M;
    column = (x - lane * p.columns) * TILE_N;
  }
};

// ---- a factor's tile

// ROWS rows (of A; columns of B) with their terms side by side, or (TURNED) the rows side by side, a line for each term
// of as many rows as a line has elements. The pieces of 16 bytes of a line are exchanged by its number, so that what a
// warp reads at once lies in different banks.
//
// A fragment of mma has the two halves of its terms side by side in B, its two halves of rows in A: BESIDE says which.
template <int ROWS, bool TURNED, int PIECE, bool BESIDE> struct Side {
  static constexpr int WIDE = 16 / sizeof(Factor);        // elements of a piece
  static constexpr int AT_ONCE = THREADS / 8;             // lines that the block fetches at once
  static constexpr int TURNS = (ROWS + AT_ONCE - 1) / AT_ONCE;
  static constexpr bool SINGLE = TURNED && sizeof(Factor) == 4;  // fragments are loaded element by element
  static_assert(TERMS % AT_ONCE == 0 || !TURNED, "a thread's lines are a fixed way apart");

  const Factor* from;  // this thread's first piece
  Index row, term;     // of that piece
  Index rows, terms, pitch;

  DEVICE Side() {}
  DEVICE Side(const Factor* matrix, Index first_row, Index rows, Index terms, const Source&)
      : rows(rows), terms(terms), pitch(TURNED ? rows : terms) {
    const int line = thread_index() / 8, piece = thread_index() % 8 * WIDE;
    row = first_row + (TURNED ? piece : line);
    term = TURNED ? line : piece;
    from = matrix + (TURNED ? (unsigned long long)term * pitch + row : (unsigned long long)row * pitch + term);
  }
  DEVICE void next() {
    term += STAGE_TERMS;
    from += TURNED ? (unsigned long long)STAGE_TERMS * pitch : STAGE_TERMS;
  }
  static DEVICE int exchanged(int line) { return SINGLE ? line % 4 * 2 : line % 8; }

  // One of the block's TURNS to fetch the tile of group `group`.
  DEVICE void fetch(SharedAddress tile, int group, int turn) const {
    const int line = thread_index() / 8, piece = thread_index() % 8, lines = turn * AT_ONCE;
    const int down = TURNED ? group * TERMS + lines % TERMS : lines;
    const int right = TURNED ? lines / TERMS * TERMS : group * TERMS;
    if (ROWS % AT_ONCE == 0 || line + lines < ROWS) {
      // Along a line the elements from the piece's first one on, `left` of them.
      const bool inside = TURNED ? term + down < terms : row + down < rows;
      const Index along = (TURNED ? row : term) + right, end = TURNED ? rows : terms;
      copy_piece(tile + ((line + lines) * LINE + ((piece ^ exchanged(line)) << 4)),
                 from + ((unsigned long long)down * pitch + right), inside && along < end ? (int)(end - along) : 0);
    }
  }
  static DEVICE void copy_piece(SharedAddress to, const Factor* at, int left) {
    if constexpr (PIECE == 16) {
      copy_beside<16>(to, at, left > 0);
    } else if constexpr (PIECE >= 4) {
      UNROLLED for (int part = 0; part < 16 / PIECE; ++part) {
        constexpr int ELEMENTS = PIECE / sizeof(Factor);
        copy_beside<PIECE>(to + part * PIECE, at + part * ELEMENTS, part * ELEMENTS < left);
      }
    } else {
      unsigned word[4];
      UNROLLED for (int i = 0; i < 4; ++i)
        word[i] = (2 * i < left ? (unsigned)load_bits(at + 2 * i) : 0u) |
                  (2 * i + 1 < left ? (unsigned)load_bits(at + 2 * i + 1) << 16 : 0u);
      store_shared(to, word);
    }
  }

  // A prologue's part: nothing.
  DEVICE void compute(SharedAddress stage, Index step) const {}

  // Sixteen rows from `row` on, 32 bytes of terms, in four parts of half as many each.
  static DEVICE void load(unsigned (&fragment)[4], SharedAddress tile, int row, int slice) {
    const int lane = thread_index() % 32;
    if constexpr (SINGLE) {
      UNROLLED for (int i = 0; i < 4; ++i) {
        const int term = slice * 8 + lane % 4 + (BESIDE ? i % 2 : i / 2) * 4;
        const int across = row % TERMS + lane / 4 + (BESIDE ? i / 2 : i % 2) * 8, line = row / TERMS * TERMS + term;
        fragment[i] = load_shared(tile + (line * LINE + ((across / 4 ^ exchanged(term)) << 4) + across % 4 * 4));
      }
    } else {
      const int rows_half = BESIDE ? lane / 16 : lane / 8 % 2, terms_half = BESIDE ? lane / 8 % 2 : lane / 16;
      const int line = TURNED ? row / TERMS * TERMS + slice * 16 + terms_half * 8 + lane % 8 : row + rows_half * 8 + lane % 8;
      const int piece = TURNED ? row % TERMS / 8 + rows_half : slice * 2 + terms_half;
      load_blocks<TURNED>(fragment, tile + (line * LINE + ((piece ^ lane % 8) << 4)));
    }
    if constexpr (sizeof(Factor) == 4)
      UNROLLED for (int i = 0; i < 4; ++i) fragment[i] = rounded_to_tf32(fragment[i]);
  }
};

// Rows are what a functor makes of matrices and vectors. The thread that has fetched pieces of matrices computes 16 bytes
// of the tile from them once they have arrived: its own copies are there before the block's barrier.
template <class From> struct Computed : Side<TILE_M, false, A_PIECE, false> {
  using Base = Side<TILE_M, false, A_PIECE, false>;
  From read;

  DEVICE Computed(const From& read, Index first_row, Index rows, Index terms, const Source&) : read(read) {
    this->row = first_row + thread_index() / 8;
    this->term = thread_index() % 8 * Base::WIDE;
    this->rows = rows;
    this->terms = terms;
  }
  DEVICE void next() { this->term += STAGE_TERMS; }
  DEVICE int there(Index row, Index term) const {
    return row < this->rows && term < this->terms ? (int)(this->terms - term) : 0;
  }
  static DEVICE bool inside(int turn) {
    return TILE_M % Base::AT_ONCE == 0 || (int)thread_index() / 8 + turn * Base::AT_ONCE < TILE_M;
  }
  static DEVICE int place(int turn) {
    const int line = thread_index() / 8, piece = thread_index() % 8;
    return (line + turn * Base::AT_ONCE) * LINE + ((piece ^ Base::exchanged(line)) << 4);
  }
  DEVICE void fetch(SharedAddress tile, int group, int turn) const {
    if (!inside(turn)) return;
    const Index row = this->row + turn * Base::AT_ONCE, term = this->term + group * TERMS;
    read.fetch(tile + place(turn), tile + BESIDE, thread_index() + turn * THREADS,
               (unsigned long long)row * this->terms + term, there(row, term));
  }
  DEVICE void compute(SharedAddress stage, Index step) const {
    UNROLLED for (int group = 0; group < WARPS_K; ++group) {
      const SharedAddress tile = stage + group * PART_BYTES;
      const Index term = step * STAGE_TERMS + group * TERMS + thread_index() % 8 * Base::WIDE;
      const auto columns = read.columns(term, there(0, term));
      _Pragma("unroll 2") for (int turn = 0; turn < Base::TURNS; ++turn) {
        if (!inside(turn)) break;
        const Index row = this->row + turn * Base::AT_ONCE;
        const int left = there(row, term);
        const auto cells = read.take(tile + place(turn), tile + BESIDE, thread_index() + turn * THREADS,
                                     (unsigned long long)row * this->terms + term, left);
        unsigned word[4];
        From::compute(word, cells, columns, read.rows(row, row < this->rows, term, left), left);
        store_shared(tile + place(turn), word);
      }
    }
  }
};

// Rows are places of a window, terms what it sees there. Where each row of the tile lies, as {first element, top, left},
// stays in shared memory behind the ring. A piece of A_PIECE bytes is of one element of the window.
template <class Images> struct Windows : Side<TILE_M, false, A_PIECE, false> {
  using Base = Side<TILE_M, false, A_PIECE, false>;
  const Images& images;

  static DEVICE Chunk<16>* seen() {
    return reinterpret_cast<Chunk<16>*>(shared_floats + (SHARED_BYTES - SEEN_BYTES) / 4);
  }
  DEVICE Windows(const Factor* first, Index first_row, Index rows, Index terms, const Images& s) : images(s) {
    this->from = first;
    this->term = thread_index() % 8 * Base::WIDE;
    this->terms = terms;
    for (int line = thread_index(); line < TILE_M; line += THREADS) {
      const Index row = first_row + line, above = row / s.across, image = above / s.down;
      const int left = (int)((row - above * s.across) * s.stride_across) - (int)s.pad_left;
      const int top = (int)((above - image * s.down) * s.stride_down) - (int)s.pad_above;
      const int corner = (((int)(image * s.height) + top) * (int)s.width + left) * CHANNELS;
      constexpr int NOWHERE = -(1 << 30);
      seen()[line] = {(unsigned)corner, (unsigned)(row < rows ? top : NOWHERE), (unsigned)left, 0u};
    }
  }
  DEVICE void next() { this->term += STAGE_TERMS; }
  // Where the window sees a term; null outside of the image.
  DEVICE const Factor* at(const Chunk<16>& row, Index term) const {
    const int element = (int)term / CHANNELS, channel = (int)term % CHANNELS;
    const int down = element / WINDOW_WIDTH * (int)images.dilation_down;
    const int across = element % WINDOW_WIDTH * (int)images.dilation_across;
    const int y = (int)row.word[1] + down, x = (int)row.word[2] + across;
    const bool inside = term < this->terms && (unsigned)y < (unsigned)images.height && (unsigned)x < (unsigned)images.width;
    return inside ? this->from + ((int)row.word[0] + (down * (int)images.width + across) * CHANNELS + channel) : nullptr;
  }
  DEVICE void fetch(SharedAddress tile, int group, int turn) const {
    const int line = thread_index() / 8 + turn * Base::AT_ONCE, piece = thread_index() % 8;
    if (TILE_M % Base::AT_ONCE != 0 && line >= TILE_M) return;
    const Chunk<16> row = seen()[line];
    const SharedAddress to = tile + (line * LINE + ((piece ^ Base::exchanged(line)) << 4));
    constexpr int ELEMENTS = A_PIECE / sizeof(Factor);
    if constexpr (A_PIECE >= 4) {
      UNROLLED for (int part = 0; part < 16 / A_PIECE; ++part) {
        const Factor* there = at(row, this->term + group * TERMS + part * ELEMENTS);
        copy_beside<A_PIECE>(to + part * A_PIECE, there ? there : this->from, there != nullptr);
      }
    } else {
      unsigned word[4] = {};
      UNROLLED for (int i = 0; i < 8; ++i)
        if (const Factor* there = at(row, this->term + group * TERMS + i))
          word[i / 2] |= (unsigned)load_bits(there) << i % 2 * 16;
      store_shared(to, word);
    }
  }
};

template <bool, class Yes, class No> struct Either {
  using Type = Yes;
};
template <class Yes, class No> struct Either<false, Yes, No> {
  using Type = No;
};
using Matrix = typename Either<PROLOGUE, Computed<Prologue>, Side<TILE_M, A_TURNED, A_PIECE, false>>::Type;
using Left = typename Either<WINDOW, Windows<Source>, Matrix>::Type;
using Right = Side<TILE_N, !B_TRANSPOSED, B_PIECE, true>;

// ---- products

struct Sums {
  float of[ACCUMULATED][DOWN][RIGHT * 2][4];
};
struct Fragments {
  unsigned a[DOWN][4], b[ACCUMULATED][RIGHT][4];
};
// Of B those for sixteen columns at a time, where the accumulators leave no registers for more.
constexpr int AHEAD = 3;  // loaded before they are needed
struct Few {
  unsigned a[2][DOWN][4], b[AHEAD + 1][ACCUMULATED][4];
};

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
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
    UNROLLED for (int j = 0; j < RIGHT; ++j) Right::load(held.b[g][j], b + g * B_BYTES, part.column + j * 16, slice);
}

DEVICE void multiply_fragments(Sums& sums, const Fragments& held) {
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
    UNROLLED for (int i = 0; i < DOWN; ++i)
      UNROLLED for (int j = 0; j < RIGHT; ++j)
        UNROLLED for (int next = 0; next < 2; ++next)
          product(sums.of[g][i][j * 2 + next], held.a[i], held.b[g][j][next * 2], held.b[g][j][next * 2 + 1],
                  (Factor*)nullptr);
}

DEVICE void load_left(unsigned (&held)[DOWN][4], SharedAddress stage, const Part& part, int slice) {
  UNROLLED for (int i = 0; i < DOWN; ++i) Left::load(held[i], stage + part.group * PART_BYTES, part.row + i * 16, slice);
}
DEVICE void load_right(unsigned (&held)[ACCUMULATED][4], SharedAddress stage, const Part& part, int slice, int right) {
  const SharedAddress b = stage + part.group * PART_BYTES + A_BYTES;
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) Right::load(held[g], b + g * B_BYTES, part.column + right * 16, slice);
}
DEVICE void multiply_few(Sums& sums, const unsigned (&a)[DOWN][4], const unsigned (&b)[ACCUMULATED][4], int right) {
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
    UNROLLED for (int i = 0; i < DOWN; ++i)
      UNROLLED for (int next = 0; next < 2; ++next)
        product(sums.of[g][i][right * 2 + next], a[i], b[g][next * 2], b[g][next * 2 + 1], (Factor*)nullptr);
}

struct Fetching {
  Left a;
  Right b[ACCUMULATED];

  DEVICE Fetching(const Operands& from, const Tile& tile, const Parameters& p)
      : a(left_of(from, p, tile.a, p.m, p.k), tile.row, p.m, p.k, p) {
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
      b[g] = Right(right_factor(from, tile.lane + g) + (unsigned long long)tile.b * p.k * p.n, tile.column, p.n, p.k, p);
  }
  // One share of a stage, of `shares`: so that copies do not stand in line before the fragments that are due.
  DEVICE void fetch(SharedAddress stage, int share, int shares) const {
    int number = 0;
    UNROLLED for (int group = 0; group < WARPS_K; ++group) {
      const SharedAddress to = stage + group * PART_BYTES;
      UNROLLED for (int turn = 0; turn < Left::TURNS; ++turn)
        if (number++ % shares == share) a.fetch(to, group, turn);
      UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
        UNROLLED for (int turn = 0; turn < Right::TURNS; ++turn)
          if (number++ % shares == share) b[g].fetch(to + A_BYTES + g * B_BYTES, group, turn);
    }
  }
  DEVICE void next() {
    a.next();
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) b[g].next();
  }
};

DEVICE void multiply(Sums& sums, Fetching& fetching, SharedAddress ring, const Part& part, Index steps) {
  _Pragma("unroll 1") for (int stage = 0; stage < STAGES - 1; ++stage) {
    if (stage < steps) fetching.fetch(ring + stage * STAGE_BYTES, 0, 1);
    fetching.next();
    close_group_of_copies();
  }
  wait_for_copies<STAGES - 2>();
  if (steps > 0) fetching.a.compute(ring, 0);
  wait_for_block();
  int here = 0, free = STAGES - 1;  // the stage that is multiplied; the one that nobody needs any more
  // The next step's tiles are there, and this step's have been read by all.
  const auto advance = [&](Index step) {
    wait_for_copies<STAGES - 2>();
    here = here == STAGES - 1 ? 0 : here + 1;
    if (step + 1 < steps) fetching.a.compute(ring + here * STAGE_BYTES, step + 1);
    wait_for_block();
  };
  const auto refill = [&](Index step) {
    if (step + (STAGES - 1) < steps) fetching.fetch(ring + free * STAGE_BYTES, 0, 1);
    fetching.next();
    close_group_of_copies();
    free = free == STAGES - 1 ? 0 : free + 1;
  };
  if constexpr (STREAMED) {
    static_assert(!STREAMED || (SLICES * RIGHT % (AHEAD + 1) == 0 && RIGHT >= AHEAD), "all steps begin alike");
    Few held;
    load_left(held.a[0], ring, part, 0);
    UNROLLED for (int right = 0; right < AHEAD; ++right) load_right(held.b[right], ring, part, 0, right);
    for (Index step = 0; step < steps; ++step) {
      UNROLLED for (int slice = 0; slice < SLICES; ++slice) {
        UNROLLED for (int right = 0; right < RIGHT; ++right) {
          const int number = slice * RIGHT + right, due = number + AHEAD;
          if (due == SLICES * RIGHT) advance(step);
          const SharedAddress stage = ring + here * STAGE_BYTES;
          if (due % RIGHT == 0) load_left(held.a[due / RIGHT % 2], stage, part, due / RIGHT % SLICES);
          load_right(held.b[due % (AHEAD + 1)], stage, part, due / RIGHT % SLICES, due % RIGHT);
          if (number == 0) refill(step);
          multiply_few(sums, held.a[slice % 2], held.b[number % (AHEAD + 1)], right);
        }
      }
    }
  } else {
    Fragments held[2];
    load_fragments(held[0], ring, part, 0);
    for (Index step = 0; step < steps; ++step) {
      UNROLLED for (int slice = 0; slice < SLICES; ++slice) {
        if (slice == SLICES - 1) advance(step);
        load_fragments(held[(slice + 1) % 2], ring + here * STAGE_BYTES, part, (slice + 1) % SLICES);
        if (slice == 0) refill(step);
        multiply_fragments(sums, held[slice % 2]);
      }
    }
  }
}

// ---- the body

DEVICE float* sums_row(int group, int product, int row) {
  return shared_floats + ((group * ACCUMULATED + product) * TILE_M + row) * PITCH;
}

DEVICE void put_sums(const Sums& sums, const Part& part) {
  const int lane = thread_index() % 32;
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g)
    UNROLLED for (int i = 0; i < DOWN; ++i)
      UNROLLED for (int half = 0; half < 2; ++half) {
        float* to = sums_row(part.group, g, part.row + i * 16 + half * 8 + lane / 4) + part.column + lane % 4 * 2;
        UNROLLED for (int j = 0; j < RIGHT * 2; ++j) {
          const float(&mine)[4] = sums.of[g][i][j];
          *reinterpret_cast<Chunk<8>*>(to + j * 8) = {bits_of_float(mine[half * 2]), bits_of_float(mine[half * 2 + 1])};
        }
      }
}

// WIDTH neighbours of a row of the sums of all groups.
DEVICE void take_sums(float (&sum)[ACCUMULATED][WIDTH], int row, int column) {
  UNROLLED for (int g = 0; g < ACCUMULATED; ++g) {
    UNROLLED for (int group = 0; group < WARPS_K; ++group) {
      using Held = Pack<float, WIDTH>;
      Held held;
      const auto* from = reinterpret_cast<const Chunk<Held::CHUNK>*>(sums_row(group, g, row) + column);
      UNROLLED for (int i = 0; i < Held::CHUNKS; ++i) held.chunk[i] = from[i];
      UNROLLED for (int i = 0; i < WIDTH; ++i) sum[g][i] = group == 0 ? held.get(i) : sum[g][i] + held.get(i);
    }
  }
}

constexpr int ACROSS = TILE_N / WIDTH;        // threads along a row
constexpr int ROWS_AT_ONCE = THREADS / ACROSS;
static_assert(ROWS_AT_ONCE > 0, "a block has a thread for each column");

DEVICE void finish(const Pointers& operands, const Results& to, const Tile& tile, const Parameters& p) {
  const int column = thread_index() % ACROSS * WIDTH, first = thread_index() / ACROSS;
  // Rows are counted through all products of a batch.
  const Index above = tile.batch * p.m;
  Place at = {above + tile.row + first, tile.column + column, above + p.m, p.n};
  // A thread stays in its columns: those beyond the last whole row have none.
  if (at.column >= p.n || first >= ROWS_AT_ONCE) return;
  const ColumnHeld<WIDTH> columns = load_column<WIDTH>(operands, at, 0);
  _Pragma("unroll 2") for (int row = first; row < TILE_M; row += ROWS_AT_ONCE) {
    at.row = above + tile.row + row;
    if (at.row < at.m) {
      const CellHeld<WIDTH> cells = load_cell<WIDTH>(operands, at, 0, 0);
      const RowHeld rows = load_rows(operands, at, 0);
      float sum[ACCUMULATED][WIDTH];
      take_sums(sum, row, column);
      Result result[WIDTH];
      UNROLLED for (int i = 0; i < WIDTH; ++i) {
        float mine[ACCUMULATED];
        UNROLLED for (int g = 0; g < ACCUMULATED; ++g) mine[g] = sum[g][i];
        result[i] = apply(element(mine, columns, cells, rows, 0, i));
      }
      store_results<WIDTH>(to, p, tile.lane, at, result);
    }
  }
}

DEVICE void gemm(const Operands& operands, const Results& to, const Parameters& p) {
  const Tile tile(block_index(), p);
  const Part part;
  const SharedAddress ring = shared_address(shared_floats);
  Fetching fetching(operands, tile, p);
  if constexpr (WINDOW) wait_for_block();
  Sums sums = {};
  multiply(sums, fetching, ring, part, p.steps);
  wait_for_copies<0>();
  wait_for_block();
  put_sums(sums, part);
  wait_for_block();
  finish(operands.of(tile.lane), to, tile, p);
}
