// The kernel of column.cuh, which says formula, operands and accuracy.

// Where a thread stands: its vectors of the reduced axis are `first`, `first + step`, ...
struct Stand {
  Index place;  // of its block's columns among those of all blocks
  Index part;   // SPLIT: of the reduced axis
  Index first;
  Index column;  // of its vector
  bool live;     // The extent is a multiple of WIDTH: a vector is there as a whole or not at all.

  DEVICE explicit Stand(const Parameters& p) {
    part = SPLIT ? p.places.quotient(block_from_end()) : 0;
    place = SPLIT ? block_from_end() - part * p.places.value : block_from_end() / CLUSTER;
    first = (SPLIT ? part : rank_of_block()) * ROWS + thread_index() / ACROSS;
    const Index outer = p.tiles.quotient(place);
    column = ((place - outer * p.tiles.value) * ACROSS + thread_index() % ACROSS) * WIDTH;
    live = column < p.inner;
  }
  DEVICE Index outer(const Parameters& p) const { return p.tiles.quotient(place); }
  DEVICE bool has(Index r, const Parameters& p) const { return live && r < p.reduced; }
};

DEVICE Index step(const Parameters& p) {
  if constexpr (SPLIT) return ROWS * p.parts;
  else return ROWS * CLUSTER;
}

DEVICE void fetch(Held& held, const Pointers& base, Index r, const Stand& stand, const Parameters& p) {
  load_all(held, base, Reach(r, p.reduced_extent), stand.column, p);
}

DEVICE void give_early(const Held& held, const Pointers& base, const Outer& outer, Index r, Index column,
                       const Reduced (&done)[WIDTH], const Parameters& p) {
  const Reach at(r, p.reduced_extent);
  const Late late = load_late(base, at, column, p);
  Result result[WIDTH];
  UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(held, late, w), done[w]);
  store_early(base, result, outer, at, column, p);
}

// What the blocks that share these columns have found goes to memory, and the last one to come takes it all, always in
// the same order. Return whether this is that one; it then has the totals.
template <class Partial>
DEVICE bool across_blocks(Partial* totals, const Pointers& base, const Stand& stand, const Parameters& p) {
  constexpr int COLUMNS = ACROSS * WIDTH, TEAMS = THREADS > COLUMNS ? THREADS / COLUMNS : 1;
  constexpr int AT_ONCE = 16;  // loads that wait together
  SHARED Shared<Partial, TEAMS * COLUMNS> of_team;
  SHARED Shared<unsigned, 1> before;
  Partial* const all = reinterpret_cast<Partial*>(base.scratch + p.counters) + stand.place * p.parts * COLUMNS;
  for (int c = thread_index(); c < COLUMNS; c += THREADS) all[stand.part * COLUMNS + c] = totals[c];
  publish();
  wait_for_block();
  if (thread_index() == 0) {
    before.mine()[0] = count_round(base.scratch + stand.place, p.parts);
    publish();
  }
  wait_for_block();
  if (before.mine()[0] + 1 != p.parts) return false;
  for (int i = thread_index(); i < TEAMS * COLUMNS; i += THREADS) {
    Partial total = Partial::identity();
    for (Index part = i / COLUMNS; part < p.parts; part += AT_ONCE * TEAMS) {
      Partial found[AT_ONCE];
      UNROLLED for (int k = 0; k < AT_ONCE; ++k) {
        const Index mine = part + k * TEAMS;
        found[k] = mine < p.parts ? all[mine * COLUMNS + i % COLUMNS] : Partial::identity();
      }
      UNROLLED for (int k = 0; k < AT_ONCE; ++k) total.combine(found[k]);
    }
    of_team.mine()[i] = total;
  }
  wait_for_block();
  for (int c = thread_index(); c < COLUMNS; c += THREADS) {
    Partial total = of_team.mine()[c];
    for (int team = 1; team < TEAMS; ++team) total.combine(of_team.mine()[team * COLUMNS + c]);
    totals[c] = total;
  }
  wait_for_block();
  return true;
}

// Combine over all threads that share the vector's columns, and finish: each thread gets the results of its columns.
// Return whether this block has them; SPLIT: the last one to come.
template <class Partial> DEVICE bool across_rows(Partial (&partial)[WIDTH], Reduced (&done)[WIDTH],
                                                 const Pointers& base, const Stand& stand, const Parameters& p) {
  constexpr int SIDE = ACROSS < 32 ? 32 : ACROSS;  // threads after which the columns come again
  constexpr int GROUPS = ACROSS * ROWS / SIDE;
  constexpr int COLUMNS = ACROSS * WIDTH;
  if constexpr (ACROSS < 32) {
    UNROLLED for (int w = 0; w < WIDTH; ++w) partial[w] = across_lanes<32 / ACROSS, ACROSS>(partial[w]);
  }
  if constexpr (GROUPS == 1 && CLUSTER == 1 && !SPLIT) {
    UNROLLED for (int w = 0; w < WIDTH; ++w) partial[w].finish(done[w], p.reduced);
    return true;
  }
  const int thread = thread_index() % ACROSS;
  SHARED Shared<Partial, GROUPS * COLUMNS> of_group;
  SHARED Shared<Partial, COLUMNS> of_block;
  SHARED Shared<Reduced, COLUMNS> finished;
  // Lanes side by side, so that threads side by side write to different banks.
  if (thread_index() % SIDE < ACROSS) {
    UNROLLED for (int w = 0; w < WIDTH; ++w) of_group.mine()[thread_index() / SIDE * COLUMNS + w * ACROSS + thread] =
        partial[w];
  }
  wait_for_block();
  for (int c = thread_index(); c < COLUMNS; c += THREADS) {
    Partial total = of_group.mine()[c];
    for (int g = 1; g < GROUPS; ++g) total.combine(of_group.mine()[g * COLUMNS + c]);
    of_block.mine()[c] = total;
  }
  if constexpr (CLUSTER > 1 || SPLIT) wait_for_peers();
  if constexpr (SPLIT) {
    if (!across_blocks(of_block.mine(), base, stand, p)) return false;
  }
  // Finished once for all threads of a column: a mean is a division, which takes as long as many additions.
  for (int c = thread_index(); c < COLUMNS; c += THREADS) {
    Partial total = CLUSTER > 1 ? of_block.of(0, c) : of_block.mine()[c];
    for (int rank = 1; rank < CLUSTER; ++rank) total.combine(of_block.of(rank, c));
    Reduced mine = {};
    total.finish(mine, p.reduced);
    finished.mine()[c] = mine;
  }
  wait_for_block();
  UNROLLED for (int w = 0; w < WIDTH; ++w) Partial::take(done[w], finished.mine()[w * ACROSS + thread]);
  return true;
}

