// Products of the kernel of halo.cu by four warps together (wgmma, sm_90a): each warp loads fragments of its own pixels, the
// tensor cores read the filters, the same of all four, where they lie in shared memory. Types of 16 bits.

static_assert(PARTS == 1 && WARPS % 4 == 0, "four warps have the same filters");
constexpr int STACK_IN = STACK + KERNEL_H - 1;

// Where a lane reads its pixels, in bytes from a stage's start on, by the column of the window's element.
struct Lane {
  int pixels[KERNEL_W];

  DEVICE explicit Lane(const Share& mine) {
    const int lane = thread_index() % 32, x = mine.column + lane % 16;
    UNROLLED for (int s = 0; s < KERNEL_W; ++s) pixels[s] =
        place(WEIGHT_LINES + mine.row * COLUMNS_IN + x + s, x + s, lane / 16);
  }
};

struct Pixels {
  unsigned of[STACK_IN][4];

  DEVICE void load(SharedAddress stage, const Lane& lane, int s, int step) {
    UNROLLED for (int y = 0; y < STACK_IN; ++y)
        load_matrices<false>(of[y], stage + ((lane.pixels[s] ^ step) + y * COLUMNS_IN * LINE));
  }
};

// STEPS times 32 bytes of the channels, at each element of the window; the next pixels are loaded meanwhile.
template <int STEPS> DEVICE void multiply(Sums& sums, SharedAddress stage, const Lane& lane) {
  constexpr int COUNT = KERNEL_W * STEPS;
  Pixels pixels[2];
  pixels[0].load(stage, lane, 0, 0);
  UNROLLED for (int number = 0; number < COUNT; ++number) {
    const int s = number / STEPS, step = number % STEPS * 32;
    wgmma_fence();
    UNROLLED for (int y = 0; y < STACK_IN; ++y) {
      UNROLLED for (int r = 0; r < KERNEL_H; ++r) {
        if (y < r || y - r >= STACK) continue;
        const SharedAddress filters = stage + ((r * KERNEL_W + s) * FILTER_LINES * LINE + step);
        wgmma(sums.of[y - r], pixels[number % 2].of[y], descriptor<LINE>(filters, 16, 8 * LINE), true);
      }
    }
    wgmma_commit();
    if (number + 1 < COUNT) {
      wgmma_wait<1>();  // those that read the pixels before these
      pixels[(number + 1) % 2].load(stage, lane, (number + 1) / STEPS, (number + 1) % STEPS * 32);
    }
  }
  wgmma_wait<0>();
}

DEVICE void show_to_products() { fence_async_proxy(); }
DEVICE void finish_products(Sums& sums) { UNROLLED for (int i = 0; i < STACK; ++i) fence_registers(sums.of[i]); }
