// y[n, p, q, c] = body((1 - a) ((1 - b) x[n, i, j, c] + b x[n, i, j + 1, c]) + a (... x[n, i + 1, ...]), ...)
//
// Linear interpolation (ONNX, Resize, 2019) between the four pixels around p ROW_STEP + ROW_START = i + a, q
// COLUMN_STEP + COLUMN_START = j + b, both kept inside the image. x [N, H, W, C], outputs and operands alike. Accuracy:
// places in double, since a step of 1/3 in float is off by a pixel's 2^-16 after a thousand pixels; all else in float.
//
// A thread makes ROWS x COLUMNS pixels of CHANNELS neighbouring channels; what its neighbours read too comes from the L1
// cache.

// The pixels on both sides of a place along an axis, and the share of the second one.
struct Between {
  int first, second;
  float share;
};
DEVICE Between between(Index out, double step, double start, int size) {
  const double place = math::min(math::max((double)(int)out * step + start, 0.0), (double)(size - 1));
  const int first = (int)place;
  return {first, first + 1 < size ? first + 1 : first, (float)(place - first)};
}

DEVICE void depthwise(const Pointers& pointers, const Parameters& p) {
  const Place at = place(p);
  if (at.channel >= TOTAL_CHANNELS || at.row >= p.rows || at.column >= p.columns) return;
  const X* image = pointers.x + (at.image * p.x_image + at.channel * p.x_channel);
  Sums sums;
  UNROLLED for (int row = 0; row < ROWS; ++row) {
    const Between down = between(at.row + row, ROW_STEP, ROW_START, (int)p.height);
    UNROLLED for (int column = 0; column < COLUMNS; ++column) {
      const Between across = between(at.column + column, COLUMN_STEP, COLUMN_START, (int)p.width);
      const X *above = image + (Offset)down.first * (Offset)p.x_row,
              *below = image + (Offset)down.second * (Offset)p.x_row;
      const auto a = load<CHANNELS>(above + (Offset)across.first * X_COLUMN);
      const auto b = load<CHANNELS>(above + (Offset)across.second * X_COLUMN);
      const auto c = load<CHANNELS>(below + (Offset)across.first * X_COLUMN);
      const auto d = load<CHANNELS>(below + (Offset)across.second * X_COLUMN);
      UNROLLED for (int w = 0; w < CHANNELS; ++w) {
        const float high = (1.0f - across.share) * a.get(w) + across.share * b.get(w);
        const float low = (1.0f - across.share) * c.get(w) + across.share * d.get(w);
        sums.at(row, column, w) = (1.0f - down.share) * high + down.share * low;
      }
    }
  }
  finish(sums, pointers, at, p);
}
