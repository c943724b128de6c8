// Extremes across a block of WARPS warps, the same for every thread.

DEVICE Extremes extremes_of_block(Extremes mine) {
  SHARED float most[WARPS], least[WARPS];
  mine = extremes_of_warp(mine);
  if (thread_index() % 32 == 0) {
    most[thread_index() / 32] = mine.most;
    least[thread_index() / 32] = mine.least;
  }
  wait_for_block();
  if constexpr (WARPS > 8) return extremes_of_warp({most[thread_index() % WARPS], least[thread_index() % WARPS]});
  Extremes all = {most[0], least[0]};
  UNROLLED for (int warp = 1; warp < WARPS; ++warp) all.combine({most[warp], least[warp]});
  return all;
}
