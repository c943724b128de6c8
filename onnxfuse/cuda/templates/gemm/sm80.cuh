// What the kernel of sm80.cu multiplies: tiles of the factors in shared memory, and how they are fetched.

constexpr int LINE = 128;                     // bytes of a line of a factor's tile
constexpr int TERMS = LINE / sizeof(Factor);  // terms of a tile; as many elements as a line has
using Mma = MmaSync<Factor, PRECISE>;
constexpr int SLICES = LINE / 32;  // products of fragments along the terms of a tile
constexpr int A_BYTES = TILE_M * LINE;
constexpr int B_BYTES = TILE_N * LINE;
constexpr int BESIDE = A_BYTES + ACCUMULATED * B_BYTES;        // where that begins which A is computed from
constexpr int PART_BYTES = BESIDE + beside_bytes<Prologue>();  // what one of the WARPS_K groups multiplies of a stage
constexpr int STAGE_BYTES = WARPS_K * PART_BYTES;
constexpr int STAGE_TERMS = WARPS_K * TERMS;
constexpr int DOWN = TILE_M / WARPS_M / 16, RIGHT = TILE_N / WARPS_N / 16;  // fragments of a warp
constexpr int PANEL = 8;  // tiles below each other before the next column: stays in L2
static_assert(THREADS == WARPS_M * WARPS_N * WARPS_K * 32, "each warp has a part");
using BlockSums = SharedSums<WARPS_K, TILE_M, TILE_N>;
constexpr int SEEN_BYTES = WINDOW ? TILE_M * 16 : 0;  // of where the tile's rows lie in the images
static_assert(SHARED_BYTES >= STAGES * STAGE_BYTES + SEEN_BYTES && SHARED_BYTES >= BlockSums::BYTES + SEEN_BYTES,
              "the plan counts as the kernel does");

struct Parameters : Source, Stores, Groups, Products {
  Sides<SIBLINGS, EVEN> sides;
  Index m, k, steps;  // steps: STAGE_TERMS each
  Index rows;         // tiles below each other
  Index pitch;        // A_CUT: elements from one line of A to the next
  Index lines;        // rows of the innermost matrix of the output
};

DEVICE Index pitch_of(const Parameters& p) { return A_CUT ? p.pitch : A_TRANSPOSED ? p.m : p.k; }

struct Tile {
  Index row, column;  // of the product
  int sibling;        // which of the bodies side by side
  Index n;            // columns of its products
  Index batch;        // which product
  Matrices of;

  DEVICE Tile(Index number, const Parameters& p) : batch(0), of{0, 0} {
    const Index across = p.sides.across();
    if constexpr (BATCHED) {
      batch = number / (p.rows * across);
      number -= batch * (p.rows * across);
      of = p.matrices(batch);
    }
    const Index panel = number / (PANEL * across), inside = number - panel * (PANEL * across);
    const Index first = panel * PANEL, height = p.rows - first < PANEL ? p.rows - first : PANEL;
    const Index x = inside / height;
    sibling = p.sides.sibling(x);
    n = p.sides.columns_of(sibling);
    row = (first + inside % height) * TILE_M;
    column = p.sides.own(x, sibling) * TILE_N;
  }
};

// ---- a factor's tile

template <bool, class Yes, class No> struct Either { using Type = Yes; };
template <class Yes, class No> struct Either<false, Yes, No> { using Type = No; };

// Of lines that are read a word at a time, one of each of four lines: eight neighbours of each lie in different banks.
struct SingleSwizzle {
  static DEVICE int swizzle(int line, int piece) { return piece ^ line % 4 * 2; }
};

