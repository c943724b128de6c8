// y[n, p, q, c] = body(sum over r, s of x[n, p stride + r dilation - pad, q stride + s dilation - pad, c] w[r, s, c],
//                      ...)
//
// Depthwise convolution: each channel with its own small kernel. x [N, H, W, C] (CHANNELS_LAST) or [N, C, H, W], outputs
// and operands alike; w [R, S, C] (PACKED_WEIGHTS) or [C, R, S]. Accuracy: products and sums in float, r by r, s by s.
//
// A thread computes ROWS x COLUMNS outputs of CHANNELS neighbouring channels. It goes once over the input rows that
// these need and multiplies each element, still in registers, with every weight that it meets; what neighbouring
// threads read too comes from the L1 cache, since a block is a compact patch of the image. The weights stay in
// registers.
//
// All is unrolled, so the program is long: a second path for threads that read no padding, without tests for it, takes
// 144 x 56 x 56, 3 x 3, batch 32, float16 from 24.2 us to 27.0, and 96 x 56 x 56, 7 x 7 from 38.1 to 68.0 (H200,
// 2026-11); instructions come from the cache too slowly.

constexpr int INPUT_ROWS = (ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1;
constexpr int INPUT_COLUMNS = (COLUMNS - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1;
constexpr int READS = CHANNELS_LAST ? INPUT_COLUMNS : (SHIFT + INPUT_COLUMNS + READ - 1) / READ;
constexpr int VECTORS = CHANNELS_LAST ? COLUMNS : 1, LANES = CHANNELS_LAST ? CHANNELS : COLUMNS;

// The innermost dimension of memory is the block's innermost, too, so that the threads of a warp read neighbours.
DEVICE Place place(const Parameters& p) {
  const int thread = thread_index();
  const int inner = thread % (CHANNELS_LAST ? BLOCK_CHANNELS : BLOCK_COLUMNS);
  const int rest = thread / (CHANNELS_LAST ? BLOCK_CHANNELS : BLOCK_COLUMNS);
  const int middle = rest % (CHANNELS_LAST ? BLOCK_COLUMNS : BLOCK_ROWS);
  const int outer = rest / (CHANNELS_LAST ? BLOCK_COLUMNS : BLOCK_ROWS);
  const Index block = block_index(), above = p.across.quotient(block), further = p.around.quotient(above);
  const Index image = p.down.quotient(further);
  const Index channels = (block - above * p.across.value) * BLOCK_CHANNELS + (CHANNELS_LAST ? inner : outer);
  const Index columns = (above - further * p.around.value) * BLOCK_COLUMNS + (CHANNELS_LAST ? middle : inner);
  const Index rows = (further - image * p.down.value) * BLOCK_ROWS + (CHANNELS_LAST ? outer : middle);
  return {image, channels * CHANNELS, rows * ROWS, columns * COLUMNS};
}

struct Weights {
  float at[KERNEL_H][KERNEL_W][CHANNELS];
};

DEVICE Weights load_weights(const X* from, Index channel) {
  Weights weights;
  UNROLLED for (int r = 0; r < KERNEL_H; ++r)
    UNROLLED for (int s = 0; s < KERNEL_W; ++s) {
      const Index tap = r * KERNEL_W + s;
      if constexpr (PACKED_WEIGHTS) {
        const auto pack = load<CHANNELS>(from + tap * TOTAL_CHANNELS + channel);
        UNROLLED for (int c = 0; c < CHANNELS; ++c) weights.at[r][s][c] = pack.get(c);
      } else {
        UNROLLED for (int c = 0; c < CHANNELS; ++c)
          weights.at[r][s][c] = load<1>(from + (channel + c) * (KERNEL_H * KERNEL_W) + tap).get(0);
      }
    }
  return weights;
}

struct Sums {
  float of[ROWS][VECTORS][LANES];
  DEVICE float& at(int row, int column, int channel) {
    if constexpr (CHANNELS_LAST) return of[row][column][channel];
    else return of[row][0][column];
  }
};

// The tap that output `place` puts on input `position`, -1 where it puts none; known at compile time.
DEVICE constexpr int weight_at(int position, int place, int stride, int dilation, int size) {
  const int distance = position - place * stride;
  return distance >= 0 && distance % dilation == 0 && distance / dilation < size ? distance / dilation : -1;
}

// What a thread needs of a row of x: READS vectors, of channels, or of columns from SHIFT before the first one needed.
struct Line {
  Pack<X, READ> vector[READS];
  DEVICE float get(int column, int channel) const {
    if constexpr (CHANNELS_LAST) return vector[column].get(channel);
    else return vector[(SHIFT + column) / READ].get((SHIFT + column) % READ);
  }
};

DEVICE Line load_line(const X* row, bool row_inside, int left, const Parameters& p) {
  Line line = {};
  UNROLLED for (int v = 0; v < READS; ++v) {
    const int column = left - SHIFT + v * (CHANNELS_LAST ? 1 : READ);
    if (row_inside && (unsigned)column < (unsigned)p.width)
      line.vector[v] = load<READ>(row + (Offset)column * X_COLUMN);
  }
  return line;
}

DEVICE void multiply(Sums& sums, const Weights& weights, const Line& line, int i) {
  UNROLLED for (int j = 0; j < INPUT_COLUMNS; ++j)
    UNROLLED for (int c = 0; c < CHANNELS; ++c) {
      const float x = line.get(j, c);
      UNROLLED for (int row = 0; row < ROWS; ++row) {
        const int r = weight_at(i, row, STRIDE_H, DILATION_H, KERNEL_H);
        UNROLLED for (int column = 0; column < COLUMNS; ++column) {
          const int s = weight_at(j, column, STRIDE_W, DILATION_W, KERNEL_W);
          if (r >= 0 && s >= 0) sums.at(row, column, c) += x * weights.at[r][s][c];
        }
      }
    }
}

// The thread's outputs, a vector at a time: the channels of one output, or the columns of one row.
DEVICE void finish_vectors(Sums& sums, const Once& once, const Pointers& pointers, const Place& at, Index first,
                           const Parameters& p) {
  Each<LANES> each[ROWS][VECTORS];
  UNROLLED for (int row = 0; row < ROWS; ++row)
    UNROLLED for (int v = 0; v < VECTORS; ++v)
      if (at.row + row < p.rows && at.column + v < p.columns)
        each[row][v] = load_each<LANES>(pointers, {at.image, at.channel, at.row + row, at.column + v},
                                        first + row * p.y_row, v * X_COLUMN, p);
  UNROLLED for (int row = 0; row < ROWS; ++row)
    UNROLLED for (int v = 0; v < VECTORS; ++v)
      if (at.row + row < p.rows && at.column + v < p.columns)
        store_all(pointers, sums.of[row][v], once, each[row][v], first + row * p.y_row, v * X_COLUMN);
}

// The same, one by one: rows of the image that no vector divides.
DEVICE void finish_singly(Sums& sums, const Once& once, const Pointers& pointers, const Place& at, Index first,
                          const Parameters& p) {
  UNROLLED for (int row = 0; row < ROWS; ++row)
    UNROLLED for (int column = 0; column < COLUMNS; ++column)
      if (at.row + row < p.rows && at.column + column < p.columns) {
        const Index here = first + row * p.y_row;
        const float sum[1] = {sums.at(row, column, 0)};
        const Place place = {at.image, at.channel, at.row + row, at.column + column};
        store_all(pointers, sum, once, load_each<1>(pointers, place, here, column, p), here, column);
      }
}

DEVICE void finish(Sums& sums, const Pointers& pointers, const Place& at, const Parameters& p) {
  const Index first = at.image * p.y_image + at.channel * p.y_channel + at.row * p.y_row + at.column * X_COLUMN;
  const Once once = load_once(pointers, at, p);
  if constexpr (CHANNELS_LAST || WHOLE_ROWS) finish_vectors(sums, once, pointers, at, first, p);
  else finish_singly(sums, once, pointers, at, first, p);
}

DEVICE void depthwise(const Pointers& pointers, const Parameters& p) {
  const Place at = place(p);
  if (at.channel >= TOTAL_CHANNELS || at.row >= p.rows || at.column >= p.columns) return;
  const Weights weights = load_weights(pointers.w, at.channel);
  const X* image = pointers.x + (at.image * p.x_image + at.channel * p.x_channel);
  const int top = (int)at.row * STRIDE_H - (int)p.top, left = (int)at.column * STRIDE_W - (int)p.left;
  Sums sums = {};
  UNROLLED for (int i = 0; i < INPUT_ROWS; ++i) {
    const bool inside = (unsigned)(top + i) < (unsigned)p.height;
    multiply(sums, weights, load_line(image + (Offset)(top + i) * (Offset)p.x_row, inside, left, p), i);
  }
  finish(sums, pointers, at, p);
}
