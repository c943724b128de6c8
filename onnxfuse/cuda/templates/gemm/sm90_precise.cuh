// The products of sm90.cu where float32 keeps its digits. A warpgroup splits each tile of B in shared memory: its high parts
// take its place, the low ones lie behind the factors. Those that multiply split their rows of A in registers.
//
// The tensor cores add eight terms of some of a tile's columns, FEW, into sums of their own, which are added up in float32
// while they add the next ones.

static_assert(CLUSTER == 1 && B_TRANSPOSED, "the plan knows");

constexpr int PARTS = WIDTH / FEW;                // of a tile's columns
constexpr int UNITS = SLICES * BLOCKS_M * PARTS;  // products of a stage, of three instructions each
static_assert(WIDTH % FEW == 0 && UNITS % 2 == 0, "two sums by turns");

// The same of any number: the greatest ones are cut, and of an infinity and NaN the low part is what they are. Such a sum is
// infinite, or NaN, as it is in float32; but for an infinity times less than 2^-137.
template <int N> DEVICE void split_any(unsigned (&high)[N], unsigned (&low)[N], const unsigned (&whole)[N]) {
  constexpr unsigned INFINITE = 0x7f800000u, ONE = 0x3f800000u, SIGN = 0x80000000u;
  bool great = false;
  UNROLLED for (int i = 0; i < N; ++i) {
    high[i] = (whole[i] + 0x1000u) & ~0x1fffu;
    great |= !(abs(float_of_bits(high[i])) < float_of_bits(INFINITE));
  }
  if (any_of_warp(great)) {
    UNROLLED for (int i = 0; i < N; ++i) {
      const unsigned cut = whole[i] & ~0x1fffu, sign = whole[i] & SIGN;
      if ((high[i] & INFINITE) == INFINITE) high[i] = (whole[i] & INFINITE) == INFINITE ? sign | ONE : cut;
    }
  }
  UNROLLED for (int i = 0; i < N; ++i) low[i] = bits_of_float(minus(float_of_bits(whole[i]), float_of_bits(high[i])));
}

// Four pieces of 16 bytes at a time: each waits for shared memory alone.
DEVICE void split_right(unsigned b) {
  constexpr int PIECE = 128 * 16;  // of all threads
  static_assert(ACCUMULATED * B_BYTES % (4 * PIECE) == 0, "the plan knows");
  const unsigned first = b + thread_index() % 128 * 16;
  _Pragma("unroll 1") for (unsigned at = first; at < first + ACCUMULATED * B_BYTES; at += 4 * PIECE) {
    Chunk<16> piece[4];
    unsigned whole[16], high[16], low[16];
    UNROLLED for (int i = 0; i < 4; ++i) load_shared(piece[i], at + i * PIECE);
    UNROLLED for (int i = 0; i < 16; ++i) whole[i] = piece[i / 4].word[i % 4];
    split_any(high, low, whole);
    UNROLLED for (int i = 0; i < 16; i += 4) {
      const unsigned to = at + i / 4 * PIECE;
      store_shared(to, {high[i], high[i + 1], high[i + 2], high[i + 3]});
      store_shared(to + ACCUMULATED * B_BYTES, {low[i], low[i + 1], low[i + 2], low[i + 3]});
    }
  }
}

template <> DEVICE void compute_factor<SplitFactor>(const SharedMemory& shared, const Operands&, unsigned rank,
                                                    const Parameters& p) {
  State state;
  for (Index number = first_tile(); number < tiles(p); number += tile_stride()) {
    const Steps steps(rank, p);
    for (Index step = 0; step < steps.count; ++step, state.advance()) {
      shared.pipeline.consumer_wait(state, 0);
      split_right(shared.b(state));
      commit_computed(shared, state);
    }
  }
}

// Eight terms of 64 rows of A, of which a warp has sixteen.
struct Left {
  unsigned high[4], low[4];

  DEVICE void load(unsigned a, int slice) {
    const int lane = thread_index() % 32, line = thread_index() / 32 % 4 * 16 + lane % 16;
    unsigned whole[4];
    load_matrices<false>(whole, a + swizzled(line, slice * 2 + lane / 16));
    split_any(high, low, whole);
  }
};

struct Few { float of[FEW / 2]; };

// Where a unit's sums belong: some columns of a block of 64 rows. Slices are the outermost.
DEVICE constexpr int block_of(int unit) { return unit / PARTS % BLOCKS_M; }
DEVICE constexpr int part_of(int unit) { return unit % PARTS; }
DEVICE constexpr int slice_of(int unit) { return unit / PARTS / BLOCKS_M; }

DEVICE void add_up(Accumulators& sums, const Few& few, int unit) {
  UNROLLED for (int i = 0; i < FEW / 2; ++i) sums.of[block_of(unit)][part_of(unit) * (FEW / 2) + i] += few.of[i];
}

// The products of this warpgroup's rows, the `member`th of its team.
template <> DEVICE void multiply<SplitFactor>(Accumulators& sums, const SharedMemory& shared, State& state, int member,
                                              Index steps) {
  UNROLLED for (int block = 0; block < BLOCKS_M; ++block) UNROLLED for (int i = 0; i < WIDTH / 2; ++i)
      sums.of[block][i] = 0.0f;
  wait_for_turn();
  for (Index step = 0; step < steps; ++step) {
    const unsigned a = shared.a(state) + member * BLOCKS_M * 8192;
    const unsigned high = shared.b(state), low = high + ACCUMULATED * B_BYTES;
    shared.pipeline.consumer_wait(state);
    Left left[2];
    Few few[2];
    left[0].load(a, 0);
    UNROLLED for (int unit = 0; unit < UNITS; ++unit) {
      const Left& mine = left[unit / PARTS % 2];
      const int right = part_of(unit) * FEW * ROW_BYTES + slice_of(unit) * 32;
      float (&sum)[FEW / 2] = few[unit % 2].of;
      wgmma_fence();
      wgmma(sum, mine.low, descriptor(high + right, 16, 1024), false);
      wgmma(sum, mine.high, descriptor(low + right, 16, 1024), true);
      wgmma(sum, mine.high, descriptor(high + right, 16, 1024), true);
      wgmma_commit();
      if (part_of(unit) == PARTS - 1 && unit + 1 < UNITS)
        left[(unit + 1) / PARTS % 2].load(a + block_of(unit + 1) * 8192, slice_of(unit + 1));
      if (unit > 0) {
        wgmma_wait<1>();
        add_up(sums, few[(unit + 1) % 2], unit - 1);
      }
    }
    if (TEAMS > 1 && step + 1 == steps) pass_turn();
    wgmma_wait<0>();
    shared.pipeline.consumer_release(state);
    add_up(sums, few[(UNITS - 1) % 2], UNITS - 1);
    state.advance();
  }
}
