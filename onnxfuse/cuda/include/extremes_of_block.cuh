// Extremes across a block of at most 32 warps, the same for every thread.

template <int WARPS> DEVICE Extremes extremes_of_block(Extremes mine) {
  SHARED Shared<Extremes, WARPS> of_warp;
  mine = extremes_of_warp(mine);
  if (thread_index() % 32 == 0) of_warp.mine()[thread_index() / 32] = mine;
  wait_for_block();
  if constexpr (WARPS > 8) return extremes_of_warp(of_warp.mine()[thread_index() % 32 % WARPS]);
  Extremes all = of_warp.mine()[0];
  UNROLLED for (int warp = 1; warp < WARPS; ++warp) all.combine(of_warp.mine()[warp]);
  return all;
}
