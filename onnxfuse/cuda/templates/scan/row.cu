// Running sums along rows of neighbours: ROW_THREADS threads take a row, a chunk of a vector each at a time, and carry
// the sum of the chunks before. The next chunk is fetched while this one is summed.
//
// Formula, operands and accuracy as in scan.cuh. Each element is loaded before it is stored, by the same thread: an
// output may lie exactly over an input.

constexpr int ROWS = THREADS / ROW_THREADS, CHUNK = ROW_THREADS * WIDTH;
constexpr int WARPS = ROW_THREADS / 32 > 1 ? ROW_THREADS / 32 : 1;

// The element of a vector that comes at `step` of the sum.
DEVICE int element_at(int step) { return REVERSE ? WIDTH - 1 - step : step; }

DEVICE void scan(const Pointers& pointers, const Parameters& p) {
  const Index length = length_of_axis(p), rows = p.count / length;
  const Index row = (Index)block_index() * ROWS + thread_index() / ROW_THREADS;
  const unsigned thread = thread_index() % ROW_THREADS;
  const Index mine = thread * WIDTH, first = row * length;
  // Where the thread's vector of a chunk lies; `start`: elements summed before the chunk.
  auto place = [&](Index start) { return Place(first + (REVERSE ? length - WIDTH - start - mine : start + mine), p); };
  auto there = [&](Index start) { return row < rows && start + mine < length; };

  Held<WIDTH> held = {};
  if (there(0)) load_all<WIDTH>(held, pointers, place(0), p);
  Sum carry = Sum::identity();
  bool odd = false;
  for (Index start = 0; start < length; start += CHUNK, odd = !odd) {
    Held<WIDTH> ahead = {};
    if (there(start + CHUNK)) load_all<WIDTH>(ahead, pointers, place(start + CHUNK), p);
    Sum before = Sum::identity(), all = Sum::identity();
    if (there(start))
      UNROLLED for (int i = 0; i < WIDTH; ++i) all.accumulate(element(held, element_at(i)), Reduced{}, 0);
    scan_lanes<(ROW_THREADS < 32 ? ROW_THREADS : 32)>(before, all, thread);
    if constexpr (WARPS > 1) {
      // Written in turns: who is a chunk ahead does not write what another still reads.
      SHARED Sum totals[2][ROWS][WARPS];
      const unsigned mate = thread_index() / ROW_THREADS, warp = thread / 32;
      if (thread % 32 == 0) totals[odd][mate][warp] = all;
      wait_for_block();
      Sum warps_before = Sum::identity();
      all = Sum::identity();
      UNROLLED for (unsigned w = 0; w < WARPS; ++w) {
        if (w < warp) warps_before.combine(totals[odd][mate][w]);
        all.combine(totals[odd][mate][w]);
      }
      warps_before.combine(before);
      before = warps_before;
    }
    Sum running = carry;
    running.combine(before);
    carry.combine(all);
    if (there(start)) {
      Result result[WIDTH];
      UNROLLED for (int i = 0; i < WIDTH; ++i) {
        result[element_at(i)] = next(running, element(held, element_at(i)), length);
      }
      store_all<WIDTH>(pointers, result, place(start), p);
    }
    held = ahead;
  }
}
