// The mean of an output of stencil.cu over the places of each image, from what the threads have in their registers.
// Accuracy: sums in float, always in the same order.
//
// The blocks of an image leave their sums in scratch memory, and the last one to come adds them up. There stands, for each
// image and each block's channels, a counter; behind all of these the sums of each block.

constexpr int WIDE = BLOCK_CHANNELS * CHANNELS, SEATS = BLOCK_COLUMNS * BLOCK_ROWS;  // threads with the same channels
constexpr int TEAMS = THREADS / WIDE < 1 ? 1 : THREADS / WIDE < 8 ? THREADS / WIDE : 8;

// Give the totals of `count` rows of WIDE sums, each to one thread of the block: give(column, total).
template <class Give> DEVICE void add_up(float* of_team, const float* found, Index count, const Give& give) {
  for (int i = thread_index(); i < TEAMS * WIDE; i += THREADS) {
    float total = 0.0f;
    _Pragma("unroll 8") for (Index row = i / WIDE; row < count; row += TEAMS) total += found[row * WIDE + i % WIDE];
    of_team[i] = total;
  }
  wait_for_block();
  for (int c = thread_index(); c < WIDE; c += THREADS) {
    float total = of_team[c];
    UNROLLED for (int team = 1; team < TEAMS; ++team) total += of_team[team * WIDE + c];
    give(c, total);
  }
}

DEVICE void give_means(const Sums& outputs, const Pointers& to, const Place& at, const Parameters& p) {
  SHARED float found[SEATS * WIDE], of_team[TEAMS * WIDE];
  const int mine = thread_index() / BLOCK_CHANNELS * WIDE + thread_index() % BLOCK_CHANNELS * CHANNELS;
  UNROLLED for (int c = 0; c < CHANNELS; ++c) {
    float sum = 0.0f;
    UNROLLED for (int row = 0; row < ROWS; ++row)
        UNROLLED for (int column = 0; column < COLUMNS;
                      ++column) if (at.channel < TOTAL_CHANNELS && at.row + row < p.rows &&
                                    at.column + column < p.columns) sum += outputs.of[row][column][c];
    found[mine + c] = sum;
  }
  wait_for_block();
  const Index group = p.across.quotient(block_from_end()), beside = block_from_end() - group * p.across.value;
  const float places = (float)p.rows * (float)p.columns;
  const auto give = [&](int c, float total) {
    const Index channel = beside * WIDE + c;
    if (channel < TOTAL_CHANNELS) store_mean(to, at.image * TOTAL_CHANNELS + channel, total / places);
  };
  if constexpr (MEETS) {
    const Index parts = p.around.value * p.down.value, part = group - at.image * parts;
    const Index mean = at.image * p.across.value + beside, means = (last_block() + 1) / parts;
    float* const all = reinterpret_cast<float*>(to.scratch + (means + 3) / 4 * 4) + mean * parts * WIDE;
    add_up(of_team, found, SEATS, [&](int c, float total) { all[part * WIDE + c] = total; });
    if (last_to_come(to.scratch + mean, parts)) add_up(of_team, all, parts, give);
  } else {
    add_up(of_team, found, SEATS, give);
  }
}

DEVICE void depthwise_with_mean(const Pointers& pointers, const Parameters& p) {
  const Place at = place(p);
  Sums sums;
  if (at.channel < TOTAL_CHANNELS && at.row < p.rows && at.column < p.columns) convolve(sums, pointers, at, p);
  give_means(sums, pointers, at, p);
}
