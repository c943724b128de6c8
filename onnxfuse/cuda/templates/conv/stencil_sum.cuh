// The window of a depthwise convolution: the sum of what it sees, each element times its weight.

struct Window {
  Sum at[KERNEL_H][KERNEL_W][CHANNELS];
};

DEVICE Window load_window(const Pointers& pointers, Index channel) {
  const Weight* from = pointers.w;
  Window weights;
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

DEVICE Sums begin() { return {}; }

// Add what the patch has of row i of its input.
DEVICE void see(Sums& sums, const Window& weights, const Line& line, int i, bool row_inside, int left,
                const Parameters& p) {
  UNROLLED for (int j = 0; j < INPUT_COLUMNS; ++j)
    UNROLLED for (int c = 0; c < CHANNELS; ++c) {
      const Sum x = line.get(j, c);
      UNROLLED for (int row = 0; row < ROWS; ++row) {
        const int r = weight_at(i, row, STRIDE_H, DILATION_H, KERNEL_H);
        UNROLLED for (int column = 0; column < COLUMNS; ++column) {
          const int s = weight_at(j, column, STRIDE_W, DILATION_W, KERNEL_W);
          if (r >= 0 && s >= 0) sums.at(row, column, c) += x * weights.at[r][s][c];
        }
      }
    }
}

DEVICE void end(Sums& sums, const Place& at, const Parameters& p) {}
