// The first launch of group.cuh, whose formula, operands and accuracy it has: what a part of an
// image adds to the moments of its groups.

DEVICE void sums(const Pointers& pointers, const Parameters& p) {
  const Stand stand(p);
  SHARED Shared<Moments, ROWS * PITCH> table;
  Found found = {table.mine()};
  if (stand.count > 0) {
    const Pointers base = pointers_at(pointers, Outer(stand.image, p.outer_extent), stand.channel, p);
    found.visit_all(base, load_still(base, stand.channel, p), stand, p, [](Index, const Moving&) {});
  }
  wait_for_block();

  // All lanes of a warp go round as often.
  for (int i = thread_index(); i - (int)thread_index() < GROUPS * LANES; i += THREADS) {
    const int group = i / LANES < GROUPS ? i / LANES : GROUPS - 1;
    const Joined total = found.group(group, i % LANES, 1, places_of(stand.part, p));
    if (i % LANES == 0 && i < GROUPS * LANES) of_group(pointers, stand.image, group, p)[stand.part] = total.moments();
  }
}
