// The ring of stages between the producer and the consumers of a warp-specialized kernel: a stage is full once what the
// producer announced has come, and empty once every consumer has released it. Over TMA and mbarriers (sm_90).
//
//   PipelineState<STAGES> state;                      // of each side its own
//   producer:  for (...; state.advance()) { pipeline.producer_acquire(state); pipeline.producer_expect(state, BYTES);
//                                           tma_load(..., pipeline.full(state)); }
//   consumer:  for (...; state.advance()) { pipeline.consumer_wait(state); ...; pipeline.consumer_release(state); }
//
// Bauer, Cook and Khailany, CudaDMA: optimizing GPU memory bandwidth via warp specialization (2011); the words are those of
// CUTLASS (PipelineTmaAsync, 2023).

// Which stage is next. The phase flips with each round of the ring: a barrier's parity tells apart two rounds, not three.
template <int STAGES> struct PipelineState {
  int stage = 0;
  unsigned phase = 0;

  DEVICE void advance() {
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
  template <class Count> DEVICE void advance(Count by) {
    const Count sum = stage + by;
    phase ^= (sum / STAGES) & 1;
    stage = sum % STAGES;
  }
};

// A stage fills in one part or two (PARTS), each with a barrier of its own. Blocks of a CLUSTER load into each other's stages.
template <int STAGES, int PARTS = 1, int CLUSTER = 1> struct TmaPipeline {
  using State = PipelineState<STAGES>;
  static constexpr int BARRIER_BYTES = (PARTS + 1) * STAGES * 8;

  unsigned barriers;  // in shared memory

  DEVICE unsigned barrier(int row, int stage) const { return barriers + (row * STAGES + stage) * 8; }
  DEVICE unsigned full(const State& at, int part = 0) const { return barrier(part, at.stage); }
  DEVICE unsigned empty(const State& at) const { return barrier(PARTS, at.stage); }

  // By one thread, before fence_mbarrier_init: how many warps, of all blocks of the cluster, release a stage, and how many
  // arrivals fill its second part. One thread announces what fills the first one.
  DEVICE void init(int consumer_warps, int second_part = 1) const {
    for (int stage = 0; stage < STAGES; ++stage) {
      mbarrier_init(barrier(0, stage), 1);
      if constexpr (PARTS > 1) mbarrier_init(barrier(1, stage), second_part);
      mbarrier_init(barrier(PARTS, stage), consumer_warps);
    }
  }

  // Until the consumers have released what the stage held a round ago.
  DEVICE void producer_acquire(const State& at) const { mbarrier_wait(empty(at), at.phase ^ 1); }
  // This many bytes will come by TMA. Their arrival is the commit.
  DEVICE void producer_expect(const State& at, unsigned bytes, int part = 0) const {
    mbarrier_arrive_expect(full(at, part), bytes);
  }
  // What a thread has stored itself is there.
  DEVICE void producer_commit(const State& at, int part = 0) const { mbarrier_arrive(full(at, part)); }

  DEVICE void consumer_wait(const State& at, int part) const { mbarrier_wait(full(at, part), at.phase); }
  DEVICE void consumer_wait(const State& at) const {
    UNROLLED for (int part = 0; part < PARTS; ++part) consumer_wait(at, part);
  }
  // The lanes of this warp, which are together, have read the stage: for every block that may load into it.
  DEVICE void consumer_release(const State& at) const {
    const unsigned lane = thread_index() % 32;
    if constexpr (CLUSTER > 1) {
      if (lane < CLUSTER) mbarrier_arrive_remote(empty(at), lane);
    } else {
      if (lane == 0) mbarrier_arrive(empty(at));
    }
  }
};
