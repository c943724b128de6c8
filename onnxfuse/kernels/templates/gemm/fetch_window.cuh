// Fetches the terms of a tile, TILE_K channels of one element of the window at a time. B is [n, elements, channels].

struct Terms {
  const Source& source;
  int x, y, image;             // of the window's first element, for the tile's first row
  Index channel = 0, right = 0, below = 0, element = 0;

  DEVICE Terms(Index row, const Matrices&, const Source& s) : source(s) {
    const Index line = row / s.across;
    image = line / s.down;
    x = (int)((row - line * s.across) * s.stride_across) - (int)s.pad_left;
    y = (int)((line - image * s.down) * s.stride_down) - (int)s.pad_above;
  }
  DEVICE void next() {
    channel += TILE_K;
    if (channel < source.channels) return;
    channel = 0;
    ++element;
    if (++right == source.window_width) {
      right = 0;
      ++below;
    }
  }
  DEVICE void fetch_left(unsigned to, const TensorMap* map, unsigned barrier) const {
    fetch_pixels(to, map, channel, x, y, image, right * source.dilation_across, below * source.dilation_down, barrier);
  }
  // This block's part of the tile, for every block of the cluster.
  DEVICE void fetch_right(unsigned to, const TensorMap* map, Index column, unsigned rank, unsigned barrier) const {
    constexpr int PART = TILE_N / CLUSTER;
    fetch_box<(CLUSTER > 1)>(to + rank * PART * 128, map, channel, element, column + rank * PART, barrier, EVERY_BLOCK);
  }
};
