// The work of a block: fill the tiles, wait, compute.

template <int W> DEVICE void compute(const Pointers& pointers, const Tiles& tiles, const Block& block, int row, int column,
                                     const Parameters& p) {
  const Place at = block.at(row, column, p);
  Held<W> held;
  load_all<W>(held, pointers, tiles, row, column, at, p);
  Result result[W];
  UNROLLED for (int lane = 0; lane < W; ++lane) result[lane] = apply(element(held, lane));
  store_all<W>(pointers, result, at, p);
}

DEVICE void tiled(const Pointers& pointers, const Parameters& p) {
  SHARED Tiles tiles;
  const Block block(p);
  fill_all(tiles, pointers, block, p);
  wait_for_block();
  UNROLLED for (int i = 0; i < (ROWS * COLUMNS / WIDTH + THREADS - 1) / THREADS; ++i) {
    const int first = (thread_index() + i * THREADS) * WIDTH, row = first / COLUMNS, column = first % COLUMNS;
    if (row >= ROWS || !block.holds(row, column, p)) continue;
    // The rows that are there hold whole vectors: their number times the columns is a multiple of WIDTH.
    compute<WIDTH>(pointers, tiles, block, row, column, p);
  }
}
