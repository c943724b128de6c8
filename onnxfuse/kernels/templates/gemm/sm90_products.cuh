// The products of sm90.cu: the tensor cores add up all terms.

DEVICE void multiply_stage(Accumulators& sums, unsigned a, unsigned b, bool begun) {
  UNROLLED for (int k = 0; k < ROW_BYTES / 32; ++k) {
    const unsigned long long right = B_TRANSPOSED ? operand(b + k * 32, 16, 1024) : operand(b + k * 2048, 8192, 1024);
    UNROLLED for (int block = 0; block < BLOCKS_M; ++block)
      warpgroup_product(sums.of[block], operand(a + block * 8192 + k * 32, 16, 1024), right, begun || k > 0);
  }
}

// The products of this warpgroup's rows, the `member`th of its team.
DEVICE void multiply(Accumulators& sums, const Shared& shared, Turn& turn, int member, Index steps) {
  int before = 0;
  if constexpr (TEAMS > 1) wait_for_turn<CONSUMERS * 128>(1 + this_team());
  for (Index step = 0; step < steps; ++step) {
    const unsigned a = shared.ring + turn.stage * STAGE_BYTES;
    wait_for_stage(shared, turn);
    products_begin();
    multiply_stage(sums, a + member * BLOCKS_M * 8192, a + A_BYTES, step > 0);
    close_group_of_products();
    if (step > 0) {
      wait_for_products<1>();
      release(shared, before);
    }
    before = turn.stage;
    turn.next();
  }
  // Teams fetch from the ring strictly in turns: a barrier's parity tells apart two rounds, not three.
  if constexpr (TEAMS > 1) pass_turn_to<CONSUMERS * 128>(2 - this_team());
  wait_for_products<0>();
  release(shared, before);
}
