// y[n, p, q, c] = body(sum over r, s of x[n, p stride + r dilation - pad, q stride + s dilation - pad, c] w[r, s, c],
//                      ...)
//
// Depthwise convolution (Chollet, Xception, 2017): each channel with its own small kernel. x [N, H, W, C]
// (CHANNELS_LAST) or [N, C, H, W], outputs and operands alike; w [R, S, C] (PACKED_WEIGHTS) or [C, R, S]. Accuracy:
// products and sums in float, r by r, s by s.
//
// A thread computes ROWS x COLUMNS outputs of CHANNELS neighbouring channels. It goes once over the input rows that
// these need and multiplies each element, still in registers, with every weight that it meets; what neighbouring
// threads read too comes from the L1 cache, since a block is a compact patch of the image. The weights stay in
// registers.
//
// All is unrolled, so the program is long: a second path for threads that read no padding, without tests for it, takes
// 144 x 56 x 56, 3 x 3, batch 32, float16 from 24.2 us to 27.0, and 96 x 56 x 56, 7 x 7 from 38.1 to 68.0 (H200,
// 2026-11); instructions come from the cache too slowly.

DEVICE void convolve(Sums& sums, const Pointers& pointers, const Place& at, const Parameters& p) {
  const Window window = load_window(pointers, at.channel);
  const X* image = pointers.x + (at.image * p.x_image + at.channel * p.x_channel);
  const int top = (int)at.row * STRIDE_H - (int)p.top, left = (int)at.column * STRIDE_W - (int)p.left;
  sums = begin();
  UNROLLED for (int i = 0; i < INPUT_ROWS; ++i) {
    const bool inside = (unsigned)(top + i) < (unsigned)p.height;
    see(sums, window, load_line(image + (Offset)(top + i) * (Offset)p.x_row, inside, left, p), i, inside, left, p);
  }
  end(sums, at, p);
  finish(sums, pointers, at, p);
}

DEVICE void depthwise(const Pointers& pointers, const Parameters& p) {
  const Place at = place(p);
  if (at.channel >= TOTAL_CHANNELS || at.row >= p.rows || at.column >= p.columns) return;
  Sums sums;
  convolve(sums, pointers, at, p);
}
