// y[n, p, q, f] = body(sum over r, s, c of x[n, p + r - top, q + s - left, c] w[f, r, s, c], ...)
//
// Convolution of few filters on the tensor cores: windows that slide by one pixel over images [N, H, W, C], whose channels
// may come from several tensors side by side. w [F, R, S, C]; outputs and operands [N, P, Q, F]. Accuracy: exact products
// of 16-bit elements, of float32 rounded to TF32; sums in float.
//
// A block computes TILE_ROWS x TILE_COLUMNS outputs of BLOCK_FILTERS filters. It goes through the channels in slices of 64
// bytes: a stage in shared memory holds a slice of all pixels that the tile's windows see, once, and the filters' slice;
// copies fill the next stages meanwhile. Every element of the window reads the same pixels, so many rows and columns on:
// in shared memory that is another address. The tensor map of an implicit GEMM brings them from L2 once for each element
// instead, 5.5 TB/s of them for nine (8 x 128x128, 160 to 32, float16: 63 us, H200, 2026-11).
//
// A warp computes STACK x TILES_N products of 16 outputs by 8 filters: as many rows of 16 columns below each other, so that
// a row of pixels that it has loaded counts for KERNEL_H of them. PARTS warps share the block's filters. Which filters stand
// in which of the TILES_N columns of products is free: so that a lane ends with VECTOR neighbours of an output pixel.

constexpr int WARPS = THREADS / 32, TAPS = KERNEL_H * KERNEL_W;
constexpr int LINE = 64;                                      // bytes of a pixel, or of an element of a filter, in a stage
constexpr int ELEMENTS = LINE / int(sizeof(X));
constexpr int TERMS = 32 / int(sizeof(X));                    // of a product
constexpr int SLICES = (X_CHANNELS + ELEMENTS - 1) / ELEMENTS;
constexpr int WHOLE = LINE / 32, REST = (X_CHANNELS - (SLICES - 1) * ELEMENTS + TERMS - 1) / TERMS;  // products of a slice
constexpr int ROWS_IN = TILE_ROWS + KERNEL_H - 1;
constexpr int COLUMNS_IN = (TILE_COLUMNS + KERNEL_W) / 2 * 2;  // even, so that rows begin on the same banks
constexpr int PAIRS = (TILES_N + 1) / 2;                     // of columns of products, whose filters are loaded at once
constexpr int FILTER_LINES = PARTS * PAIRS * 16;              // of an element of the window
constexpr int PATCH_LINES = ROWS_IN * COLUMNS_IN, WEIGHT_LINES = TAPS * FILTER_LINES;
constexpr int STAGE_BYTES = (PATCH_LINES + WEIGHT_LINES) * LINE;
constexpr int VECTOR_TILES = VECTOR < 2 ? 1 : VECTOR / 2;     // columns of products that a lane's vector comes from
constexpr int ACROSS = TILE_COLUMNS / 16;
static_assert(TILE_ROWS * ACROSS * PARTS == WARPS * STACK && WARPS % (ACROSS * PARTS) == 0, "each warp has a part");
static_assert(TILES_N % VECTOR_TILES == 0 && BLOCK_FILTERS <= PARTS * TILES_N * 8);
static_assert(SHARED_WORDS * 4 == (STAGES < SLICES ? STAGES : SLICES) * STAGE_BYTES, "the plan counts as the kernel does");

DYNAMIC_SHARED(unsigned, shared_words, SHARED_WORDS);

// The pieces of 16 bytes of a line are exchanged by its number: of eight neighbours, from any one on, the same piece lies
// in different banks.
DEVICE constexpr int place(int line, int number, int piece) { return line * LINE + ((piece ^ number / 2 % 4) << 4); }

// The filter of a part that stands in column `column` of products `tile`.
DEVICE constexpr int filter_of(int tile, int column) {
  return tile / VECTOR_TILES * (8 * VECTOR_TILES) + column / 2 * (2 * VECTOR_TILES) + tile % VECTOR_TILES * 2 + column % 2;
}

// ---- a stage: what the tile's windows see of a slice of the channels, and the filters'

