// Fetches the terms of a tile, TILE_K at a time: the left factor is a matrix.

struct Terms {
  Index row, k;
  Matrices of;

  DEVICE Terms(Index row, Index step, const Matrices& of, const Source&) : row(row), k(step * TILE_K), of(of) {}
  DEVICE void next() { k += TILE_K; }
  DEVICE void load_left(unsigned to, const TensorMap* map, unsigned barrier) const {
    load<false>(to, map, k, row, of.a, barrier);
  }
  // This block's part of the tile, for every block of the cluster.
  DEVICE void load_right(unsigned to, const TensorMap* map, Index column, unsigned rank, unsigned barrier) const {
    if constexpr (B_TRANSPOSED) {
      constexpr int PART = TILE_N / CLUSTER;
      load<(CLUSTER > 1)>(to + rank * PART * 128, map, k, column + rank * PART, of.b, barrier);
    } else {
      constexpr int PART = TILE_K / CLUSTER;
      UNROLLED for (int block = 0; block < TILE_N / 64; ++block) load<(CLUSTER > 1)>(
          to + block * 8192 + rank * PART * 128, map, column + block * 64, k + rank * PART, of.b, barrier);
    }
  }
  template <bool TO_MANY>
  static DEVICE void load(unsigned to, const TensorMap* map, Index x, Index y, Index matrix, unsigned barrier) {
    if constexpr (BATCHED) tma_load<TO_MANY>(to, map, x, y, matrix, barrier, EVERY_BLOCK);
    else tma_load<TO_MANY>(to, map, x, y, barrier, EVERY_BLOCK);
  }
};
