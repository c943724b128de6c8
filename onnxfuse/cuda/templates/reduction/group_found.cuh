// What the threads of a block of group.cuh find as they visit their places, and its groups then.

DEVICE void fetch_place(Moving& moving, const Pointers& base, Index k, const Stand& stand, const Parameters& p) {
  fetch(moving, base, Place(stand.first + k * ROWS, p.place_extent), stand.channel, p);
}

// AHEAD places of a thread that were fetched, from its number `k` on, and in the place of each the fetching of one AHEAD
// behind it: so many are always on their way. `keep` gets each of them. WHOLE: all of them are there, and all behind.
template <bool WHOLE, class Keep> DEVICE void visit(Moments (&mine)[WIDTH], Moving (&ahead)[AHEAD],
                                                    const Pointers& base, const Still& still, Index k,
                                                    const Stand& stand, const Parameters& p, Keep keep) {
  UNROLLED for (int i = 0; i < AHEAD; ++i) {
    if (WHOLE || k + i < stand.count) {
      keep(k + i, ahead[i]);
      const float share = reciprocal_fast((float)(k + i + 1));
      UNROLLED for (int w = 0; w < WIDTH; ++w) mine[w].add(Norm::value(element(ahead[i], still, w)), share);
      if (WHOLE || k + i + AHEAD < stand.count) fetch_place(ahead[i], base, k + i + AHEAD, stand, p);
    }
  }
}

// What the threads of a block find, by row and column. Rows lie one moment more than their columns apart: lanes that read
// below each other meet different banks.
constexpr int PITCH = COLUMNS + 1;
struct Found {
  Moments* at;

  // Of all places of a thread.
  template <class Keep>
  DEVICE void visit_all(const Pointers& base, const Still& still, const Stand& stand, const Parameters& p, Keep keep) {
    Moments mine[WIDTH] = {};
    Moving ahead[AHEAD] = {};
    UNROLLED for (int i = 0; i < AHEAD; ++i) if (i < stand.count) fetch_place(ahead[i], base, i, stand, p);
    Index k = 0;
    for (; k + 2 * AHEAD <= stand.count; k += AHEAD) visit<true>(mine, ahead, base, still, k, stand, p, keep);
    for (; k < stand.count; k += AHEAD) visit<false>(mine, ahead, base, still, k, stand, p, keep);
    // Lanes side by side, so that threads side by side write to different banks.
    UNROLLED for (int w = 0; w < WIDTH; ++w) at[stand.row * PITCH + w * ACROSS + stand.column / WIDTH] = mine[w];
  }
  DEVICE const Moments& of(int row, int column) const {
    return at[row * PITCH + column % WIDTH * ACROSS + column / WIDTH];
  }
  // Of a group, by LANES lanes of each of `teams`, of which this is the lane number `lane`.
  DEVICE Joined group(int group, int lane, int teams, Index places) const {
    return joined(places > 0 ? of(0, group * GROUP).mean : 0, [&](Joined sum) {
      for (int j = lane; j < ROWS * GROUP; j += teams * LANES) {
        const Index of_row = places_of_row(places, j % ROWS);
        if (of_row > 0) sum.add(of(j % ROWS, group * GROUP + j / ROWS), (float)of_row);
      }
      return sum;
    });
  }
};