// ROWS rows (of A; columns of B) with adjacent terms, or (TRANSPOSED) adjacent rows, a line for each term of as many rows as
// a line has elements. PARTIAL: a line's elements may end within a piece.
template <int ROWS, FactorOf SIDE, bool TRANSPOSED, int PIECE, bool PARTIAL = false> struct Side {
  static constexpr int WIDE = 16 / sizeof(Factor);  // elements of a piece
  static constexpr int AT_ONCE = THREADS / 8;       // lines that the block fetches at once
  static constexpr int TURNS = (ROWS + AT_ONCE - 1) / AT_ONCE;
  static constexpr bool SINGLE = TRANSPOSED && sizeof(Factor) == 4;  // fragments are loaded element by element
  using Lines = SwizzledTile<LINE, typename Either<SINGLE, SingleSwizzle, XorSwizzle<8>>::Type>;
  static_assert(TERMS % AT_ONCE == 0 || !TRANSPOSED, "a thread's lines are a fixed way apart");

  const Factor* from;  // this thread's first piece
  Index row, term;     // of that piece
  Index rows, terms, pitch;

  DEVICE Side() {}
  DEVICE Side(const Factor* matrix, Index first_row, Index rows, Index terms, Index pitch, const Source&)
      : rows(rows), terms(terms), pitch(pitch) {
    const int line = thread_index() / 8, piece = thread_index() % 8 * WIDE;
    row = first_row + (TRANSPOSED ? piece : line);
    term = TRANSPOSED ? line : piece;
    from = matrix + (TRANSPOSED ? (unsigned long long)term * pitch + row : (unsigned long long)row * pitch + term);
  }
  DEVICE void next() {
    term += STAGE_TERMS;
    from += TRANSPOSED ? (unsigned long long)STAGE_TERMS * pitch : STAGE_TERMS;
  }
  // One of the block's TURNS to fetch the tile of group `group`.
  DEVICE void fetch(SharedAddress tile, int group, int turn) const {
    const int line = thread_index() / 8, piece = thread_index() % 8, lines = turn * AT_ONCE;
    const int down = TRANSPOSED ? group * TERMS + lines % TERMS : lines;
    const int right = TRANSPOSED ? lines / TERMS * TERMS : group * TERMS;
    if (ROWS % AT_ONCE == 0 || line + lines < ROWS) {
      // Along a line the elements from the piece's first one on, `left` of them.
      const bool inside = TRANSPOSED ? term + down < terms : row + down < rows;
      const Index along = (TRANSPOSED ? row : term) + right, end = TRANSPOSED ? rows : terms;
      copy_piece<PIECE, PARTIAL>(Lines{tile}.like(line, line + lines, piece),
                                 from + ((unsigned long long)down * pitch + right),
                                 inside && along < end ? (int)(end - along) : 0);
    }
  }

  // A prologue's part: nothing.
  DEVICE void compute(SharedAddress stage, Index step) const {}

  // Sixteen rows from `row` on, 32 bytes of terms, in four parts of half as many each.
  static DEVICE void load(unsigned (&fragment)[4], SharedAddress tile, int row, int slice) {
    const int lane = thread_index() % 32;
    if constexpr (SINGLE) {
      UNROLLED for (int i = 0; i < 4; ++i) {
        const int term = slice * 8 + lane % 4 + (SIDE == FactorOf::RIGHT ? i % 2 : i / 2) * 4;
        const int across = row % TERMS + lane / 4 + (SIDE == FactorOf::RIGHT ? i / 2 : i % 2) * 8;
        fragment[i] = load_shared(Lines{tile}.like(term, row / TERMS * TERMS + term, across / 4) + across % 4 * 4);
      }
    } else if constexpr (TRANSPOSED) {
      Lines{tile}.template load<SIDE, true>(fragment, row / TERMS * TERMS + slice * 16, row % TERMS / 8);
    } else {
      Lines{tile}.template load<SIDE, false>(fragment, row, slice * 2);
    }
    Mma::convert(fragment);
  }
  // One of float32.
  static DEVICE float element(SharedAddress tile, int row, int term) {
    const int line = TRANSPOSED ? row / TERMS * TERMS + term : row, along = TRANSPOSED ? row % TERMS : term;
    return float_of_bits(load_shared(Lines{tile}.at(line, along / 4) + along % 4 * 4));
  }
};

// Rows are what a functor makes of matrices and vectors. The thread that has fetched pieces of matrices computes 16 bytes
// of the tile from them once they have arrived: its own copies are there before the block's barrier.
template <class From> struct Computed : Side<TILE_M, FactorOf::LEFT, false, A_PIECE> {
  using Base = Side<TILE_M, FactorOf::LEFT, false, A_PIECE>;
  From read;

  DEVICE Computed(const From& read, Index first_row, Index rows, Index terms, Index, const Source&) : read(read) {
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
  static DEVICE SharedAddress place(SharedAddress tile, int turn) {
    return typename Base::Lines{tile}.like(thread_index() / 8, thread_index() / 8 + turn * Base::AT_ONCE,
                                           thread_index() % 8);
  }
  DEVICE void fetch(SharedAddress tile, int group, int turn) const {
    if (!inside(turn)) return;
    const Index row = this->row + turn * Base::AT_ONCE, term = this->term + group * TERMS;
    read.fetch(place(tile, turn), tile + BESIDE, thread_index() + turn * THREADS, row, term, this->terms,
               there(row, term));
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
        const auto cells =
            read.take(place(tile, turn), tile + BESIDE, thread_index() + turn * THREADS, row, term, this->terms, left);
        unsigned word[4];
        From::compute(word, cells, columns, read.rows(row, row < this->rows, term, left), left);
        store_shared(place(tile, turn), word);
      }
    }
  }
};

