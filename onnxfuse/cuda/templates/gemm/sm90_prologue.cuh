// The left factor of the kernel of sm90.cu where a functor makes it (PROLOGUE): a warpgroup of its own computes it stage by
// stage, as far ahead of the products as there are stages, from what TMA has loaded there or from its own copies.

// What is needed to compute the rows of a tile.
struct LeftRows {
  Prologue from;
  Index row, term, m, k;  // the first ones

  DEVICE LeftRows(const Operands& operands, Index row, Index step, const Parameters& p)
      : from(operands, p, 0, p.k), row(row), term(step * TILE_K), m(p.m), k(p.k) {}
};

// A thread computes 16 bytes of every sixteenth row. The vectors for them it loads a step ahead: from global memory they
// take longer than all else.
constexpr int TURNS = TILE_M / 16;
DEVICE int first_piece() { return swizzled(thread_index() % 128 / 8, thread_index() % 8); }
template <class From> struct Ahead {
  typename From::Columns columns;
  typename From::Rows rows[TURNS];
  int there;  // terms from this thread's on

  DEVICE void load(const From& from, const LeftRows& left, Index step) {
    load_rows(from, left, step);
    columns = from.columns(left.term + step * TILE_K + thread_index() % 8 * From::W, there);
  }
  DEVICE void load_rows(const From& from, const LeftRows& left, Index step) {
    const Index term = left.term + step * TILE_K + thread_index() % 8 * From::W,
                row = left.row + thread_index() % 128 / 8;
    there = term < left.k ? (int)(left.k - term) : 0;
    UNROLLED for (int turn = 0; turn < TURNS; ++turn) rows[turn] =
        from.rows(row + turn * 16, row + turn * 16 < left.m, term, there);
  }
  DEVICE void compute(unsigned a) const {
    const int down = thread_index() % 128 / 8;
    const unsigned place = a + first_piece();
    UNROLLED for (int first = 0; first < TURNS; first += 4) {
      typename From::Cells cells[4];
      UNROLLED for (int i = 0; i < 4; ++i) {
        const unsigned there = place + (first + i) * 16 * ROW_BYTES;
        if (down + (first + i) * 16 < LEFT_ROWS) cells[i] = From::take(there, there + FACTORS_BYTES, A_BYTES);
      }
      UNROLLED for (int i = 0; i < 4; ++i) {
        if (down + (first + i) * 16 >= LEFT_ROWS) break;
        unsigned word[4];
        From::compute(word, cells[i], columns, rows[first + i], there);
        store_shared(place + (first + i) * 16 * ROW_BYTES, word);
      }
    }
  }
};

// From matrices that TMA has loaded, the first one where the left factor will be.
template <class From>
DEVICE void compute_fetched(const SharedMemory& shared, const Operands& operands, unsigned rank, const Parameters& p) {
  State state;
  for (Index number = first_tile(); number < tiles(p); number += tile_stride()) {
    const Steps steps(rank, p);
    const LeftRows left(operands, Tile(number, rank, p).row, steps.first, p);
    Ahead<From> ahead;
    ahead.load(left.from, left, 0);
    for (Index step = 0; step < steps.count; ++step, state.advance()) {
      shared.pipeline.consumer_wait(state, 0);
      ahead.compute(shared.a(state));
      if (step + 1 < steps.count) ahead.load(left.from, left, step + 1);
      commit_computed(shared, state);
    }
  }
}

// Of matrices whose terms lie side by side each thread copies its own pieces, whichever of them they are in: COPIES stages
// are on their way while it computes one.

// What is the same for all rows of 16 bytes of terms, in shared memory: which of the matrices they are in is a comparison
// with each, and the vectors come too late from global memory.
template <class From> struct alignas(16) Piece {
  typename From::Columns columns;
  typename From::Run run;
};
template <class From> DEVICE Piece<From>* pieces(const SharedMemory& shared) {
  static_assert(sizeof(Piece<From>) <= PIECE_BYTES, "the plan counts as the kernel does");
  return (Piece<From>*)(dynamic_shared + (shared.pieces - shared_address(dynamic_shared)));
}
template <class From> DEVICE void find_pieces(Piece<From>* to, const From& from, const Parameters& p) {
  for (Index number = thread_index() % 128; number < p.steps * 8; number += 128) {
    const Index term = number * From::W;
    to[number].columns = from.columns(term, term < p.k ? (int)(p.k - term) : 0);
    to[number].run = from.run(term);
  }
}

template <class Run> DEVICE void copy_pieces(unsigned a, const Run& run, Index term, Index row, const Parameters& p) {
  const int down = thread_index() % 128 / 8;
  const unsigned place = a + first_piece();
  row += down;
  UNROLLED for (int turn = 0; turn < TURNS; ++turn) {
    if (down + turn * 16 >= LEFT_ROWS) break;
    const bool there = term < p.k && row + turn * 16 < p.m;
    copy_async<16>(place + turn * 16 * ROW_BYTES, there ? run.at(row + turn * 16) : run.from, there);
  }
}
template <class From>
DEVICE void compute_joined(const SharedMemory& shared, const Operands& operands, unsigned rank, const Parameters& p) {
  const Steps steps(rank, p);
  Course here(rank, p), ahead = here;
  LeftRows left(operands, here.tile.row, steps.first, p);
  Piece<From>* const mine = pieces<From>(shared) + thread_index() % 8;
  const auto copy = [&](const auto& run_of) {
    if (ahead.goes_on(p)) {
      const Index step = steps.first + ahead.step;
      shared.pipeline.producer_acquire(ahead.state);
      copy_pieces(shared.a(ahead.state), run_of(step), step * TILE_K + thread_index() % 8 * From::W, ahead.tile.row, p);
      ahead.next(steps, rank, p);
    }
    commit_copies();
  };
  _Pragma("unroll 1") for (int stage = 0; stage < COPIES; ++stage)
      copy([&](Index step) { return left.from.run(step * TILE_K + thread_index() % 8 * From::W); });
  find_pieces(pieces<From>(shared), left.from, p);
  named_barrier_sync<WARPGROUP>(3);
  Ahead<From> vectors;
  if (here.goes_on(p)) vectors.load_rows(left.from, left, 0);
  while (here.goes_on(p)) {
    vectors.columns = mine[(steps.first + here.step) * 8].columns;
    wait_for_copies<COPIES - 1>();
    vectors.compute(shared.a(here.state));
    commit_computed(shared, here.state);
    here.next(steps, rank, p);
    if (here.goes_on(p)) {
      left.row = here.tile.row;
      vectors.load_rows(left.from, left, here.step);
    }
    copy([&](Index step) { return mine[step * 8].run; });
  }
}

template <class From>
DEVICE void compute_factor(const SharedMemory& shared, const Operands& operands, unsigned rank, const Parameters& p) {
  if constexpr (FETCHED_LEFT > 0) compute_fetched<From>(shared, operands, rank, p);
  else compute_joined<From>(shared, operands, rank, p);
}
