// Fetches the terms of a tile, TILE_K at a time: the left factor is a matrix.

struct Terms {
  Index row, k = 0;

  DEVICE Terms(Index row, const Source&) : row(row) {}
  DEVICE void next() { k += TILE_K; }
  DEVICE void fetch_left(unsigned to, const TensorMap* map, unsigned barrier) const {
    fetch_box<false>(to, map, k, row, barrier, 0);
  }
  // This block's part of the tile, for every block of the cluster.
  DEVICE void fetch_right(unsigned to, const TensorMap* map, Index column, unsigned rank, unsigned barrier) const {
    if constexpr (B_TRANSPOSED) {
      constexpr int PART = TILE_N / CLUSTER;
      fetch_box<(CLUSTER > 1)>(to + rank * PART * 128, map, k, column + rank * PART, barrier, EVERY_BLOCK);
    } else {
      constexpr int PART = TILE_K / CLUSTER;
      UNROLLED for (int block = 0; block < TILE_N / 64; ++block)
        fetch_box<(CLUSTER > 1)>(to + block * 8192 + rank * PART * 128, map, column + block * 64, k + rank * PART,
                                 barrier, EVERY_BLOCK);
    }
  }
};
