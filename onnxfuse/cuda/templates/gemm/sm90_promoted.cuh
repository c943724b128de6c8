// The products of sm90.cu where the tensor cores keep fewer bits of a sum than float32: those of a step, 128 terms of float8,
// have sums of their own, which are added up in float32 (DeepSeek-V3, 2024).
//
// A step is computed PART columns of 64 rows at a time. A warpgroup adds them while another one multiplies, of its team or of
// the other one; with two SETS of such sums also while its own next products run.

constexpr int PARTS = WIDTH / PART;      // of a tile's columns
constexpr int UNITS = BLOCKS_M * PARTS;  // products of a step, of SLICES instructions each
static_assert(WIDTH % PART == 0 && !IN_TURNS, "the plan knows");

template <>
DEVICE void compute_factor<PromotedFactor>(const SharedMemory&, const Operands&, unsigned, const Parameters&) {}

struct PartSums { float of[PART / 2]; };

template <int COUNT> DEVICE void multiply_part(PartSums& part, unsigned a, unsigned b, int unit) {
  wgmma_fence();
  UNROLLED for (int k = 0; k < COUNT; ++k)
      wgmma(part.of, descriptor(a + unit / PARTS * 8192 + k * 32, 16, 1024),
            descriptor(b + unit % PARTS * PART * ROW_BYTES + k * 32, 16, 1024), k > 0);
  wgmma_commit();
}

DEVICE void promote(Accumulators& sums, const PartSums& part, int unit) {
  UNROLLED for (int i = 0; i < PART / 2; ++i) sums.of[unit / PARTS][unit % PARTS * (PART / 2) + i] += part.of[i];
}

template <int COUNT>
DEVICE void multiply_and_promote(Accumulators& sums, const SharedMemory& shared, State& state, int member) {
  const unsigned a = shared.a(state), b = a + A_BYTES;
  PartSums part[SETS];
  shared.pipeline.consumer_wait(state);
  UNROLLED for (int unit = 0; unit < UNITS + SETS - 1; ++unit) {
    if (unit < UNITS) multiply_part<COUNT>(part[unit % SETS], a + member * BLOCKS_M * 8192, b, unit);
    const int done = unit - (SETS - 1);
    if (done < 0) continue;
    if (unit < UNITS) wgmma_wait<SETS - 1>();
    else wgmma_wait<0>();
    if (done == UNITS - 1) shared.pipeline.consumer_release(state);
    promote(sums, part[done % SETS], done);
  }
  state.advance();
}

template <> DEVICE void multiply<PromotedFactor>(Accumulators& sums, const SharedMemory& shared, State& state,
                                                 int member, Index steps) {
  constexpr bool RAGGED = LAST_SLICES < SLICES && SPLIT == 1;
  UNROLLED for (int block = 0; block < BLOCKS_M; ++block) UNROLLED for (int i = 0; i < WIDTH / 2; ++i)
      sums.of[block][i] = 0.0f;
  for (Index step = 0; step < steps - RAGGED; ++step) multiply_and_promote<SLICES>(sums, shared, state, member);
  if constexpr (RAGGED) multiply_and_promote<LAST_SLICES>(sums, shared, state, member);
}
