// Fetches the terms of a tile, TILE_K channels of one element of the window at a time. B is [n, elements, channels].
//
// Of a group of channels no more than STEP_K are multiplied: what is fetched beside them may be the next group's.

constexpr int STEP_K = TILE_K / 4 * SLICES;

struct Terms {
  const Source& source;
  Index group;
  int x, y, z, image;  // of the window's first element, for the tile's first row
  Index channel, right, below, behind = 0, element;

  DEVICE Terms(Index row, Index step, const Matrices& of, const Source& s) : source(s), group(of.a) {
    const Index each = (s.channels + (STEP_K - 1)) / STEP_K;
    element = step / each;
    channel = (step - element * each) * STEP_K;
    below = element / s.window_width;
    right = element - below * s.window_width;
    const Index line = row / s.across, layer = line / s.down;
    x = (int)((row - line * s.across) * s.stride_across) - (int)s.pad_left;
    y = (int)((line - layer * s.down) * s.stride_down) - (int)s.pad_above;
    image = layer;
    if constexpr (VOLUME) {
      behind = below / s.window_height;
      below -= behind * s.window_height;
      image = layer / s.inward;
      z = (int)((layer - image * s.inward) * s.stride_inward) - (int)s.pad_front;
    }
  }
  DEVICE void next() {
    channel += STEP_K;
    if (channel < source.channels) return;
    channel = 0;
    ++element;
    if (++right == source.window_width) {
      right = 0;
      if (++below == source.window_height && VOLUME) {
        below = 0;
        ++behind;
      }
    }
  }
  DEVICE void load_left(unsigned to, const TensorMap* map, unsigned barrier) const {
    const Index first = group * source.channels + channel;
    const unsigned short across = right * source.dilation_across, down = below * source.dilation_down;
    if constexpr (VOLUME)
      tma_load_im2col(to, map, first, x, y, z, image, across, down, behind * source.dilation_inward, barrier);
    else tma_load_im2col(to, map, first, x, y, image, across, down, barrier);
  }
  // This block's part of the tile, for every block of the cluster.
  DEVICE void load_right(unsigned to, const TensorMap* map, Index column, unsigned rank, unsigned barrier) const {
    constexpr int PART = TILE_N / CLUSTER;
    if constexpr (GROUPED)
      tma_load<(CLUSTER > 1)>(to + rank * PART * 128, map, channel, element, column + rank * PART, group, barrier,
                              EVERY_BLOCK);
    else
      tma_load<(CLUSTER > 1)>(to + rank * PART * 128, map, channel, element, column + rank * PART, barrier,
                              EVERY_BLOCK);
  }
};
