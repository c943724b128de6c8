// How a warp of the kernel for few rows fetches its strip of B: by boxes that Hopper's copy engine brings.

using Weights = TensorMaps;

// Boxes are exchanged by the bits of their addresses, every 1024 bytes alike.
DEVICE SharedAddress rings() { return (shared_address(shared_floats) + 1023) & ~1023u; }

struct Fetching {
  SharedAddress ring, arrived;
  const TensorMap* map;
  Index column, term, end;

  DEVICE Fetching(const Weights& weights, int product, Index column, Index first, Index end, const Parameters& p)
      : map(&weights.b[product]), column(column), term(first), end(end) {
    SHARED unsigned long long barriers[WARPS * STAGES];
    const int warp = thread_index() / 32;
    ring = rings() + warp * (STAGES * STAGE_BYTES);
    arrived = shared_address(barriers + warp * STAGES);
    if (thread_index() % 32 == 0) {
      UNROLLED for (int stage = 0; stage < STAGES; ++stage) barrier_init(arrived + stage * 8, 1);
      barriers_made();
    }
    wait_for_warp();
  }
  // Behind the last term nothing is fetched, and nobody waits for it.
  DEVICE void fetch(int stage) {
    if (term < end && thread_index() % 32 == 0) {
      barrier_expect(arrived + stage * 8, STAGE_BYTES);
      fetch_box<false>(ring + stage * STAGE_BYTES, map, B_TRANSPOSED ? term : column, B_TRANSPOSED ? column : term,
                       arrived + stage * 8, 0);
    }
    term += STEP_TERMS;
  }
  DEVICE void wait(int stage, unsigned round) { barrier_wait(arrived + stage * 8, round % 2); }
  DEVICE void end_all() {}
};
