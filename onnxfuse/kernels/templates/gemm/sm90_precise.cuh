// The products of sm90.cu where float32 keeps its digits. A warpgroup splits each tile of B in shared memory: its high parts
// take its place, the low ones lie behind the factors. Those that multiply split their rows of A in registers. The 32 terms
// of a stage are added on the tensor cores, and their sum is added up in float32: of two warpgroups one does while the other
// one's products run.

static_assert(TEAMS == 1 && CLUSTER == 1 && B_TRANSPOSED, "the plan knows");

// The same of any number: the greatest ones are cut, and of an infinity and NaN the low part is what they are. Such a sum is
// infinite, or NaN, as it is in float32; but for an infinity times less than 2^-137.
DEVICE void split_any(unsigned& high, unsigned& low, unsigned whole) {
  constexpr unsigned INFINITE = 0x7f800000u, ONE = 0x3f800000u, SIGN = 0x80000000u;
  const unsigned rounded = (whole + 0x1000u) & ~0x1fffu;
  const unsigned great = (whole & INFINITE) == INFINITE ? (whole & SIGN) | ONE : whole & ~0x1fffu;
  high = (rounded & INFINITE) == INFINITE ? great : rounded;
  low = bits_of_float(minus(float_of_bits(whole), float_of_bits(high)));
}

DEVICE void split_right(unsigned b) {
  _Pragma("unroll 4") for (int place = thread_index() % 128 * 16; place < ACCUMULATED * B_BYTES; place += 128 * 16) {
    Chunk<16> whole;
    load_shared(whole, b + place);
    unsigned high[4], low[4];
    UNROLLED for (int i = 0; i < 4; ++i) split_any(high[i], low[i], whole.word[i]);
    store_shared(b + place, high);
    store_shared(b + ACCUMULATED * B_BYTES + place, low);
  }
}

template <>
DEVICE void compute_all<SplitFactor>(const Shared& shared, const Operands&, unsigned rank, const Parameters& p) {
  Turn turn;
  for (Index number = first_tile(); number < tiles(p); number += tile_stride()) {
    const Steps steps(rank, p);
    for (Index step = 0; step < steps.count; ++step, turn.next()) {
      barrier_wait(shared.full + turn.stage * 8, turn.parity);
      split_right(shared.ring + turn.stage * STAGE_BYTES + A_BYTES);
      show_to_copy_engine();
      wait_for_warp();
      if (thread_index() % 32 == 0) barrier_arrive(shared.made + turn.stage * 8);
    }
  }
}

struct Left {
  unsigned high[SLICES][4], low[SLICES][4];

  // 64 rows of A, of which a warp has sixteen.
  DEVICE Left(unsigned a) {
    const int lane = thread_index() % 32, line = thread_index() / 32 % 4 * 16 + lane % 16;
    UNROLLED for (int k = 0; k < SLICES; ++k) {
      unsigned whole[4];
      load_blocks(whole, a + line * ROW_BYTES + ((k * 2 + lane / 16 ^ line % 8) << 4));
      UNROLLED for (int i = 0; i < 4; ++i) split_any(high[k][i], low[k][i], whole[i]);
    }
  }
};

// The products of this warpgroup's rows, the `member`th of its team.
template <>
DEVICE void multiply<SplitFactor>(Accumulators& sums, const Shared& shared, Turn& turn, int member, Index steps) {
  UNROLLED for (int block = 0; block < BLOCKS_M; ++block)
    UNROLLED for (int i = 0; i < WIDTH / 2; ++i) sums.of[block][i] = 0.0f;
  for (Index step = 0; step < steps; ++step) {
    const unsigned a = shared.ring + turn.stage * STAGE_BYTES, high = a + A_BYTES, low = high + ACCUMULATED * B_BYTES;
    wait_for_stage(shared, turn);
    UNROLLED for (int block = 0; block < BLOCKS_M; ++block) {
      const Left left(a + (member * BLOCKS_M + block) * 8192);
      float few[WIDTH / 2];
      products_begin();
      UNROLLED for (int k = 0; k < SLICES; ++k)
        warpgroup_product(few, left.low[k], operand(high + k * 32, 16, 1024), k > 0);
      UNROLLED for (int k = 0; k < SLICES; ++k)
        warpgroup_product(few, left.high[k], operand(low + k * 32, 16, 1024), true);
      UNROLLED for (int k = 0; k < SLICES; ++k)
        warpgroup_product(few, left.high[k], operand(high + k * 32, 16, 1024), true);
      close_group_of_products();
      wait_for_products<0>();
      if (block == BLOCKS_M - 1) release(shared, turn.stage);
      UNROLLED for (int i = 0; i < WIDTH / 2; ++i) sums.of[block][i] += few[i];
    }
    turn.next();
  }
}
