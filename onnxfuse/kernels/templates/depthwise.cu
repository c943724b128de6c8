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
  const Window window = load_window(pointers, at.channel);
  const X* image = pointers.x + (at.image * p.x_image + at.channel * p.x_channel);
  const int top = (int)at.row * STRIDE_H - (int)p.top, left = (int)at.column * STRIDE_W - (int)p.left;
  Sums sums = begin();
  UNROLLED for (int i = 0; i < INPUT_ROWS; ++i) {
    const bool inside = (unsigned)(top + i) < (unsigned)p.height;
    see(sums, window, load_line(image + (Offset)(top + i) * (Offset)p.x_row, inside, left, p), i, inside, left, p);
  }
  end(sums, at, p);
  finish(sums, pointers, at, p);
}
