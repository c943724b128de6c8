// The window of a depthwise convolution: the sum of what it sees, each element times its weight.
//
// DOTS: of 8-bit integers channels last, the products of a row of a window are one instruction. The pixels of a row hold
// four channels in a word each; permuted, four neighbours of one channel: of two pixels first, which two windows share.

constexpr bool DOTS =
    sizeof(X) == 1 && CHANNELS_LAST && CHANNELS % 4 == 0 && DILATION_W == 1 && KERNEL_W > 1 && KERNEL_W <= 4;

template <class T> constexpr bool IS_SIGNED = false;
template <> constexpr bool IS_SIGNED<signed char> = true;

struct Window {
  Sum at[DOTS ? 1 : KERNEL_H][DOTS ? 1 : KERNEL_W][CHANNELS];
  unsigned taps[DOTS ? KERNEL_H : 1][CHANNELS];  // of a row, in the bytes of a word
};

DEVICE Window load_window(const Pointers& pointers, Index channel) {
  const Weight* from = pointers.w;
  Window weights;
  if constexpr (DOTS) {
    UNROLLED for (int r = 0; r < KERNEL_H; ++r) {
      UNROLLED for (int c = 0; c < CHANNELS; ++c) weights.taps[r][c] = 0;
      UNROLLED for (int s = 0; s < KERNEL_W; ++s) {
        const Index tap = r * KERNEL_W + s;
        if constexpr (PACKED_WEIGHTS) {
          const auto pack = load<CHANNELS>(from + tap * TOTAL_CHANNELS + channel);
          UNROLLED for (int c = 0; c < CHANNELS; ++c) weights.taps[r][c] |= (unsigned)pack.bits(c) << 8 * s;
        } else {
          UNROLLED for (int c = 0; c < CHANNELS; ++c) weights.taps[r][c] |=
              (unsigned)load_bits(from + (channel + c) * (KERNEL_H * KERNEL_W) + tap) << 8 * s;
        }
      }
    }
    return weights;
  }
  UNROLLED for (int r = 0; r < KERNEL_H; ++r) UNROLLED for (int s = 0; s < KERNEL_W; ++s) {
    const Index tap = r * KERNEL_W + s;
    if constexpr (PACKED_WEIGHTS) {
      const auto pack = load<CHANNELS>(from + tap * TOTAL_CHANNELS + channel);
      UNROLLED for (int c = 0; c < CHANNELS; ++c) weights.at[r][s][c] = pack.get(c);
    } else {
      UNROLLED for (int c = 0; c < CHANNELS; ++c) weights.at[r][s][c] =
          load<1>(from + (channel + c) * (KERNEL_H * KERNEL_W) + tap).get(0);
    }
  }
  return weights;
}

DEVICE Sums begin() { return {}; }

// The same as `see`, by words.
DEVICE void see_dots(Sums& sums, const Window& weights, const Line& line, int i) {
  UNROLLED for (int quad = 0; quad < CHANNELS / 4; ++quad) {
    unsigned low[INPUT_COLUMNS], high[INPUT_COLUMNS];  // channels 0 and 1, 2 and 3, of a pixel and the next one
    UNROLLED for (int j = 0; j < INPUT_COLUMNS; ++j) {
      const unsigned here = line.vector[j].word(quad), next = j + 1 < INPUT_COLUMNS ? line.vector[j + 1].word(quad) : 0;
      low[j] = select_bytes(here, next, 0x5140);
      high[j] = select_bytes(here, next, 0x7362);
    }
    UNROLLED for (int column = 0; column < COLUMNS; ++column) {
      constexpr int LAST = INPUT_COLUMNS - 1;
      const int first = column * STRIDE_W, second = first + 2 < LAST ? first + 2 : LAST;
      const unsigned seen[4] = {
          select_bytes(low[first], low[second], 0x5410), select_bytes(low[first], low[second], 0x7632),
          select_bytes(high[first], high[second], 0x5410), select_bytes(high[first], high[second], 0x7632)};
      UNROLLED for (int row = 0; row < ROWS; ++row) {
        const int r = weight_at(i, row, STRIDE_H, DILATION_H, KERNEL_H);
        if (r >= 0) UNROLLED for (int c = 0; c < 4; ++c) {
            Sum& sum = sums.at(row, column, quad * 4 + c);
            sum = add_products_of_bytes<IS_SIGNED<X>, IS_SIGNED<Weight>>(seen[c], weights.taps[r][quad * 4 + c], sum);
          }
      }
    }
  }
}

// Add what the patch has of row i of its input.
DEVICE void see(Sums& sums, const Window& weights, const Line& line, int i, bool row_inside, int left,
                const Parameters& p) {
  if constexpr (DOTS) {
    see_dots(sums, weights, line, i);
    return;
  }
  UNROLLED for (int j = 0; j < INPUT_COLUMNS; ++j) UNROLLED for (int c = 0; c < CHANNELS; ++c) {
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