// PIECE bytes of channels that lie side by side in x and in shared memory, zeros unless `there`.
DEVICE void copy_piece(int to, const X* from, bool there) {
  if constexpr (PIECE >= 4)
    copy_beside<PIECE>(shared_address(shared_words) + to, from, there);
  else
    reinterpret_cast<typename Raw<sizeof(X)>::Word*>(shared_words)[to / 2] = there ? load_bits(from) : 0;
}

// A thread has the same channels of every line of a slice.
constexpr int PIECES = LINE / PIECE, LINES_AT_ONCE = THREADS / PIECES;

DEVICE void fill(const Pointers& pointers, const Place& at, int stage, int slice, const Parameters& p) {
  const int first = thread_index() / PIECES, byte = thread_index() % PIECES * PIECE;
  const int channel = slice * ELEMENTS + byte / int(sizeof(X));
  const bool counts = channel < X_CHANNELS;
  const Run<X> run = run_of(pointers, counts ? channel : 0);
  const int start = stage * STAGE_BYTES + byte % 16, top = (int)at.row - (int)p.top, left = (int)at.column - (int)p.left;
  _Pragma("unroll 1") for (int line = 0; line < PATCH_LINES; line += LINES_AT_ONCE) {
    const int pixel = first + line, y = pixel / COLUMNS_IN, x = pixel % COLUMNS_IN;
    if (PATCH_LINES % LINES_AT_ONCE != 0 && pixel >= PATCH_LINES) break;
    const bool there = counts && (unsigned)(top + y) < (unsigned)p.height && (unsigned)(left + x) < (unsigned)p.width;
    const Index number = (at.image * p.height + (Index)(top + y)) * p.width + (Index)(left + x);
    copy_piece(start + place(pixel, x, byte / 16), there ? run.from + number * run.step : run.from, there);
  }
  _Pragma("unroll 1") for (int line = 0; line < WEIGHT_LINES; line += LINES_AT_ONCE) {
    const int number = first + line, n = number % (PAIRS * 16), part = number / (PAIRS * 16) % PARTS;
    const int filter = part * (8 * TILES_N) + filter_of(n / 8, n % 8);
    if (WEIGHT_LINES % LINES_AT_ONCE != 0 && number >= WEIGHT_LINES) break;
    const bool there = counts && n < 8 * TILES_N && filter < BLOCK_FILTERS && at.channel + filter < FILTERS;
    const Index from = ((at.channel + filter) * TAPS + number / FILTER_LINES) * X_CHANNELS + channel;
    copy_piece(start + PATCH_LINES * LINE + place(number, n, byte / 16), there ? pointers.w + from : pointers.w, there);
  }
}

// ---- products

struct Sums {
  float of[STACK][TILES_N][4];
};
// What a warp computes: where it begins in the tile, and its part of the filters.
struct Share {
  int row, column, part;

  DEVICE Share() {
    const int warp = thread_index() / 32;
    part = warp % PARTS;
    column = warp / PARTS % ACROSS * 16;
    row = warp / (PARTS * ACROSS) * STACK;
  }
};

// Where a lane reads its rows of the factors, in bytes from a stage's start on: pixels by the column of the window's
// element, since the exchange of pieces follows columns.
struct Lane {
  int pixels[KERNEL_W], filters;

  DEVICE explicit Lane(const Share& mine) {
    const int lane = thread_index() % 32, x = mine.column + lane % 16, n = lane / 16 * 8 + lane % 8;
    UNROLLED for (int s = 0; s < KERNEL_W; ++s) pixels[s] = place(mine.row * COLUMNS_IN + x + s, x + s, lane / 16);
    filters = place(PATCH_LINES + mine.part * PAIRS * 16 + n, n, lane / 8 % 2);
  }
};

DEVICE void load_rounded(unsigned (&block)[4], SharedAddress from) {
  load_blocks<false>(block, from);
  if constexpr (sizeof(X) == 4) UNROLLED for (unsigned& word : block) word = round_to_tf32(word);
}

