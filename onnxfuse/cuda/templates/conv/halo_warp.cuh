// Products of the kernel of halo.cu by a warp: fragments of pixels and of filters come from shared memory.

// Where a lane reads its rows of the factors, in bytes from a stage's start on: pixels by the column of the window's
// element, since the exchange of pieces follows columns.
struct Lane {
  int pixels[KERNEL_W], filters;

  DEVICE explicit Lane(const Share& mine) {
    const int lane = thread_index() % 32, x = mine.column + lane % 16, n = lane / 16 * 8 + lane % 8;
    UNROLLED for (int s = 0; s < KERNEL_W; ++s) pixels[s] =
        place(WEIGHT_LINES + mine.row * COLUMNS_IN + x + s, x + s, lane / 16);
    filters = place(mine.part * PAIRS * 16 + n, n, lane / 8 % 2);
  }
};

DEVICE void load_rounded(unsigned (&block)[4], SharedAddress from) {
  load_matrices<false>(block, from);
  if constexpr (sizeof(X) == 4) UNROLLED for (unsigned& word : block) word = round_to_tf32(word);
}

// STEPS times 32 bytes of the channels, at each element of the window.
template <int STEPS> DEVICE void multiply(Sums& sums, SharedAddress stage, const Lane& lane) {
  UNROLLED for (int number = 0; number < KERNEL_W * STEPS; ++number) {
    const int s = number / STEPS, step = number % STEPS * 32;
    unsigned filters[KERNEL_H][PAIRS][4];
    UNROLLED for (int r = 0; r < KERNEL_H; ++r) UNROLLED for (int j = 0; j < PAIRS; ++j) load_rounded(
        filters[r][j], stage + ((lane.filters ^ step) + ((r * KERNEL_W + s) * FILTER_LINES + j * 16) * LINE));
    UNROLLED for (int y = 0; y < STACK + KERNEL_H - 1; ++y) {
      unsigned pixels[4];
      load_rounded(pixels, stage + ((lane.pixels[s] ^ step) + y * COLUMNS_IN * LINE));
      UNROLLED for (int r = 0; r < KERNEL_H; ++r) {
        if (y < r || y - r >= STACK) continue;
        UNROLLED for (int tile = 0; tile < TILES_N; ++tile) {
          const unsigned (&b)[4] = filters[r][tile / 2];
          mma(sums.of[y - r][tile], pixels, b[tile % 2 * 2], b[tile % 2 * 2 + 1], (X*)nullptr);
        }
      }
    }
  }
}

// What the products read of a stage is there, once it has arrived.
DEVICE void show_to_products() {}
// The sums may be read.
DEVICE void finish_products(Sums&) {}
