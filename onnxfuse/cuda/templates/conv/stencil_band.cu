// The formula of stencil.cu on the tensor cores: 16-bit types, images channels last.
//
// Along a row, eight neighbouring outputs of a channel are a product: what they read of x, SPAN neighbours, by a banded
// matrix of SPAN x 8, the weights of that row of the kernel on its diagonals. Sixteen such strips at once are one
// mma.m16n8k16 (or SPAN / 16 of them) for each row of the kernel. It multiplies with many zeros, yet takes a quarter of
// the instructions: 7 x 7 is 49 multiply-adds and 17 other instructions per output without it. Accuracy: exact
// products, sums in float. A zero times an infinity of x would make NaN of outputs up to seven columns beside those that
// read it: sums that are no numbers are computed again, without the zeros.
//
// A block goes through tiles of TILE_ROWS x TILE_COLUMNS outputs of BLOCK_CHANNELS channels. It turns the tile of x
// around, so that each channel is an image of its own in shared memory. A warp takes BLOCK_CHANNELS / WARPS of them: a
// strip is ROWS outputs high; the lanes go down the rows of x, and each one that they hold meets all the weights that
// it is for. The sums take the image's place, and all threads go over them pixel by pixel for the rest of the body.

constexpr int WARPS = THREADS / 32, GROUPS = BLOCK_CHANNELS / 8;
constexpr int FILLS = 4;  // pairs of pixels that a thread reads at a time
constexpr int SPAN = (7 * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1 + 15) / 16 * 16;
constexpr int TILE_ROWS = SEGMENTS * ROWS, TILE_COLUMNS = STRIPS * 8;
constexpr int STRIP_ROWS = (ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1;
constexpr int INPUT_ROWS = (TILE_ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1;
constexpr int PITCH = (TILE_COLUMNS - 8) * STRIDE_W + SPAN;
constexpr int PAIRS = PITCH / 2;                     // words of a row
constexpr int BAND = (7 * STRIDE_W + SPAN) / 2 + 1;  // words that hold a row of the kernel between zeros
// Words. 2 more than a multiple of 4: eight channels on, a lane meets the other half of the banks.
constexpr int INPUT_WORDS = INPUT_ROWS * PAIRS, SUM_WORDS = TILE_ROWS * TILE_COLUMNS;
constexpr int PLANE = ((INPUT_WORDS > SUM_WORDS ? INPUT_WORDS : SUM_WORDS) + 3) / 4 * 4 + 2;
static_assert(SHARED_WORDS == BLOCK_CHANNELS * (PLANE + KERNEL_H * 2 * BAND), "the plan counts as the kernel does");

DYNAMIC_SHARED(unsigned, shared_words, SHARED_WORDS);

// A tile: its image, its first channel, row and column.
DEVICE Place tile_place(Index number, Index channel, const Parameters& p) {
  const Index above = p.around.quotient(number), image = p.down.quotient(above);
  return {image, channel, (above - image * p.down.value) * TILE_ROWS, (number - above * p.around.value) * TILE_COLUMNS};
}

// Element `e` of a row of the kernel between zeros: dilated, after 7 STRIDE_W zeros.
DEVICE unsigned weight_bits(const X* from, Index channel, int r, int e) {
  const int distance = e - 7 * STRIDE_W, s = distance / DILATION_W;
  if (distance < 0 || distance % DILATION_W || s >= KERNEL_W || channel >= TOTAL_CHANNELS) return 0;
  const Index tap = r * KERNEL_W + s;
  return load_bits(from + (PACKED_WEIGHTS ? tap * TOTAL_CHANNELS + channel : channel * (KERNEL_H * KERNEL_W) + tap));
}

// Each row twice, from its element 0 and from 1: any two neighbours are a word of one of them.
DEVICE void fill_bands(unsigned* bands, const X* from, Index channel) {
  for (int n = thread_index(); n < BLOCK_CHANNELS * KERNEL_H * 2 * BAND; n += THREADS) {
    const int e = n % BAND * 2 + n / BAND % 2, r = n / (2 * BAND) % KERNEL_H;
    const Index mine = channel + n / (2 * BAND * KERNEL_H);
    bands[n] = weight_bits(from, mine, r, e) | weight_bits(from, mine, r, e + 1) << 16;
  }
}

// Two neighbouring pixels of eight channels, as a word for each channel.
DEVICE void put_pair(unsigned* word, const Pack<X, 8>& first, const Pack<X, 8>& second) {
  UNROLLED for (int c = 0; c < 8; ++c) {
    const unsigned a = first.word(c / 2), b = second.word(c / 2);
    word[c * PLANE] = c % 2 ? a >> 16 | (b & 0xffff0000u) : (a & 0xffffu) | b << 16;
  }
}

DEVICE void fill_planes(unsigned* planes, const X* x, const Place& at, const Parameters& p) {
  const int top = (int)at.row * STRIDE_H - (int)p.top, left = (int)at.column * STRIDE_W - (int)p.left;
  const X* image = x + (at.image * p.x_image + at.channel);
  const int group = thread_index() % GROUPS;
  const bool mine = at.channel + group * 8 < TOTAL_CHANNELS;
  for (int start = thread_index() / GROUPS; start < INPUT_WORDS; start += FILLS * THREADS / GROUPS) {
    // All that is read, before anything is written: so many loads are in flight.
    Pack<X, 8> first[FILLS] = {}, second[FILLS] = {};
    UNROLLED for (int turn = 0; turn < FILLS; ++turn) {
      const int n = start + turn * (THREADS / GROUPS), row = top + n / PAIRS, column = left + n % PAIRS * 2;
      const bool inside = mine && n < INPUT_WORDS && (unsigned)row < (unsigned)p.height;
      const X* pixel = image + ((Offset)row * (Offset)p.x_row + (Offset)column * TOTAL_CHANNELS + group * 8);
      if (inside && (unsigned)column < (unsigned)p.width) first[turn] = load<8>(pixel);
      if (inside && (unsigned)(column + 1) < (unsigned)p.width) second[turn] = load<8>(pixel + TOTAL_CHANNELS);
    }
    UNROLLED for (int turn = 0; turn < FILLS; ++turn) {
      const int n = start + turn * (THREADS / GROUPS);
      if (n < INPUT_WORDS) put_pair(planes + group * 8 * PLANE + n, first[turn], second[turn]);
    }
  }
}

// The output row of a strip that row `i` of x is for by row `r` of the kernel, -1 where there is none.
DEVICE constexpr int output_row(int i, int r) {
  const int distance = i - r * DILATION_H;
  return distance >= 0 && distance % STRIDE_H == 0 && distance / STRIDE_H < ROWS ? distance / STRIDE_H : -1;
}

// The sum of an output, term by term: of the strip's column `column` and row `row`; `from`: its first element of x.
DEVICE float sum_plainly(const unsigned* from, const unsigned* bands, int row, int column) {
  float sum = 0.0f;
  for (int r = 0; r < KERNEL_H; ++r)
    for (int s = 0; s < KERNEL_W; ++s) {
      const int at = column * STRIDE_W + s * DILATION_W, e = 7 * STRIDE_W + s * DILATION_W;
      const unsigned x = from[(row * STRIDE_H + r * DILATION_H) * PAIRS + at / 2] >> at % 2 * 16;
      const unsigned w = bands[r * 2 * BAND + e / 2] >> e % 2 * 16;
      sum += decode((unsigned short)x, (X*)nullptr) * decode((unsigned short)w, (X*)nullptr);
    }
  return sum;
}

// The sums of a channel, in place of its image. A lane holds rows of two strips: `lane / 4` and eight after it.
DEVICE void convolve(unsigned* plane, const unsigned* bands) {
  const int lane = thread_index() % 32, pair = lane % 4, column = 7 - lane / 4;
  int segment[2], strip[2];
  const unsigned* from[2];
  UNROLLED for (int half = 0; half < 2; ++half) {
    const int number = lane / 4 + half * 8;
    segment[half] = number / STRIPS;
    strip[half] = number % STRIPS;
    const int there = segment[half] * ROWS * STRIDE_H * PAIRS + strip[half] * 4 * STRIDE_W;
    from[half] = plane + (segment[half] < SEGMENTS ? there : 0) + pair;
  }
  unsigned band[KERNEL_H][SPAN / 16][2];
  const int shift = column * STRIDE_W;
  UNROLLED for (int r = 0; r < KERNEL_H; ++r) UNROLLED for (int step = 0; step < SPAN / 16; ++step)
      UNROLLED for (int half = 0; half < 2; ++half) band[r][step][half] =
          bands[(r * 2 + shift % 2) * BAND + step * 8 + half * 4 + pair + shift / 2];
  float sum[ROWS][4] = {};
  UNROLLED for (int i = 0; i < STRIP_ROWS; ++i) UNROLLED for (int step = 0; step < SPAN / 16; ++step) {
    unsigned a[4];
    UNROLLED for (int part = 0; part < 4; ++part) a[part] = from[part % 2][i * PAIRS + step * 8 + part / 2 * 4];
    UNROLLED for (int r = 0; r < KERNEL_H; ++r) {
      const int row = output_row(i, r);
      if (row >= 0) mma(sum[row >= 0 ? row : 0], a, band[r][step][0], band[r][step][1], (X*)nullptr);
    }
  }
  float probe = 0.0f;  // NaN where a sum is NaN or infinite
  UNROLLED for (int row = 0; row < ROWS; ++row) UNROLLED for (int i = 0; i < 4; ++i) probe += sum[row][i] * 0.0f;
  if (probe != probe) {
    UNROLLED for (int row = 0; row < ROWS; ++row) UNROLLED for (int i = 0; i < 4; ++i) if (sum[row][i] != sum[row][i])
        sum[row][i] = sum_plainly(from[i / 2] - pair, bands, row, pair * 2 + i % 2);
  }
  wait_for_warp();
  UNROLLED for (int half = 0; half < 2; ++half) if (segment[half] < SEGMENTS)
      UNROLLED for (int row = 0; row < ROWS; ++row) {
    unsigned* to = plane + (segment[half] * ROWS + row) * TILE_COLUMNS + strip[half] * 8 + pair * 2;
    *reinterpret_cast<Chunk<8>*>(to) = {bits_of_float(sum[row][half * 2]), bits_of_float(sum[row][half * 2 + 1])};
  }
}

// The rest of the body, a vector of eight channels at a time.
DEVICE void finish(const unsigned* planes, const Pointers& pointers, const Place& at, const Parameters& p) {
  const int group = thread_index() % GROUPS;
  const Index channel = at.channel + group * 8;
  if (channel >= TOTAL_CHANNELS) return;
  const Once once = load_once(pointers, {at.image, channel, at.row, at.column}, p);
  for (int pixel = thread_index() / GROUPS; pixel < SUM_WORDS; pixel += THREADS / GROUPS) {
    const Place here = {at.image, channel, at.row + pixel / TILE_COLUMNS, at.column + pixel % TILE_COLUMNS};
    if (here.row < p.rows && here.column < p.columns) {
      float sum[8];
      UNROLLED for (int c = 0; c < 8; ++c) sum[c] = float_of_bits(planes[(group * 8 + c) * PLANE + pixel]);
      const Index linear = here.image * p.y_image + here.row * p.y_row + here.column * TOTAL_CHANNELS + channel;
      store_all(pointers, sum, once, load_each<8>(pointers, here, linear, 0, p), linear, 0);
    }
  }
}

DEVICE void depthwise(const Pointers& pointers, const Parameters& p) {
  unsigned *planes = shared_words, *bands = shared_words + BLOCK_CHANNELS * PLANE;
  const Index workers = p.across.quotient(last_block() + 1), worker = p.across.quotient(block_index());
  const Index channel = (block_index() - worker * p.across.value) * BLOCK_CHANNELS;
  const Index tiles = p.images * p.down.value * p.around.value;
  fill_bands(bands, pointers.w, channel);
  for (Index tile = worker; tile < tiles; tile += workers) {
    const Place at = tile_place(tiles - 1 - tile, channel, p);  // from the end: see block_from_end
    fill_planes(planes, pointers.x, at, p);
    wait_for_block();
    for (int c = thread_index() / 32; c < BLOCK_CHANNELS; c += WARPS)
      convolve(planes + c * PLANE, bands + c * (KERNEL_H * 2 * BAND));
    wait_for_block();
    finish(planes, pointers, at, p);
    wait_for_block();
  }
}
