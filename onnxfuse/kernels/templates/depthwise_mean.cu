// The mean of an output over the places of each image, from what the threads have in their registers. Accuracy: sums in
// float, always in the same order.
//
// The blocks of an image leave their sums in scratch memory, and the last one to come adds them up: a record for each
// image and each block's channels, a counter and then the sums of each block.

constexpr int WIDE = BLOCK_CHANNELS * CHANNELS, SEATS = BLOCK_COLUMNS * BLOCK_ROWS;  // threads with the same channels
constexpr int TEAMS = THREADS / WIDE < 1 ? 1 : THREADS / WIDE < 8 ? THREADS / WIDE : 8;

// The totals of `count` rows of WIDE sums, in the block's first WIDE threads or in turns.
template <class Found> DEVICE void add_up(float* totals, float* of_team, Index count, const Found& found) {
  for (int i = thread_index(); i < TEAMS * WIDE; i += THREADS) {
    float total = 0.0f;
    _Pragma("unroll 8") for (Index row = i / WIDE; row < count; row += TEAMS) total += found[row * WIDE + i % WIDE];
    of_team[i] = total;
  }
  wait_for_block();
  for (int c = thread_index(); c < WIDE; c += THREADS) {
    float total = of_team[c];
    UNROLLED for (int team = 1; team < TEAMS; ++team) total += of_team[team * WIDE + c];
    totals[c] = total;
  }
  wait_for_block();
}

// Return whether this is the last of the blocks that share the places; it then has the totals.
DEVICE bool meet(float* totals, float* of_team, unsigned* record, Index part, Index parts) {
  SHARED unsigned before;
  float* const all = reinterpret_cast<float*>(record + 4);
  for (int c = thread_index(); c < WIDE; c += THREADS) all[part * WIDE + c] = totals[c];
  publish();
  wait_for_block();
  if (thread_index() == 0) {
    before = count_round(record, parts);
    publish();
  }
  wait_for_block();
  if (before + 1 != parts) return false;
  add_up(totals, of_team, parts, all);
  return true;
}

DEVICE void give_means(const Sums& outputs, const Pointers& to, const Place& at, const Parameters& p) {
  SHARED float found[SEATS * WIDE], of_team[TEAMS * WIDE], totals[WIDE];
  const int mine = thread_index() / BLOCK_CHANNELS * WIDE + thread_index() % BLOCK_CHANNELS * CHANNELS;
  UNROLLED for (int c = 0; c < CHANNELS; ++c) {
    float sum = 0.0f;
    UNROLLED for (int row = 0; row < ROWS; ++row)
      UNROLLED for (int column = 0; column < COLUMNS; ++column)
        if (at.channel < TOTAL_CHANNELS && at.row + row < p.rows && at.column + column < p.columns)
          sum += outputs.of[row][column][c];
    found[mine + c] = sum;
  }
  wait_for_block();
  add_up(totals, of_team, SEATS, found);
  const Index group = p.across.quotient(block_index()), beside = block_index() - group * p.across.value;
  if constexpr (MEETS) {
    const Index parts = p.around.value * p.down.value;
    unsigned* const record = to.scratch + (at.image * p.across.value + beside) * (4 + parts * WIDE);
    if (!meet(totals, of_team, record, group - at.image * parts, parts)) return;
  }
  const float places = (float)p.rows * (float)p.columns;
  for (int c = thread_index(); c < WIDE; c += THREADS) {
    const Index channel = beside * WIDE + c;
    if (channel < TOTAL_CHANNELS) store_mean(to, at.image * TOTAL_CHANNELS + channel, totals[c] / places);
  }
}

DEVICE void depthwise_with_mean(const Pointers& pointers, const Parameters& p) {
  const Place at = place(p);
  Sums sums;
  if (at.channel < TOTAL_CHANNELS && at.row < p.rows && at.column < p.columns) convolve(sums, pointers, at, p);
  give_means(sums, pointers, at, p);
}
