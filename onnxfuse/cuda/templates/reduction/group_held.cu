// The kernel of group.cuh, whose formula, operands and accuracy it has, that reads an image once: the blocks of a cluster
// keep it in shared memory.

constexpr int WARPS = THREADS / 32, TEAMS = WARPS > GROUPS ? WARPS / GROUPS : 1;  // warps that share a group

// What a team has found.
struct alignas(16) Part {
  Moments of;
  float count;
};

// All of a block's shared memory: where both kinds were used, the launch would have to ask for more than it tells.
struct Kept {
  Shared<Part, GROUPS * TEAMS> parts;
  Shared<Reduced, GROUPS> finished;
  Shared<Moments, ROWS * PITCH> table;
  Shared<Moving, MOST_HELD> moving;  // [places of a thread, thread], as many as there are
};

DEVICE void hold_norm(const Pointers& pointers, const Parameters& p) {
  const Stand stand(p);
  DYNAMIC_SHARED(Kept, kept, 1);
  Moving* const held = kept->moving.mine() + thread_index();
  auto& parts = kept->parts;
  Found found = {kept->table.mine()};
  const Pointers base = pointers_at(pointers, Outer(stand.image, p.outer_extent), stand.channel, p);
  Still still = {};
  if (stand.count > 0) {
    still = load_still(base, stand.channel, p);
    found.visit_all(base, still, stand, p, [&](Index k, const Moving& moving) { held[k * THREADS] = moving; });
  }
  wait_for_block();

  const int warp = thread_index() / 32, lane = thread_index() % 32;
  for (int i = warp; i < GROUPS * TEAMS; i += WARPS) {
    const Joined mine = found.group(i / TEAMS, i % TEAMS * LANES + lane, TEAMS, places_of(stand.part, p));
    if (lane == 0) parts.mine()[i] = {mine.moments(), mine.count};
  }
  wait_for_peers();
  for (int group = warp; group < GROUPS; group += WARPS) {
    constexpr int ALL = CLUSTER * TEAMS, OF_LANE = (ALL + LANES - 1) / LANES;
    Part of_lane[OF_LANE] = {};
    UNROLLED for (int k = 0; k < OF_LANE; ++k) {
      const int i = lane + k * LANES, at = group * TEAMS + i % TEAMS;
      if (i < ALL) of_lane[k] = CLUSTER > 1 ? parts.of(i / TEAMS, at) : parts.mine()[at];
    }
    const float shift = CLUSTER > 1 ? parts.of(0, group * TEAMS).of.mean : parts.mine()[group * TEAMS].of.mean;
    const Joined total = joined(shift, [&](Joined sum) {
      // What is not there counts for nothing.
      UNROLLED for (int k = 0; k < OF_LANE; ++k) sum.add(of_lane[k].of, of_lane[k].count);
      return sum;
    });
    if (lane == 0) kept->finished.mine()[group] = total.finished();
  }
  wait_for_block();

  if (stand.count > 0) {
    Reduced done[WIDTH] = {};
    UNROLLED for (int w = 0; w < WIDTH; ++w) done[w] = kept->finished.mine()[(stand.column + w) / GROUP];
    for (Index k = 0; k < stand.count; ++k) {
      const Moving moving = held[k * THREADS];
      Result result[WIDTH];
      UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(moving, still, w), done[w]);
      store_all(base, result, Place(stand.first + k * ROWS, p.place_extent), p);
    }
  }
  leave_together();
}
