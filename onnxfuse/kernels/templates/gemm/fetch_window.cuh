// Fetches the terms of a tile, TILE_K channels of one element of the window at a time. B is [n, elements, channels].
//
// Of a group of channels no more than STEP_K are multiplied: what is fetched beside them may be the next group's.

constexpr int STEP_K = TILE_K / 4 * SLICES;

struct Terms {
  const Source& source;
  Index group;
  int x, y, image;             // of the window's first element, for the tile's first row
  Index channel, right, below, element;

  DEVICE Terms(Index row, Index step, const Matrices& of, const Source& s) : source(s), group(of.a) {
    const Index each = (s.channels + (STEP_K - 1)) / STEP_K;
    element = step / each;
    channel = (step - element * each) * STEP_K;
    below = element / s.window_width;
    right = element - below * s.window_width;
    const Index line = row / s.across;
    image = line / s.down;
    x = (int)((row - line * s.across) * s.stride_across) - (int)s.pad_left;
    y = (int)((line - image * s.down) * s.stride_down) - (int)s.pad_above;
  }
  DEVICE void next() {
    channel += STEP_K;
    if (channel < source.channels) return;
    channel = 0;
    ++element;
    if (++right == source.window_width) {
      right = 0;
      ++below;
    }
  }
  DEVICE void fetch_left(unsigned to, const TensorMap* map, unsigned barrier) const {
    fetch_pixels(to, map, group * source.channels + channel, x, y, image, right * source.dilation_across,
                 below * source.dilation_down, barrier);
  }
  // This block's part of the tile, for every block of the cluster.
  DEVICE void fetch_right(unsigned to, const TensorMap* map, Index column, unsigned rank, unsigned barrier) const {
    constexpr int PART = TILE_N / CLUSTER;
    if constexpr (GROUPED)
      fetch_box<(CLUSTER > 1)>(to + rank * PART * 128, map, channel, element, column + rank * PART, group, barrier,
                               EVERY_BLOCK);
    else
      fetch_box<(CLUSTER > 1)>(to + rank * PART * 128, map, channel, element, column + rank * PART, barrier, EVERY_BLOCK);
  }
};
