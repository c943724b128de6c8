// Extremes across a block of at most 32 warps: the threads of the first warp have them.

template <int WARPS> DEVICE Extremes extremes_of_block(Extremes mine) {
  SHARED Shared<Extremes, WARPS> of_warp;
  mine = extremes_of_warp(mine);
  if (thread_index() % 32 == 0) of_warp.mine()[thread_index() / 32] = mine;
  wait_for_block();
  return thread_index() < 32 ? extremes_of_warp(of_warp.mine()[thread_index() % WARPS]) : no_extremes();
}
