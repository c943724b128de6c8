// The first launch of group.cuh: what a part of an image adds to the moments of its groups.

// Up to AHEAD places of a thread, from its number `k` on. WHOLE: all of them are there.
template <bool WHOLE>
DEVICE void visit(Shifted (&sums)[WIDTH], const Pointers& base, const Still& still, Index k, const Stand& stand,
                  const Parameters& p) {
  Moving ahead[AHEAD] = {};
  UNROLLED for (int i = 0; i < AHEAD; ++i)
    if (WHOLE || k + i < stand.count) fetch(ahead[i], base, Place(stand.first + (k + i) * ROWS, p.place_extent), stand.column, p);
  if (k == 0) UNROLLED for (int w = 0; w < WIDTH; ++w) sums[w].shift = Norm::value(element(ahead[0], still, w));
  UNROLLED for (int i = 0; i < AHEAD; ++i)
    if (WHOLE || k + i < stand.count)
      UNROLLED for (int w = 0; w < WIDTH; ++w) sums[w].add(Norm::value(element(ahead[i], still, w)));
}

DEVICE void sums(const Pointers& pointers, const Parameters& p) {
  const Stand stand(p);
  SHARED Shared<Moments, ROWS * COLUMNS> found;
  if (stand.count > 0) {
    const Pointers base = pointers_at(pointers, Outer(stand.image, p.outer_extent), stand.column, p);
    const Still still = load_still(base, stand.column, p);
    Shifted sums[WIDTH] = {};
    Index k = 0;
    for (; k + AHEAD <= stand.count; k += AHEAD) visit<true>(sums, base, still, k, stand, p);
    if (k < stand.count) visit<false>(sums, base, still, k, stand, p);
    // Lanes side by side, so that threads side by side write to different banks.
    UNROLLED for (int w = 0; w < WIDTH; ++w)
      found.mine()[stand.row * COLUMNS + w * ACROSS + stand.column / WIDTH] = sums[w].moments(stand.count);
  }
  wait_for_block();

  // LANES lanes of a warp join a group; all lanes go round as often.
  const Index places = places_of(stand.part, p);
  for (int i = thread_index(); i - (int)thread_index() < GROUPS * LANES; i += THREADS) {
    const int group = i / LANES < GROUPS ? i / LANES : GROUPS - 1;
    const int begin = group * GROUP;
    Shifted total = {found.mine()[begin % WIDTH * ACROSS + begin / WIDTH].mean, 0, 0};
    for (int j = i % LANES; j < ROWS * GROUP; j += LANES) {
      const Index row = j % ROWS, count = places_of_row(places, row);
      const int column = begin + j / ROWS;
      if (count > 0) total.add(found.mine()[row * COLUMNS + column % WIDTH * ACROSS + column / WIDTH], count);
    }
    total = across_lanes<LANES>(total);
    if (i % LANES == 0 && i < GROUPS * LANES)
      of_group(pointers, stand.image, group, p)[stand.part] = total.moments((float)places * GROUP);
  }
}
