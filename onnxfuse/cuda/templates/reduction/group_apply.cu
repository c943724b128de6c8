// The second launch of group.cuh, whose formula, operands and accuracy it has: the moments of all
// parts of an image joined, and the image read once more.

// The places of a thread, the last ones first: what the first launch has read last is still in L2.
DEVICE Index backwards(Index k, const Stand& stand) { return stand.first + (stand.count - 1 - k) * ROWS; }

DEVICE void fetch_place(Moving& moving, const Pointers& base, Index k, const Stand& stand, const Parameters& p) {
  if (k < stand.count) fetch(moving, base, Place(backwards(k, stand), p.place_extent), stand.channel, p);
}

DEVICE void join(Reduced* finished, const Pointers& pointers, const Stand& stand, const Parameters& p) {
  constexpr int AT_ONCE = 16;  // loads that wait together
  for (int i = thread_index(); i - (int)thread_index() < GROUPS * LANES; i += THREADS) {
    const int group = i / LANES < GROUPS ? i / LANES : GROUPS - 1;
    const Moments* const parts = of_group(pointers, stand.image, group, p);
    const Joined total = joined(parts[0].mean, [&](Joined sum) {
      for (Index part = i % LANES; part < p.parts.value; part += AT_ONCE * LANES) {
        Moments found[AT_ONCE];
        UNROLLED for (int k = 0; k < AT_ONCE; ++k) found[k] =
            parts[part + k * LANES < p.parts.value ? part + k * LANES : 0];
        UNROLLED for (int k = 0; k < AT_ONCE; ++k) {
          // What is not there adds nothing, without a branch.
          if (part + k * LANES >= p.parts.value) found[k] = {sum.shift, 0};
          sum.add(found[k], (float)places_of(part + k * LANES, p) * GROUP);
        }
      }
      return sum;
    });
    const Reduced mine = total.finished();
    if (i % LANES == 0 && i < GROUPS * LANES) finished[group] = mine;
  }
}

DEVICE void apply_norm(const Pointers& pointers, const Parameters& p) {
  const Stand stand(p);
  const Pointers base = pointers_at(pointers, Outer(stand.image, p.outer_extent), stand.channel, p);
  Moving ahead[AHEAD] = {};
  Still still = {};
  UNROLLED for (int i = 0; i < AHEAD; ++i) fetch_place(ahead[i], base, i, stand, p);
  if (stand.count > 0) still = load_still(base, stand.channel, p);

  SHARED Shared<Reduced, GROUPS> finished;
  join(finished.mine(), pointers, stand, p);
  wait_for_block();
  Reduced done[WIDTH] = {};
  if (stand.count > 0) UNROLLED for (int w = 0; w < WIDTH; ++w) done[w] = finished.mine()[(stand.column + w) / GROUP];

  for (Index k = 0; k < stand.count; k += AHEAD) {
    UNROLLED for (int i = 0; i < AHEAD; ++i) {
      if (k + i < stand.count) {
        Result result[WIDTH];
        UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(ahead[i], still, w), done[w]);
        store_all(base, result, Place(backwards(k + i, stand), p.place_extent), p);
        fetch_place(ahead[i], base, k + i + AHEAD, stand, p);
      }
    }
  }
}