// Columns of a matrix in few bits: sm80_packed.cuh.
template <class Packed, bool COPIED> struct Unpacked;

// Rows are places of a window, terms what it sees there. Where each row of the tile lies, as {first element, top, left,
// front}, stays in shared memory behind the ring. A piece of A_PIECE bytes is of one element of the window.
template <class Images> struct Windows : Side<TILE_M, FactorOf::LEFT, false, A_PIECE> {
  using Base = Side<TILE_M, FactorOf::LEFT, false, A_PIECE>;
  const Images& images;

  static DEVICE Chunk<16>* seen() {
    return reinterpret_cast<Chunk<16>*>(shared_floats + (SHARED_BYTES - SEEN_BYTES) / 4);
  }
  DEVICE Windows(const Factor* first, Index first_row, Index rows, Index terms, Index, const Images& s) : images(s) {
    this->from = first;
    this->term = thread_index() % 8 * Base::WIDE;
    this->terms = terms;
    for (int line = thread_index(); line < TILE_M; line += THREADS) {
      const Index row = first_row + line, above = row / s.across, before = above / s.down;
      const Index image = VOLUME ? before / s.inward : before;
      const int left = (int)((row - above * s.across) * s.stride_across) - (int)s.pad_left;
      const int top = (int)((above - before * s.down) * s.stride_down) - (int)s.pad_above;
      const int front = VOLUME ? (int)((before - image * s.inward) * s.stride_inward) - (int)s.pad_front : 0;
      const int layer = VOLUME ? (int)(image * s.depth) + front : (int)image;
      const int corner = ((layer * (int)s.height + top) * (int)s.width + left) * PIXEL;
      constexpr int NOWHERE = -(1 << 30);
      seen()[line] = {(unsigned)corner, (unsigned)(row < rows ? top : NOWHERE), (unsigned)left, (unsigned)front};
    }
  }
  DEVICE void next() { this->term += STAGE_TERMS; }
  // Where the window sees a term; null outside of the image.
  DEVICE const Factor* at(const Chunk<16>& row, Index term) const {
    const int element = (int)term / CHANNELS, channel = (int)term % CHANNELS, line = element / WINDOW_WIDTH;
    const int inward = VOLUME ? line / WINDOW_HEIGHT * (int)images.dilation_inward : 0;
    const int down = (VOLUME ? line % WINDOW_HEIGHT : line) * (int)images.dilation_down;
    const int across = element % WINDOW_WIDTH * (int)images.dilation_across;
    const int y = (int)row.word[1] + down, x = (int)row.word[2] + across, z = (int)row.word[3] + inward;
    const bool inside = term < this->terms && (unsigned)y < (unsigned)images.height &&
                        (unsigned)x < (unsigned)images.width && (!VOLUME || (unsigned)z < (unsigned)images.depth);
    const int lines = VOLUME ? inward * (int)images.height + down : down;
    return inside ? this->from + ((int)row.word[0] + (lines * (int)images.width + across) * PIXEL + channel) : nullptr;
  }
  DEVICE void fetch(SharedAddress tile, int group, int turn) const {
    const int line = thread_index() / 8 + turn * Base::AT_ONCE, piece = thread_index() % 8;
    if (TILE_M % Base::AT_ONCE != 0 && line >= TILE_M) return;
    const Chunk<16> row = seen()[line];
    const SharedAddress to = typename Base::Lines{tile}.at(line, piece);
    constexpr int ELEMENTS = A_PIECE / sizeof(Factor);
    if constexpr (A_PIECE >= 4) {
      UNROLLED for (int part = 0; part < 16 / A_PIECE; ++part) {
        const Factor* there = at(row, this->term + group * TERMS + part * ELEMENTS);
        copy_async<A_PIECE>(to + part * A_PIECE, there ? there : this->from, there != nullptr);
      }
    } else {
      unsigned word[4] = {};
      UNROLLED for (int i = 0; i < 8; ++i) if (const Factor* there = at(row, this->term + group * TERMS + i))
          word[i / 2] |= (unsigned)load_bits(there) << i % 2 * 16;
      store_shared(to, word);
    }
  }
};

using Matrix =
    typename Either<PROLOGUE, Computed<Prologue>, Side<TILE_M, FactorOf::LEFT, A_TRANSPOSED, A_PIECE, A_CUT>>::Type;
using Left = typename Either<WINDOW, Windows<Source>, Matrix>::Type;
