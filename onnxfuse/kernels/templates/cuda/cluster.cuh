// Memory that the threads of a block share, and on Hopper the blocks of a cluster: each can read what the others have.
// tests/kernels/host.cuh is the same list for the CPU.

#define CLUSTER_KERNEL(blocks, ...) \
  extern "C" __global__ void __cluster_dims__(blocks, 1, 1) __launch_bounds__(__VA_ARGS__)

DEVICE unsigned block_of_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of all blocks of the cluster have come here, and what they wrote to shared memory is there to read. The
// two halves of that, between which a thread does what others need not wait for.
DEVICE void arrive_at_blocks() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void wait_for_arrived_blocks() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
DEVICE void wait_for_blocks() {
  arrive_at_blocks();
  wait_for_arrived_blocks();
}

template <class T, int N> struct Shared {
  T item[N];
  DEVICE T* mine() { return item; }
  // What the block of this rank has at `i`.
  DEVICE T of(unsigned rank, int i) {
    unsigned long long there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"((unsigned long long)&item[i]), "r"(rank));
    return *(const T*)there;
  }
  // Where the block of this rank has all of it, to be written.
  DEVICE T* in(unsigned rank) {
    unsigned long long there;
    asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"((unsigned long long)item), "r"(rank));
    return (T*)there;
  }
};
