// How a warp of the kernel for few rows fetches its strip of B: by copies of 16 bytes that run beside it.

using Weights = Operands;

DEVICE SharedAddress rings() { return shared_address(shared_floats); }

struct Fetching {
  SharedAddress ring;
  const Factor* from;  // this lane's first piece
  Index term, end;     // of that piece
  Index pitch;
  int columns;         // that there are from the lane's first one on

  DEVICE Fetching(const Weights& weights, int product, Index column, Index first, Index end, const Parameters& p)
      : ring(rings() + thread_index() / 32 * (STAGES * STAGE_BYTES)), term(first), end(end),
        pitch(B_TRANSPOSED ? p.k : p.n) {
    const int lane = thread_index() % 32, line = lane / PIECES, piece = lane % PIECES * 8;
    const int right = B_TRANSPOSED ? line : piece;
    term += B_TRANSPOSED ? piece : line;
    columns = (int)(p.n - column) - right;
    from = right_factor(weights, product) + (B_TRANSPOSED ? (unsigned long long)(column + right) * pitch + term
                                                          : (unsigned long long)term * pitch + column + right);
  }
  DEVICE void fetch(int stage) {
    const int lane = thread_index() % 32;
    UNROLLED for (int turn = 0; turn < STAGE_BYTES / 512; ++turn) {
      const int next = turn * (32 / PIECES), line = next + lane / PIECES;
      const bool there = B_TRANSPOSED ? term < end && next < columns : term + next < end && columns > 0;
      copy_beside<16>(ring + (stage * STAGE_BYTES + place(line, lane % PIECES)),
                      from + (unsigned long long)next * pitch, there);
    }
    term += STEP_TERMS;
    from += B_TRANSPOSED ? STEP_TERMS : (unsigned long long)STEP_TERMS * pitch;
    close_group_of_copies();
  }
  // Until a stage has arrived, round `round` of the ring.
  DEVICE void wait(int stage, unsigned round) {
    wait_for_copies<STAGES - 1>();
    wait_for_warp();
  }
  DEVICE void end_all() { wait_for_copies<0>(); }
};
