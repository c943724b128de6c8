// The kernel of column.cuh.

// Where a thread stands: its vectors of the reduced axis are `first`, `first + STEP`, ...
constexpr int STEP = ROWS * CLUSTER;

DEVICE void give_early(const Held& held, const Pointers& base, const Outer& outer, Index r, Index column,
                       const Reduced (&done)[WIDTH], const Parameters& p) {
  const Reach at(r, p.reduced_extent);
  const Late late = load_late(base, at, column, p);
  Result result[WIDTH];
  UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(held, late, w), done[w]);
  store_early(base, result, outer, at, column, p);
}

// One vector, or nothing of it where it lies behind the end.
DEVICE bool fetch(Held& held, const Pointers& base, Index r, Index column, bool live, const Parameters& p) {
  if (!live || r >= p.reduced) return false;
  load_all(held, base, Reach(r, p.reduced_extent), column, p);
  return true;
}

// Combine over all threads that share the vector's columns, and finish: each thread gets the results of its lanes.
template <class Partial> DEVICE void across_rows(Partial (&partial)[WIDTH], Reduced (&done)[WIDTH], Index count) {
  constexpr int SIDE = LANES < 32 ? 32 : LANES;  // threads after which the columns come again
  constexpr int GROUPS = LANES * ROWS / SIDE;
  constexpr int COLUMNS = LANES * WIDTH;
  if constexpr (LANES < 32) {
    UNROLLED for (int w = 0; w < WIDTH; ++w) partial[w] = across_lanes<32 / LANES, LANES>(partial[w]);
  }
  if constexpr (GROUPS > 1 || CLUSTER > 1) {
    const int lane = thread_index() % LANES;
    SHARED Shared<Partial, GROUPS * COLUMNS> of_group;
    SHARED Shared<Partial, COLUMNS> of_block;
    // Lanes side by side, so that threads side by side write to different banks.
    if (thread_index() % SIDE < LANES) {
      UNROLLED for (int w = 0; w < WIDTH; ++w)
        of_group.mine()[thread_index() / SIDE * COLUMNS + w * LANES + lane] = partial[w];
    }
    wait_for_block();
    for (int c = thread_index(); c < COLUMNS; c += THREADS) {
      Partial total = of_group.mine()[c];
      for (int g = 1; g < GROUPS; ++g) total.combine(of_group.mine()[g * COLUMNS + c]);
      of_block.mine()[c] = total;
    }
    wait_for_peers();
    if constexpr (CLUSTER > 1) {
      SHARED Shared<Partial, COLUMNS> of_cluster;
      for (int c = thread_index(); c < COLUMNS; c += THREADS) {
        Partial total = of_block.of(0, c);
        for (int rank = 1; rank < CLUSTER; ++rank) total.combine(of_block.of(rank, c));
        of_cluster.mine()[c] = total;
      }
      wait_for_block();
      UNROLLED for (int w = 0; w < WIDTH; ++w) partial[w] = of_cluster.mine()[w * LANES + lane];
    } else {
      UNROLLED for (int w = 0; w < WIDTH; ++w) partial[w] = of_block.mine()[w * LANES + lane];
    }
  }
  UNROLLED for (int w = 0; w < WIDTH; ++w) partial[w].finish(done[w], count);
}

template <class Partial>
DEVICE void accumulate(Partial (&partial)[WIDTH], const Held& held, const Reduced (&done)[WIDTH], Index r) {
  UNROLLED for (int w = 0; w < WIDTH; ++w) partial[w].accumulate(element(held, Late{}, w), done[w], r);
}

template <int P> DEVICE void reduce(const Held (&held)[ITEMS ? ITEMS : 1], const Pointers& base, const Outer& outer,
                                    Index first, Index column, bool live, const Parameters& p,
                                    Reduced (&done)[WIDTH]) {
  if constexpr (P < PHASES) {
    constexpr bool GIVES = EARLY && P + 1 == PHASES;
    Phase<P> partial[WIDTH];
    UNROLLED for (int w = 0; w < WIDTH; ++w) partial[w] = Phase<P>::identity();
    if constexpr (ITEMS > 0) {
      UNROLLED for (int i = 0; i < ITEMS; ++i) {
        if (live && first + i * STEP < p.reduced) {
          accumulate(partial, held[i], done, first + i * STEP);
          if (GIVES) give_early(held[i], base, outer, first + i * STEP, column, done, p);
        }
      }
    } else {
      for (Index r = first; r < p.reduced; r += AHEAD * STEP) {
        Held ahead[AHEAD] = {};
        UNROLLED for (int i = 0; i < AHEAD; ++i) fetch(ahead[i], base, r + i * STEP, column, live, p);
        UNROLLED for (int i = 0; i < AHEAD; ++i) {
          if (live && r + i * STEP < p.reduced) {
            accumulate(partial, ahead[i], done, r + i * STEP);
            if (GIVES) give_early(ahead[i], base, outer, r + i * STEP, column, done, p);
          }
        }
      }
    }
    across_rows(partial, done, p.reduced);
    reduce<P + 1>(held, base, outer, first, column, live, p, done);
  }
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
  const Index place = block_index() / CLUSTER;
  const Index outer_index = p.tiles.quotient(place);
  const Index column = ((place - outer_index * p.tiles.value) * LANES + thread_index() % LANES) * WIDTH;
  // The extent is a multiple of WIDTH: a vector is there as a whole or not at all.
  const bool live = column < p.inner;
  const Index first = rank_of_block() * ROWS + thread_index() / LANES;
  const Outer outer(outer_index, p.outer_extent);
  const Pointers base = pointers_at(pointers, outer, column, p);

  Held held[ITEMS ? ITEMS : 1] = {};
  UNROLLED for (int i = 0; i < ITEMS; ++i) fetch(held[i], base, first + i * STEP, column, live, p);

  Reduced done[WIDTH] = {};
  reduce<0>(held, base, outer, first, column, live, p, done);

  if constexpr (!FULL) {
    // Nothing depends on the place along the reduced axis; nor is there one where it is empty.
    if (first == 0 && live) {
      if (ITEMS == 0) fetch(held[0], base, 0, column, live, p);
      give(held[0], base, outer, 0, column, done, p);
    }
  } else if constexpr (ITEMS > 0) {
    UNROLLED for (int i = 0; i < ITEMS; ++i) {
      if (live && first + i * STEP < p.reduced) give(held[i], base, outer, first + i * STEP, column, done, p);
    }
  } else {
    for (Index r = first; r < p.reduced; r += STEP) {
      Held again = {};
      if (fetch(again, base, r, column, live, p)) give(again, base, outer, r, column, done, p);
    }
  }
  leave_together();
}