template <class Partial>
DEVICE void accumulate(Partial (&partial)[WIDTH], const Held& held, const Reduced (&done)[WIDTH], Index r) {
  UNROLLED for (int w = 0; w < WIDTH; ++w) partial[w].accumulate(element(held, Late{}, w), done[w], r);
}

// AHEAD vectors of a thread that walks. WHOLE: all of them are there.
template <bool WHOLE, bool GIVES, class Partial> DEVICE void visit(Partial (&partial)[WIDTH], const Pointers& base,
                                                                   const Outer& outer, Index r, const Stand& stand,
                                                                   const Reduced (&done)[WIDTH], const Parameters& p) {
  Held ahead[AHEAD] = {};
  UNROLLED for (int i = 0; i < AHEAD; ++i) if (WHOLE || stand.has(r + i * step(p), p))
      fetch(ahead[i], base, r + i * step(p), stand, p);
  UNROLLED for (int i = 0; i < AHEAD; ++i) {
    const Index mine = r + i * step(p);
    if (WHOLE || stand.has(mine, p)) {
      accumulate(partial, ahead[i], done, mine);
      if (GIVES) give_early(ahead[i], base, outer, mine, stand.column, done, p);
    }
  }
}

template <int P> DEVICE bool reduce(const Held (&held)[ITEMS ? ITEMS : 1], const Pointers& base, const Outer& outer,
                                    const Stand& stand, const Parameters& p, Reduced (&done)[WIDTH]) {
  if constexpr (P < PHASES) {
    constexpr bool GIVES = EARLY && P + 1 == PHASES;
    Phase<P> partial[WIDTH];
    UNROLLED for (int w = 0; w < WIDTH; ++w) partial[w] = Phase<P>::identity();
    if constexpr (ITEMS > 0) {
      UNROLLED for (int i = 0; i < ITEMS; ++i) {
        const Index r = stand.first + i * step(p);
        if (stand.has(r, p)) {
          accumulate(partial, held[i], done, r);
          if (GIVES) give_early(held[i], base, outer, r, stand.column, done, p);
        }
      }
    } else {
      Index r = stand.first;
      for (; stand.has(r + (AHEAD - 1) * step(p), p); r += AHEAD * step(p))
        visit<true, GIVES>(partial, base, outer, r, stand, done, p);
      if (stand.has(r, p)) visit<false, GIVES>(partial, base, outer, r, stand, done, p);
    }
    return across_rows(partial, done, base, stand, p) && reduce<P + 1>(held, base, outer, stand, p, done);
  }
  return true;
}

DEVICE void give(const Held& held, const Pointers& base, const Outer& outer, Index r, Index column,
                 const Reduced (&done)[WIDTH], const Parameters& p) {
  const Reach at(r, p.reduced_extent);
  const Late late = load_late(base, at, column, p);
  Result result[WIDTH];
  UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(held, late, w), done[w]);
  store_all(base, result, outer, at, column, p);
}

DEVICE void column(const Pointers& pointers, const Parameters& p) {
  const Stand stand(p);
  const Outer outer(stand.outer(p), p.outer_extent);
  const Pointers base = pointers_at(pointers, outer, stand.column, p);

  Held held[ITEMS ? ITEMS : 1] = {};
  UNROLLED for (int i = 0; i < ITEMS; ++i) {
    const Index r = stand.first + i * step(p);
    if (stand.has(r, p)) fetch(held[i], base, r, stand, p);
  }

  Reduced done[WIDTH] = {};
  if (!reduce<0>(held, base, outer, stand, p, done)) return;

  if constexpr (!FULL) {
    // Nothing depends on the place along the reduced axis; nor is there one where it is empty.
    if (thread_index() < ACROSS && rank_of_block() == 0 && stand.live) {
      if (ITEMS == 0 && p.reduced > 0) fetch(held[0], base, 0, stand, p);
      give(held[0], base, outer, 0, stand.column, done, p);
    }
  } else if constexpr (ITEMS > 0) {
    UNROLLED for (int i = 0; i < ITEMS; ++i) {
      const Index r = stand.first + i * step(p);
      if (stand.has(r, p)) give(held[i], base, outer, r, stand.column, done, p);
    }
  } else {
    for (Index r = stand.first; stand.has(r, p); r += step(p)) {
      Held again = {};
      fetch(again, base, r, stand, p);
      give(again, base, outer, r, stand.column, done, p);
    }
  }
  leave_together();
}
