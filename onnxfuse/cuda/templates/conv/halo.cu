// y[n, p, q, f] = body(sum over r, s, c of x[n, p + r - top, q + s - left, c] w[f, r, s, c], ...)
//
// Convolution of few filters on the tensor cores, as an implicit GEMM (Chetlur et al., cuDNN, 2014): windows that slide
// by one pixel over images [N, H, W, C], whose channels may come from several tensors side by side. w [F, R, S, C];
// outputs and operands [N, P, Q, F]. Accuracy: exact products of 16-bit elements, of float32 rounded to TF32; sums in
// float.
//
// A block computes TILE_ROWS x TILE_COLUMNS outputs of BLOCK_FILTERS filters. It goes through the channels in slices of 64
// bytes: a stage in shared memory holds a slice of all pixels that the tile's windows see, once, and the filters' slice;
// copies fill the next stages meanwhile. Every element of the window reads the same pixels, so many rows and columns on:
// in shared memory that is another address. The tensor map of an implicit GEMM brings them from L2 once for each element
// instead, 5.5 TB/s of them for nine (8 x 128x128, 160 to 32, float16: 63 us, H200, 2026-11).
//
// A warp computes STACK x TILES_N products of 16 outputs by 8 filters: as many rows of 16 columns below each other, so
// that a row of pixels that it has loaded counts for KERNEL_H of them. PARTS warps share the block's filters. Which
// filters stand in which of the TILES_N columns of products is free: so that a lane ends with VECTOR neighbours of an
// output pixel.
//
// Each warp multiplies by itself (halo_warp.cuh), or four multiply together (halo_warpgroup.cuh): then no warp loads
// filters, and the tensor cores reach their rate.

// The rest of the body, VECTOR neighbouring filters at a time.
DEVICE void finish(const Sums& sums, const Pointers& pointers, const Share& mine, const Place& at,
                   const Parameters& p) {
  constexpr int SINGLES = VECTOR == 1 ? 2 : 1;  // vectors of a lane in VECTOR_TILES columns of products
  const int lane = thread_index() % 32;
  UNROLLED for (int tile = 0; tile < TILES_N; tile += VECTOR_TILES) {
    UNROLLED for (int single = 0; single < SINGLES; ++single) {
      const int filter = mine.part * (8 * TILES_N) + filter_of(tile, lane % 4 * 2 + single);
      if (filter >= BLOCK_FILTERS || at.channel + filter >= FILTERS) continue;
      Place here = at;
      here.channel += filter;
      const Once once = load_once(pointers, here, p);
      UNROLLED for (int i = 0; i < STACK; ++i) {
        UNROLLED for (int beside = 0; beside < 2; ++beside) {
          here.row = at.row + mine.row + i;
          here.column = at.column + mine.column + beside * 8 + lane / 4;
          if (here.row >= p.rows || here.column >= p.columns) continue;
          float sum[VECTOR];
          UNROLLED for (int e = 0; e < VECTOR; ++e) sum[e] = sums.of[i][tile + e / 2][beside * 2 + e % 2 + single];
          const Index linear = here.image * p.y_image + here.row * p.y_row + here.column * FILTERS + here.channel;
          store_all(pointers, sum, once, load_each<VECTOR>(pointers, here, linear, 0, p), linear, 0);
        }
      }
    }
  }
}

DEVICE void halo(const Pointers& pointers, const Parameters& p) {
  const Index number = p.across.quotient(block_index()), first = block_index() - number * p.across.value;
  const Index above = p.around.quotient(number), image = p.down.quotient(above);
  const Place at = {image, first * BLOCK_FILTERS, (above - image * p.down.value) * TILE_ROWS,
                    (number - above * p.around.value) * TILE_COLUMNS};
  _Pragma("unroll 1") for (int slice = 0; slice < STAGES - 1; ++slice) {
    if (slice < SLICES) fill(pointers, at, slice, slice, p);
    commit_copies();
  }
  const Share mine;
  const Lane lane(mine);
  const SharedAddress stages = shared_address(shared_words);
  Sums sums = {};
  int here = 0, free = STAGES - 1;  // the stage that is multiplied; the one that nobody needs any more
  _Pragma("unroll 1") for (int slice = 0; slice < SLICES; ++slice) {
    wait_for_copies<STAGES - 2>();
    show_to_products();
    wait_for_block();
    if (slice + STAGES - 1 < SLICES) fill(pointers, at, free, slice + STAGES - 1, p);
    commit_copies();
    if (REST == WHOLE || slice < SLICES - 1) multiply<WHOLE>(sums, stages + here * STAGE_BYTES, lane);
    else multiply<REST>(sums, stages + here * STAGE_BYTES, lane);
    here = here == STAGES - 1 ? 0 : here + 1;
    free = free == STAGES - 1 ? 0 : free + 1;
  }
  finish_products(sums);
  finish(sums, pointers, mine, at, p);
}
