// What Hopper (sm_90a) adds to sm80.cuh and its copy engine for matrix products, as plain functions over PTX: warpgroup
// products, clusters. A shared-memory address is a 32-bit number here.

#define CLUSTERED_KERNEL(threads, blocks) \
  extern "C" __global__ void __cluster_dims__(blocks, 1, 1) __launch_bounds__(threads, 1)

extern __shared__ unsigned char dynamic_shared[];

// ---- the two halves of join_stream, for a kernel that lets the next one begin late

DEVICE void wait_for_kernel_ahead() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The kernel behind may be launched once every block has said so, or has ended.
DEVICE void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- clusters

DEVICE unsigned rank_in_cluster() {
  unsigned rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
DEVICE void wait_for_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// ---- warpgroups

// A turn is passed from some warpgroups to others: the barrier `number` waits for all of them.
template <int THREADS_OF_BOTH> DEVICE void wait_for_turn(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS_OF_BOTH) : "memory");
}
template <int THREADS_OF_BOTH> DEVICE void pass_turn_to(int number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(THREADS_OF_BOTH) : "memory");
}

template <int REGISTERS> DEVICE void give_registers_back() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void close_group_of_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int GROUPS> DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}
// Of sums and factors in registers, behind the wait for their products: nothing that uses them goes ahead of it.
template <int COUNT> DEVICE void settle(float (&sums)[COUNT][4]) {
  UNROLLED for (int i = 0; i < COUNT; ++i)
    asm volatile("" : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]), "+f"(sums[i][3])::"memory");
}
template <int COUNT> DEVICE void settle(unsigned (&factors)[COUNT][4]) {
  UNROLLED for (int i = 0; i < COUNT; ++i)
    asm volatile("" : "+r"(factors[i][0]), "+r"(factors[i][1]), "+r"(factors[i][2]), "+r"(factors[i][3])::"memory");
}
// An operand in shared memory with rows of 128 bytes, swizzled as the copy engine writes them. `leading` and `stride`:
// bytes between its blocks of 64 elements along the rows, and between groups of eight rows.
DEVICE unsigned long long operand(unsigned address, unsigned leading, unsigned stride) {
  return (unsigned long long)((address & 0x3ffff) >> 4) | (unsigned long long)(leading >> 4) << 16 |
         (unsigned long long)(stride >> 4) << 32 | 1ull << 62;
}
DEVICE void load_shared(Chunk<16>& to, unsigned address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
               : "r"(address)
               : "memory");
}
// Four floats: to the shared memory of another block; and added from one's own.
DEVICE void store_there(unsigned address, const float* value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value[0]), "f"(value[1]),
               "f"(value[2]), "f"(value[3])
               : "memory");
}
DEVICE void add_shared(float* sum, unsigned address) {
  float value[4];
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "r"(address)
               : "memory");
  UNROLLED for (int i = 0; i < 4; ++i) sum[i] += value[i];
}
DEVICE void store_shared(unsigned address, unsigned word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
