// Memory that the threads of a block share, and on Hopper the blocks of a cluster: each can read what the others have.
// tests/emulator/host.cuh is the same list for the CPU.

#define CLUSTER_KERNEL(blocks, ...) \
  extern "C" __global__ void __cluster_dims__(blocks, 1, 1) __launch_bounds__(__VA_ARGS__)

DEVICE unsigned cluster_rank() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all blocks of the cluster have come here, and what they wrote to shared memory is there to read.
DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// What blocks send to one another is counted where it arrives: a phase ends once it was announced and all of its bytes have
// come. Whoever waits for the end of a phase, the first one is 0, may then read them.
struct Arrivals {
  unsigned long long word;

  DEVICE unsigned address() { return (unsigned)__cvta_generic_to_shared(&word); }
  // By one thread, and then `cluster_sync` by all.
  DEVICE void begin() {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(address())
                 : "memory");
  }
  // By one thread, after the phase before has ended.
  DEVICE void announce(unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
  }
  DEVICE void wait_for(unsigned phase) {
    asm volatile(
        "{\n\t.reg .pred done;\n\t"
        "AGAIN:\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
        "@!done bra AGAIN;\n\t}" ::"r"(address()),
        "r"(phase % 2)
        : "memory");
  }
};

template <class T, int N> struct Shared {
  T item[N];
  DEVICE T* mine() { return item; }
  // What the block of this rank has at `i`.
  DEVICE T of(unsigned rank, int i) {
    unsigned long long there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"((unsigned long long)&item[i]), "r"(rank));
    return *(const T*)there;
  }
  // Writes `i` of the block of this rank, 16 bytes, which its `arrivals` count.
  template <int M> DEVICE void send(unsigned rank, int i, const T& value, Shared<Arrivals, M>& arrivals, int which) {
    static_assert(sizeof(T) == 16, "sent at once");
    unsigned there, counted;
    asm("mapa.shared::cluster.u32 %0, %1, %2;"
        : "=r"(there)
        : "r"((unsigned)__cvta_generic_to_shared(&item[i])), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(counted) : "r"(arrivals.item[which].address()), "r"(rank));
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
        "r"(value.word[0]), "r"(value.word[1]), "r"(value.word[2]), "r"(value.word[3]), "r"(counted)
        : "memory");
  }
};
