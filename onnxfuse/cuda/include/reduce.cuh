// What all reductions share: partial results handed from thread to thread, always in the same order, so that the same
// inputs give the same bits.

// The same accumulator of the thread `distance` away (exclusive or).
template <class Partial> DEVICE Partial exchange_partial(const Partial& mine, int distance) {
  constexpr int WORDS = sizeof(Partial) / sizeof(unsigned);
  union Words {
    Partial partial;
    unsigned word[WORDS];
    DEVICE Words() {}
  } words;
  words.partial = mine;
  UNROLLED for (int i = 0; i < WORDS; ++i) words.word[i] = exchange(words.word[i], distance);
  return words.partial;
}

// Combine over the `threads` of a warp (a power of 2) that lie `apart` threads apart: every thread gets the total.
template <int threads, int apart = 1, class Partial> DEVICE Partial across_lanes(Partial partial) {
  UNROLLED for (int distance = threads / 2; distance > 0; distance /= 2)
      partial.combine(exchange_partial(partial, distance * apart));
  return partial;
}

// The place in a cluster; its blocks are neighbours.
DEVICE unsigned rank_of_block() {
  if constexpr (CLUSTER > 1) return cluster_rank();
  else return 0;
}
DEVICE void wait_for_peers() {
  if constexpr (CLUSTER > 1) cluster_sync();
  else wait_for_block();
}
// Nobody may leave while another block can still read what it has.
DEVICE void leave_together() {
  if constexpr (CLUSTER > 1) cluster_sync();
}
