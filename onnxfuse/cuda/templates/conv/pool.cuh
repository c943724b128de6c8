// The window of a pooling: the greatest element that it sees, NaN where it sees one, or the mean. x [N, H, W, C].
//
// Accuracy: the greatest element is exact; a mean is summed in float, r by r, s by s, and divided once.

struct Window {};
DEVICE Window load_window(const Pointers&, Index) { return {}; }

// What a window makes of no element at all.
template <class T> struct Nothing {
  static DEVICE float of_it() { return MEAN ? 0.0f : float_of_bits(0xff800000u); }
};
template <> struct Nothing<signed char> {
  static DEVICE int of_it() { return -128; }
};
template <> struct Nothing<unsigned char> {
  static DEVICE int of_it() { return 0; }
};
DEVICE Sum nothing() { return Nothing<X>::of_it(); }

DEVICE Sums begin() {
  Sums sums;
  UNROLLED for (int row = 0; row < ROWS; ++row) UNROLLED for (int column = 0; column < COLUMNS; ++column)
      UNROLLED for (int c = 0; c < CHANNELS; ++c) sums.at(row, column, c) = nothing();
  return sums;
}

// Take in what the patch has of row i of its input; padding is nothing.
DEVICE void see(Sums& sums, const Window&, const Line& line, int i, bool row_inside, int left, const Parameters& p) {
  UNROLLED for (int j = 0; j < INPUT_COLUMNS; ++j) {
    const bool inside = row_inside && (unsigned)(left + j) < (unsigned)p.width;
    UNROLLED for (int c = 0; c < CHANNELS; ++c) {
      const Sum x = inside ? line.get(j, c) : nothing();
      UNROLLED for (int row = 0; row < ROWS; ++row)
          UNROLLED for (int column = 0; column < COLUMNS;
                        ++column) if (weight_at(i, row, STRIDE_H, DILATION_H, KERNEL_H) >= 0 &&
                                      weight_at(j, column, STRIDE_W, DILATION_W, KERNEL_W) >= 0) {
        Sum& sum = sums.at(row, column, c);
        sum = MEAN ? sum + x : math::max(sum, x);
      }
    }
  }
}

// Elements of a window that begins at `first` which lie inside an image of this size, or in padding that counts.
DEVICE int inside_along(int first, int kernel, int dilation, int size) {
  int count = 0;
  for (int k = 0; k < kernel; ++k) count += (unsigned)(first + k * dilation) < (unsigned)size;
  return count;
}

DEVICE void end(Sums& sums, const Place& at, const Parameters& p) {
  if constexpr (MEAN)
    UNROLLED for (int row = 0; row < ROWS; ++row) UNROLLED for (int column = 0; column < COLUMNS; ++column) {
      const int top = ((int)at.row + row) * STRIDE_H - (int)p.top;
      const int left = ((int)at.column + column) * STRIDE_W - (int)p.left;
      const int count = PADDED ? KERNEL_H * KERNEL_W
                               : inside_along(top + ABOVE, KERNEL_H, DILATION_H, (int)p.height + ABOVE + BELOW) *
                                     inside_along(left + LEFT, KERNEL_W, DILATION_W, (int)p.width + LEFT + RIGHT);
      UNROLLED for (int c = 0; c < CHANNELS; ++c) sums.at(row, column, c) /= (float)count;
    }
}
