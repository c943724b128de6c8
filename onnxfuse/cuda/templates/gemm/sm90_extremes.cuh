// The extremes of an output, a part for each warp of consumers: of what the warp has stored of all its tiles.

struct TileExtremes {
  Extremes seen = no_extremes();

  // Two neighbours in a row, `down` and `right` of the thread's first cell. Cells outside the output are not stored.
  DEVICE void take(const Result (&result)[2], const Place& at, int down, int right) {
    UNROLLED for (int next = 0; next < 2; ++next)
      if (at.row + down < at.m && at.column + right + next < at.n) seen.take(ranged(result[next]));
  }
  DEVICE void leave(const Results& to) const {
    const Extremes all = extremes_of_warp(seen);
    if (thread_index() % 32 == 0) write((Extremes*)to.scratch + block_index() * CONSUMER_WARPS + thread_index() / 32, all);
  }
};
