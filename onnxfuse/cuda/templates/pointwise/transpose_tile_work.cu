// The work of a block of transpose_tile.cu, whose formula, operands and accuracy it has: fill the tiles, wait, compute.

constexpr unsigned ALL_ELEMENTS = (1u << WIDTH) - 1;

template <int W> DEVICE void compute(const Pointers& pointers, const Tiles& tiles, const Block& block, int row,
                                     int column, const Parameters& p) {
  const Place at = block.at(row, column, p);
  Held<W> held;
  load_all<W>(held, pointers, tiles, row, column, at, ALL_ELEMENTS, p);
  Result result[W];
  UNROLLED for (int w = 0; w < W; ++w) result[w] = apply(element(held, w));
  store_all<W>(pointers, result, at, p);
}

// A vector on a boundary of memory, `column` the held one that it would begin at if rows did.
DEVICE void compute_shifted(const Pointers& pointers, const Tiles& tiles, const Block& block, int row, int column,
                            const Parameters& p) {
  Place at = block.at(row, column, p);
  const int shift = at.linear % WIDTH;
  at.linear -= shift;
  const Index first = at.coordinate[RANK - 1] -= shift, end = p.extent[RANK - 1].value;
  unsigned own = ALL_ELEMENTS;
  if (first >= end || first + WIDTH > end) {
    own = 0;
    UNROLLED for (int w = 0; w < WIDTH; ++w) own |= (unsigned)(first + w < end) << w;
    if (own == 0) return;
  }
  Held<WIDTH> held;
  load_all<WIDTH>(held, pointers, tiles, row, column - shift, at, own, p);
  Result result[WIDTH];
  UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(held, w));
  if (own == ALL_ELEMENTS) {
    store_all<WIDTH>(pointers, result, at, p);
    return;
  }
  UNROLLED for (int w = 0; w < WIDTH; ++w) {
    const Result one[1] = {result[w]};
    if (own >> w & 1) store_all<1>(pointers, one, at, p);
    ++at.linear;
  }
}

DEVICE void tiled(const Pointers& pointers, const Parameters& p) {
  SHARED Tiles tiles;
  const Block block(p);
  fill_all(tiles, pointers, block, p);
  wait_for_block();
  if constexpr (SHIFTED) {
    constexpr int VECTORS = COLUMNS / WIDTH;
    UNROLLED for (int i = 0; i < (ROWS * VECTORS + THREADS - 1) / THREADS; ++i) {
      const int n = thread_index() + i * THREADS, row = n / VECTORS;
      if (row < ROWS && block.row + row < p.extent[ROW].value)
        compute_shifted(pointers, tiles, block, row, n % VECTORS * WIDTH + WIDTH, p);
    }
    return;
  }
  UNROLLED for (int i = 0; i < (ROWS * COLUMNS / WIDTH + THREADS - 1) / THREADS; ++i) {
    const int first = (thread_index() + i * THREADS) * WIDTH, row = first / COLUMNS, column = first % COLUMNS;
    if (row >= ROWS || !block.holds(row, column, p)) continue;
    // The rows that are there hold whole vectors: their number times the columns is a multiple of WIDTH.
    compute<WIDTH>(pointers, tiles, block, row, column, p);
  }
}
