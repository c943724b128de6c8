// What Hopper (sm_90a) adds to sm80.cuh for matrix products, as plain functions over PTX: mbarriers, TMA, warpgroup products
// (wgmma), clusters. A shared-memory address is a 32-bit number here.

#define CLUSTERED_KERNEL(threads, blocks) \
  extern "C" __global__ void __cluster_dims__(blocks, 1, 1) __launch_bounds__(threads, 1)
#define TENSOR_MAPS const __grid_constant__ TensorMaps

// How TMA sees a matrix in global memory; encoded by the driver, never looked into.
struct alignas(64) TensorMap { unsigned long long words[16]; };

extern __shared__ unsigned char dynamic_shared[];

// ---- the two halves of join_stream, for a kernel that lets the next one begin late

DEVICE void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
// The kernel behind may be launched once every block has said so, or has ended.
DEVICE void launch_next_kernel() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// ---- mbarriers: `count` arrivals and all bytes that were announced end a phase

DEVICE void mbarrier_init(unsigned barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// The barriers that this thread has made are there for the whole cluster and for TMA.
DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
DEVICE void mbarrier_arrive_expect(unsigned barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void mbarrier_arrive(unsigned barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// The same address in another block of the cluster.
DEVICE unsigned remote_address(unsigned address, unsigned rank) {
  unsigned there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
DEVICE void mbarrier_arrive_remote(unsigned barrier, unsigned rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(remote_address(barrier, rank)) : "memory");
}
DEVICE void mbarrier_wait(unsigned barrier, unsigned parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "AGAIN:\n\tmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra OVER;\n\tbra AGAIN;\n\tOVER:\n\t}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// ---- TMA; what lies outside of the matrix is read as zero and not written

// A box of the matrix at (column, row), to the same shared address in every block of `blocks` (a bit mask).
template <bool TO_MANY>
DEVICE void tma_load(unsigned to, const TensorMap* map, int column, int row, unsigned barrier, unsigned short blocks) {
  if constexpr (TO_MANY) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
            to),
        "l"(map), "r"(column), "r"(row), "r"(barrier)
        : "memory");
  }
}
// The same of a tensor with three dimensions.
template <bool TO_MANY>
DEVICE void tma_load(unsigned to, const TensorMap* map, int x, int y, int z, unsigned barrier, unsigned short blocks) {
  if constexpr (TO_MANY) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(blocks)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
  }
}
// The same of a tensor with four dimensions.
template <bool TO_MANY> DEVICE void tma_load(unsigned to, const TensorMap* map, int x, int y, int z, int w,
                                             unsigned barrier, unsigned short blocks) {
  if constexpr (TO_MANY) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier), "h"(blocks)
        : "memory");
  } else {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4, %5}], [%6];" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier)
        : "memory");
  }
}
// Of as many places of a window as the map says, from the one that begins at (x, y) of an image on: the element `right`
// and `below` of its first one, some channels of it.
DEVICE void tma_load_im2col(unsigned to, const TensorMap* map, int channel, int x, int y, int image,
                            unsigned short right, unsigned short below, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], {%7, %8};" ::"r"(to),
      "l"(map), "r"(channel), "r"(x), "r"(y), "r"(image), "r"(barrier), "h"(right), "h"(below)
      : "memory");
}
// The same of volumes: `behind` the first layer that the window sees.
DEVICE void tma_load_im2col(unsigned to, const TensorMap* map, int channel, int x, int y, int z, int image,
                            unsigned short right, unsigned short below, unsigned short behind, unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4, %5, %6}], [%7], {%8, %9, %10};" ::"r"(to),
      "l"(map), "r"(channel), "r"(x), "r"(y), "r"(z), "r"(image), "r"(barrier), "h"(right), "h"(below), "h"(behind)
      : "memory");
}
DEVICE void tma_store(const TensorMap* map, int x, int y, int z, unsigned from) {
  asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(map), "r"(x),
               "r"(y), "r"(z), "r"(from)
               : "memory");
}
DEVICE void tma_store(const TensorMap* map, int column, int row, unsigned from) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(map), "r"(column),
               "r"(row), "r"(from)
               : "memory");
}
DEVICE void tma_store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Until at most `GROUPS` of this thread's groups have not yet been read from shared memory.
template <int GROUPS> DEVICE void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(GROUPS) : "memory");
}
// Ordinary stores to shared memory before this are seen by TMA and wgmma after it.
DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
DEVICE void prefetch_tensor_map(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- warpgroups

// A turn is passed from some warpgroups to others: the named barrier `number` waits for all of them.
template <int THREADS_OF_BOTH> DEVICE void named_barrier_sync(int number) {
  asm volatile("bar.sync %0, %1;" ::"r"(number), "n"(THREADS_OF_BOTH) : "memory");
}
template <int THREADS_OF_BOTH> DEVICE void named_barrier_arrive(int number) {
  asm volatile("bar.arrive %0, %1;" ::"r"(number), "n"(THREADS_OF_BOTH) : "memory");
}

template <int REGISTERS> DEVICE void decrease_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
template <int REGISTERS> DEVICE void increase_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS));
}
DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int GROUPS> DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(GROUPS) : "memory");
}
// Of sums and factors in registers, behind the wait for their products: nothing that uses them goes ahead of it.
template <int COUNT> DEVICE void fence_registers(float (&sums)[COUNT][4]) {
  UNROLLED for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(sums[i][0]), "+f"(sums[i][1]), "+f"(sums[i][2]),
                                                        "+f"(sums[i][3])::"memory");
}
template <int COUNT> DEVICE void fence_registers(unsigned (&factors)[COUNT][4]) {
  UNROLLED for (int i = 0; i < COUNT; ++i) asm volatile("" : "+r"(factors[i][0]), "+r"(factors[i][1]),
                                                        "+r"(factors[i][2]), "+r"(factors[i][3])::"memory");
}
DEVICE void load_shared(Chunk<16>& to, unsigned address) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to.word[0]), "=r"(to.word[1]), "=r"(to.word[2]), "=r"(to.word[3])
               : "r"(address)
               : "memory");
}
// Four floats: to the shared memory of another block; and added from one's own.
DEVICE void store_remote(unsigned address, const float* value) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(value[0]), "f"(value[1]),
               "f"(value[2]), "f"(value[3])
               : "memory");
}
DEVICE void load_from_shared(float (&value)[4], unsigned address) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value[0]), "=f"(value[1]), "=f"(value[2]), "=f"(value[3])
               : "r"(address)
               : "memory");
}
DEVICE unsigned short load_shared_half(unsigned address) {
  unsigned short half;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(half) : "r"(address) : "memory");
  return half;
}
DEVICE void store_shared(unsigned address, unsigned short half) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(address), "h"(half) : "memory");
}
DEVICE void store_shared(unsigned address, unsigned word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
