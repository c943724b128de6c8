// The first launch of group.cuh: what a part of an image adds to the moments of its groups.

// Up to AHEAD places of a thread, from its number `k` on. WHOLE: all of them are there.
template <bool WHOLE>
DEVICE void visit(Moments (&mine)[WIDTH], const Pointers& base, const Still& still, Index k, const Stand& stand,
                  const Parameters& p) {
  Moving ahead[AHEAD] = {};
  UNROLLED for (int i = 0; i < AHEAD; ++i)
    if (WHOLE || k + i < stand.count)
      fetch(ahead[i], base, Place(stand.first + (k + i) * ROWS, p.place_extent), stand.column, p);
  UNROLLED for (int i = 0; i < AHEAD; ++i) {
    if (WHOLE || k + i < stand.count) {
      const float share = reciprocal_fast((float)(k + i + 1));
      UNROLLED for (int w = 0; w < WIDTH; ++w) mine[w].add(Norm::value(element(ahead[i], still, w)), share);
    }
  }
}

DEVICE void sums(const Pointers& pointers, const Parameters& p) {
  const Stand stand(p);
  SHARED Shared<Moments, ROWS * COLUMNS> found;
  if (stand.count > 0) {
    const Pointers base = pointers_at(pointers, Outer(stand.image, p.outer_extent), stand.column, p);
    const Still still = load_still(base, stand.column, p);
    Moments mine[WIDTH] = {};
    Index k = 0;
    for (; k + AHEAD <= stand.count; k += AHEAD) visit<true>(mine, base, still, k, stand, p);
    if (k < stand.count) visit<false>(mine, base, still, k, stand, p);
    // Lanes side by side, so that threads side by side write to different banks.
    UNROLLED for (int w = 0; w < WIDTH; ++w)
      found.mine()[stand.row * COLUMNS + w * ACROSS + stand.column / WIDTH] = mine[w];
  }
  wait_for_block();

  // All lanes of a warp go round as often.
  const Index places = places_of(stand.part, p);
  for (int i = thread_index(); i - (int)thread_index() < GROUPS * LANES; i += THREADS) {
    const int group = i / LANES < GROUPS ? i / LANES : GROUPS - 1;
    const auto at = [&](int row, int channel) {
      const int column = group * GROUP + channel;
      return found.mine()[row * COLUMNS + column % WIDTH * ACROSS + column / WIDTH];
    };
    const float count = (float)places * GROUP;
    const Joined total = joined(at(0, 0).mean, count, [&](Joined sum) {
      for (int j = i % LANES; j < ROWS * GROUP; j += LANES) {
        const Index of_row = places_of_row(places, j % ROWS);
        if (of_row > 0) sum.add(at(j % ROWS, j / ROWS), (float)of_row);
      }
      return sum;
    });
    if (i % LANES == 0 && i < GROUPS * LANES) of_group(pointers, stand.image, group, p)[stand.part] = total.moments(count);
  }
}
