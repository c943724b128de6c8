// A multistage pipeline of copies that run beside the threads (cp.async, sm_80 and later): a ring of STAGES in shared
// memory, which the threads of a Scope, a warp or a block, fill together, ahead of the products that they compute from it.
//
//   Pipeline::producer_acquire(producer);  // the stage may be filled: it has been read by all threads
//   ...                                    // copies
//   Pipeline::producer_commit();           // they are one group: one for each step, also one without a copy
//   Pipeline::consumer_wait(consumer);     // the stage has been filled by all threads
//   ...                                    // products
//   Pipeline::consumer_release(consumer);  // this thread has read the stage
//
// The face is that of pipeline.cuh, whose copies are TMA's. Groups arrive in order, and are counted: when a stage is
// waited for, IN_FLIGHT groups have been committed, and its own is the oldest. With STAGES - 1 of them a stage is filled again
// after the wait for the next one, which all threads pass together: that is one barrier for each step, and releasing needs
// no other. With STAGES of them it is filled again before that wait, and releasing is a barrier of its own.

// Where a producer or a consumer stands in the ring. It needs no phase.
template <int STAGES> struct AsyncState {
  int stage = 0;

  DEVICE void advance() { stage = stage == STAGES - 1 ? 0 : stage + 1; }
  // The stage that was read before: the next to be filled, where all others are filled ahead.
  DEVICE int previous() const { return stage == 0 ? STAGES - 1 : stage - 1; }
};

struct WarpScope {
  static DEVICE void sync() { wait_for_warp(); }
};
struct BlockScope {
  static DEVICE void sync() { wait_for_block(); }
};

template <class Scope, int STAGES, int IN_FLIGHT = STAGES - 1> struct AsyncPipeline {
  static_assert(IN_FLIGHT == STAGES || IN_FLIGHT == STAGES - 1, "all stages, or all but the one that was read last");
  using State = AsyncState<STAGES>;

  static DEVICE void producer_acquire(const State& = {}) {}  // a barrier of the consumers says so
  static DEVICE void producer_commit() { commit_copies(); }
  // This thread's own copies have arrived: it may read those before the others' have.
  static DEVICE void own_wait(const State& = {}) { wait_for_copies<IN_FLIGHT - 1>(); }
  static DEVICE void consumer_wait(const State& state = {}) {
    own_wait(state);
    Scope::sync();
  }
  static DEVICE void consumer_release(const State& = {}) {
    if constexpr (IN_FLIGHT == STAGES) Scope::sync();
  }
  // All copies of this thread have arrived: the ring's memory may serve for something else after the next barrier.
  static DEVICE void drain() { wait_for_copies<0>(); }
};
