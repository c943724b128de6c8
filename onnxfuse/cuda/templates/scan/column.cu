// Running sums across neighbours: a thread takes a vector of WIDTH columns and walks along the axis, STEPS elements at a
// time. Where columns are few, SEGMENTS threads share one: each sums STEPS elements of a chunk, the block hands the sums
// on.
//
// Formula, operands and accuracy as in scan.cuh. Each element is loaded before it is stored, by the same thread: an
// output may lie exactly over an input.

constexpr int ACROSS = THREADS / SEGMENTS, CHUNK = SEGMENTS * STEPS;

DEVICE void scan(const Pointers& pointers, const Parameters& p) {
  const Index length = length_of_axis(p);
  Index inner = 1;
  UNROLLED for (int d = AXIS + 1; d < RANK; ++d) inner *= p.extent[d].value;
  const unsigned thread = thread_index() % ACROSS, segment = thread_index() / ACROSS;
  const Index column = ((Index)block_index() * ACROSS + thread) * WIDTH;
  const Index outer = column / inner, first = outer * length * inner + (column - outer * inner);
  const bool mine = column < p.count / length;
  auto place = [&](Index at) { return Place(first + (REVERSE ? length - 1 - at : at) * inner, p); };

  Sum carry[WIDTH];
  UNROLLED for (int w = 0; w < WIDTH; ++w) carry[w] = Sum::identity();
  bool odd = false;
  for (Index start = 0; start < length; start += CHUNK, odd = !odd) {
    const Index from = start + segment * STEPS;
    Held<WIDTH> held[STEPS] = {};
    UNROLLED for (int s = 0; s < STEPS; ++s) {
      if (mine && from + s < length) load_all<WIDTH>(held[s], pointers, place(from + s), p);
    }
    Sum running[WIDTH];
    UNROLLED for (int w = 0; w < WIDTH; ++w) running[w] = carry[w];
    if constexpr (SEGMENTS > 1) {
      // Written in turns: who is a chunk ahead does not write what another still reads.
      SHARED Sum totals[2][SEGMENTS][WIDTH][ACROSS];
      UNROLLED for (int w = 0; w < WIDTH; ++w) {
        Sum own = Sum::identity();
        UNROLLED for (int s = 0; s < STEPS; ++s) {
          if (from + s < length) own.accumulate(element(held[s], w), Reduced{}, 0);
        }
        totals[odd][segment][w][thread] = own;
      }
      wait_for_block();
      UNROLLED for (int w = 0; w < WIDTH; ++w) {
        for (unsigned s = 0; s < SEGMENTS; ++s) {
          if (s < segment) running[w].combine(totals[odd][s][w][thread]);
          carry[w].combine(totals[odd][s][w][thread]);
        }
      }
    }
    UNROLLED for (int s = 0; s < STEPS; ++s) {
      if (mine && from + s < length) {
        Result result[WIDTH];
        UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = next(running[w], element(held[s], w), length);
        store_all<WIDTH>(pointers, result, place(from + s), p);
      }
    }
    if constexpr (SEGMENTS == 1) UNROLLED for (int w = 0; w < WIDTH; ++w) carry[w] = running[w];
  }
}
