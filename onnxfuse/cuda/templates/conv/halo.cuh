// What the kernel of halo.cu multiplies: slices of pixels and filters in shared memory, and how they are fetched.

constexpr int WARPS = THREADS / 32, TAPS = KERNEL_H * KERNEL_W;
constexpr int LINE = 64;  // bytes of a pixel, or of an element of a filter, in a stage
constexpr int ELEMENTS = LINE / int(sizeof(X));
constexpr int TERMS = 32 / int(sizeof(X));  // of a product
constexpr int SLICES = (X_CHANNELS + ELEMENTS - 1) / ELEMENTS;
constexpr int WHOLE = LINE / 32,
              REST = (X_CHANNELS - (SLICES - 1) * ELEMENTS + TERMS - 1) / TERMS;  // products of a slice
constexpr int ROWS_IN = TILE_ROWS + KERNEL_H - 1;
constexpr int COLUMNS_IN = (TILE_COLUMNS + KERNEL_W) / 2 * 2;  // even, so that rows begin on the same banks
constexpr int PAIRS = (TILES_N + 1) / 2;          // of columns of products, whose filters are loaded at once
constexpr int FILTER_LINES = PARTS * PAIRS * 16;  // of an element of the window
constexpr int PATCH_LINES = ROWS_IN * COLUMNS_IN, WEIGHT_LINES = TAPS * FILTER_LINES;
constexpr int STAGE_BYTES = ((PATCH_LINES + WEIGHT_LINES) * LINE + 511) / 512 * 512;  // filters, pixels
constexpr int VECTOR_TILES = VECTOR < 2 ? 1 : VECTOR / 2;  // columns of products that a lane's vector comes from
constexpr int ACROSS = TILE_COLUMNS / 16;
static_assert(TILE_ROWS * ACROSS * PARTS == WARPS * STACK && WARPS % (ACROSS * PARTS) == 0, "each warp has a part");
static_assert(TILES_N % VECTOR_TILES == 0 && BLOCK_FILTERS <= PARTS * TILES_N * 8);
static_assert(SHARED_WORDS * 4 == (STAGES < SLICES ? STAGES : SLICES) * STAGE_BYTES,
              "the plan counts as the kernel does");

// wgmma takes filters to be swizzled by their addresses.
DYNAMIC_SHARED_AT(1024, unsigned, shared_words, SHARED_WORDS);

// Where a piece of 16 bytes of a line lies. Lines are swizzled by a number of their own: of eight neighbours, from any one
// on, the same piece lies in different banks.
DEVICE constexpr int place(int line, int number, int piece) {
  return line * LINE + swizzled_piece<LINE>(number, piece);
}

// The filter of a part that stands in column `column` of products `tile`.
DEVICE constexpr int filter_of(int tile, int column) {
  return tile / VECTOR_TILES * (8 * VECTOR_TILES) + column / 2 * (2 * VECTOR_TILES) + tile % VECTOR_TILES * 2 +
         column % 2;
}

// ---- a stage: what the tile's windows see of a slice of the channels, and the filters'

// PIECE bytes of channels that lie side by side in x and in shared memory, zeros unless `there`.
DEVICE void copy_piece(int to, const X* from, bool there) {
  if constexpr (PIECE >= 4) copy_async<PIECE>(shared_address(shared_words) + to, from, there);
  else reinterpret_cast<typename Raw<sizeof(X)>::Word*>(shared_words)[to / 2] = there ? load_bits(from) : 0;
}

// A thread has the same channels of every line of a slice. Where one lies takes many instructions that wait for each other:
// FILLS lines are filled side by side.
constexpr int PIECES = LINE / PIECE, LINES_AT_ONCE = THREADS / PIECES;
template <int LINES, class Fill> DEVICE void fill_lines(const Fill& fill) {
  const int first = thread_index() / PIECES;
  constexpr int WHOLE = LINES / LINES_AT_ONCE * LINES_AT_ONCE;
  _Pragma("unroll FILLS") for (int line = 0; line < WHOLE; line += LINES_AT_ONCE) fill(first + line);
  if (WHOLE < LINES && first + WHOLE < LINES) fill(first + WHOLE);
}

DEVICE void fill(const Pointers& pointers, const Place& at, int stage, int slice, const Parameters& p) {
  const int byte = thread_index() % PIECES * PIECE;
  const int channel = slice * ELEMENTS + byte / int(sizeof(X));
  const bool counts = channel < X_CHANNELS;
  const Run<X> run = run_of(pointers, counts ? channel : 0);
  const int start = stage * STAGE_BYTES + byte % 16, top = (int)at.row - (int)p.top,
            left = (int)at.column - (int)p.left;
  fill_lines<PATCH_LINES>([&](int pixel) {
    const int y = pixel / COLUMNS_IN, x = pixel % COLUMNS_IN;
    const bool there = counts && (unsigned)(top + y) < (unsigned)p.height && (unsigned)(left + x) < (unsigned)p.width;
    const Index number = (at.image * p.height + (Index)(top + y)) * p.width + (Index)(left + x);
    copy_piece(start + WEIGHT_LINES * LINE + place(pixel, x, byte / 16),
               there ? run.from + number * run.step : run.from, there);
  });
  fill_lines<WEIGHT_LINES>([&](int number) {
    const int n = number % (PAIRS * 16), part = number / (PAIRS * 16) % PARTS;
    const int filter = part * (8 * TILES_N) + filter_of(n / 8, n % 8);
    const bool there = counts && n < 8 * TILES_N && filter < BLOCK_FILTERS && at.channel + filter < FILTERS;
    const Index from = ((at.channel + filter) * TAPS + number / FILTER_LINES) * X_CHANNELS + channel;
    copy_piece(start + place(number, n, byte / 16), there ? pointers.w + from : pointers.w, there);
  });
}

// ---- what a warp computes

struct Sums { float of[STACK][TILES_N][4]; };
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