// STEPS times 32 bytes of the channels, at each element of the window.
template <int STEPS> DEVICE void multiply(Sums& sums, SharedAddress stage, const Lane& lane) {
  UNROLLED for (int number = 0; number < KERNEL_W * STEPS; ++number) {
    const int s = number / STEPS, step = number % STEPS * 32;
    unsigned filters[KERNEL_H][PAIRS][4];
    UNROLLED for (int r = 0; r < KERNEL_H; ++r)
      UNROLLED for (int j = 0; j < PAIRS; ++j)
        load_rounded(filters[r][j], stage + ((lane.filters ^ step) + ((r * KERNEL_W + s) * FILTER_LINES + j * 16) * LINE));
    UNROLLED for (int y = 0; y < STACK + KERNEL_H - 1; ++y) {
      unsigned pixels[4];
      load_rounded(pixels, stage + ((lane.pixels[s] ^ step) + y * COLUMNS_IN * LINE));
      UNROLLED for (int r = 0; r < KERNEL_H; ++r) {
        if (y < r || y - r >= STACK) continue;
        UNROLLED for (int tile = 0; tile < TILES_N; ++tile) {
          const unsigned(&b)[4] = filters[r][tile / 2];
          product(sums.of[y - r][tile], pixels, b[tile % 2 * 2], b[tile % 2 * 2 + 1], (X*)nullptr);
        }
      }
    }
  }
}

// The rest of the body, VECTOR neighbouring filters at a time.
DEVICE void finish(const Sums& sums, const Pointers& pointers, const Share& mine, const Place& at, const Parameters& p) {
  constexpr int SINGLES = VECTOR == 1 ? 2 : 1;  // vectors of a lane in VECTOR_TILES columns of products
  const int lane = thread_index() % 32;
  UNROLLED for (int tile = 0; tile < TILES_N; tile += VECTOR_TILES) {
    UNROLLED for (int single = 0; single < SINGLES; ++single) {
      const int filter = mine.part * (8 * TILES_N) + filter_of(tile, lane % 4 * 2 + single);
      if (filter >= BLOCK_FILTERS || at.channel + filter >= FILTERS) continue;
      Place here = at;
      here.channel += filter;
      const Once once = load_once(pointers, here, p);
      UNROLLED for (int i = 0; i < STACK; ++i) {
        UNROLLED for (int beside = 0; beside < 2; ++beside) {
          here.row = at.row + mine.row + i;
          here.column = at.column + mine.column + beside * 8 + lane / 4;
          if (here.row >= p.rows || here.column >= p.columns) continue;
          float sum[VECTOR];
          UNROLLED for (int e = 0; e < VECTOR; ++e) sum[e] = sums.of[i][tile + e / 2][beside * 2 + e % 2 + single];
          const Index linear = here.image * p.y_image + here.row * p.y_row + here.column * FILTERS + here.channel;
          store_all(pointers, sum, once, load_each<VECTOR>(pointers, here, linear, 0, p), linear, 0);
        }
      }
    }
  }
}

DEVICE void halo(const Pointers& pointers, const Parameters& p) {
  const Index number = p.across.quotient(block_index()), first = block_index() - number * p.across.value;
  const Index above = p.around.quotient(number), image = p.down.quotient(above);
  const Place at = {image, first * BLOCK_FILTERS, (above - image * p.down.value) * TILE_ROWS,
                    (number - above * p.around.value) * TILE_COLUMNS};
  _Pragma("unroll 1") for (int slice = 0; slice < STAGES - 1; ++slice) {
    if (slice < SLICES) fill(pointers, at, slice, slice, p);
    close_group_of_copies();
  }
  const Share mine;
  const Lane lane(mine);
  const SharedAddress stages = shared_address(shared_words);
  Sums sums = {};
  int here = 0, free = STAGES - 1;  // the stage that is multiplied; the one that nobody needs any more
  _Pragma("unroll 1") for (int slice = 0; slice < SLICES; ++slice) {
    wait_for_copies<STAGES - 2>();
    wait_for_block();
    if (slice + STAGES - 1 < SLICES) fill(pointers, at, free, slice + STAGES - 1, p);
    close_group_of_copies();
    if (REST == WHOLE || slice < SLICES - 1) multiply<WHOLE>(sums, stages + here * STAGE_BYTES, lane);
    else multiply<REST>(sums, stages + here * STAGE_BYTES, lane);
    here = here == STAGES - 1 ? 0 : here + 1;
    free = free == STAGES - 1 ? 0 : free + 1;
  }
  finish(sums, pointers, mine, at, p);
}
