// What only the GPU can do, behind plain functions: half-precision conversion in PTX (so that no CUDA header is
// needed), bit casts, warp exchange, the block's barrier. tests/emulator/host.cuh is the same list for the CPU.

struct f16;
struct bf16;

#define DEVICE __device__ __forceinline__
#define KERNEL(...) extern "C" __global__ void __launch_bounds__(__VA_ARGS__)
#define PARAMETERS const __grid_constant__ Parameters
#define SHARED __shared__
#define DYNAMIC_SHARED_AT(boundary, type, name, count) \
  extern __shared__ __align__(boundary)                \
  type name[]
#define DYNAMIC_SHARED(type, name, count) DYNAMIC_SHARED_AT(16, type, name, count)
// The same where blocks of a cluster each have their own, of which no other one reads.
#define OWN_DYNAMIC_SHARED(type, name, count) DYNAMIC_SHARED(type, name, count)
#define UNROLLED _Pragma("unroll")

// What every kernel calls before it touches the tensors. From compute capability 9.0 the stream launches it while the
// kernel ahead still runs: this waits for that one's end. The last blocks, as many as a GPU holds at a time, let the
// kernel behind be launched likewise. Told by every block that there may be, it would take their places: RoPE by 32768
// blocks 40.5 us, told by the last ones 33.2, launched the usual way 33.8; each of 23 kernels gains 0.2 to 0.8 us
// (H200, 2026-11).
constexpr unsigned LAST_BLOCKS = 4224;
DEVICE void join_stream() {
#if __CUDA_ARCH__ >= 900
  if (blockIdx.x + LAST_BLOCKS >= gridDim.x) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Before join_stream, while the kernel ahead ends: all blocks together bring memory to the L2 cache, weights above all. What
// that kernel still writes there is seen: no other cache is asked for it yet. DenseNet-121, 32 images, 1161 us, without
// 1176 (H200, 2026-11).
DEVICE void bring_near(const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  for (unsigned at = (threadIdx.x * gridDim.x + blockIdx.x) * 128; at < bytes; at += blockDim.x * gridDim.x * 128)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global((const char*)from + at)) : "memory");
#endif
}
// The same by this thread alone, of memory on a boundary of 16 bytes.
DEVICE void bring_run_near(const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes)
               : "memory");
#endif
}
DEVICE unsigned block_index() { return blockIdx.x; }
DEVICE unsigned last_block() { return gridDim.x - 1; }
// By which a kernel that moves data walks from the end: what the one ahead of it, a product mostly, has written last is
// still in the L2 cache, and what this one writes last is where the next product begins. MobileNetV2, 32 images, 498 us,
// from the front 512 (H100, 2026-11). Behind an empty asm: else the compiler, which sees that all threads have the same,
// computes their places differently, and begins a 7x7 kernel of ConvNeXt with 5 loads on their way instead of 14.
DEVICE unsigned block_from_end() {
  unsigned block = last_block() - block_index();
  asm("" : "+r"(block));
  return block;
}
DEVICE unsigned thread_index() { return threadIdx.x; }
// Four of the bytes of a (0 to 3) and b (4 to 7), whose numbers are the digits of the selector, the last one's first.
DEVICE unsigned select_bytes(unsigned a, unsigned b, unsigned selector) { return __byte_perm(a, b, selector); }
// sum + the products of four bytes each, signed or not.
template <bool A_SIGNED, bool B_SIGNED> DEVICE int add_products_of_bytes(unsigned a, unsigned b, int sum) {
  int result;
  if constexpr (A_SIGNED && B_SIGNED) asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  else if constexpr (A_SIGNED) asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  else if constexpr (B_SIGNED) asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  else asm("dp4a.u32.u32 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(sum));
  return result;
}
DEVICE void wait_for_block() { __syncthreads(); }
// Whether it holds for any thread of the block, for which all wait.
DEVICE bool any_of_block(bool holds) { return __syncthreads_or(holds); }
DEVICE void wait_for_warp() { __syncwarp(); }
// Whether it holds for any lane of the warp.
DEVICE bool any_of_warp(bool holds) { return __any_sync(0xffffffffu, holds); }
// The lanes for which it holds, a bit for each.
DEVICE unsigned lanes_where(bool holds) { return __ballot_sync(0xffffffffu, holds); }
// What this thread has written is there for all blocks before what it writes next; and the other way round for reads.
DEVICE void publish() { __threadfence(); }
// One more of `all` has come: how many came before. The last one leaves a 0.
DEVICE unsigned count_round(unsigned* counter, unsigned all) { return atomicInc(counter, all - 1); }
DEVICE unsigned exchange(unsigned word, int distance) { return __shfl_xor_sync(0xffffffffu, word, distance); }

// The pointer, computed once: else the compiler computes it again beside each of many conditional accesses, 5
// instructions instead of 1. By its global address, which the compiler could not tell behind the asm otherwise.
template <class T> DEVICE T* settled(T* pointer) {
  unsigned long long address = __cvta_generic_to_global(pointer);
  asm("" : "+l"(address));
  return (T*)__cvta_global_to_generic(address);
}

// All reads and writes of operands go through here.
template <class T> DEVICE T read(const T* from) { return *from; }
template <class T> DEVICE void write(T* to, const T& value) { *to = value; }

DEVICE unsigned multiply_high(unsigned a, unsigned b) { return __umulhi(a, b); }
DEVICE unsigned long long multiply_high(unsigned long long a, unsigned long long b) { return __umul64hi(a, b); }

DEVICE float float_of_bits(unsigned bits) { return __uint_as_float(bits); }
DEVICE unsigned bits_of_float(float value) { return __float_as_uint(value); }
DEVICE double double_of_bits(unsigned long long bits) { return __longlong_as_double((long long)bits); }
DEVICE unsigned long long bits_of_double(double value) { return (unsigned long long)__double_as_longlong(value); }

DEVICE float f16_to_float(unsigned bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((unsigned short)bits));
  return value;
}
DEVICE float bf16_to_float(unsigned bits) { return __uint_as_float(bits << 16); }

// Round to nearest even; the first value goes to the low half of the word.
DEVICE unsigned floats_to_f16x2(float low, float high) {
  unsigned word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
// Differences of pairs of float16, rounded to nearest even.
DEVICE unsigned minus_f16x2(unsigned a, unsigned b) {
  unsigned word;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
  return word;
}
DEVICE unsigned floats_to_bf16x2(float low, float high) {
  unsigned word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

// float32 rounded to the 10 bits of mantissa of TF32, which the tensor cores read; ties away from zero.
DEVICE unsigned round_to_tf32(unsigned bits) {
  unsigned word;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(word) : "f"(__uint_as_float(bits)));
  return word;
}

// The greater and the lesser one, in one instruction; NaN where either is NaN.
DEVICE float greater(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
DEVICE float lesser(float a, float b) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// a - b of a as it is rounded: where a is a product, the compiler would take its exact value, by one fma.
DEVICE float minus(float a, float b) { return __fsub_rn(a, b); }
DEVICE double minus(double a, double b) { return __dsub_rn(a, b); }

// numerator / denominator within 2 units in the last place, for denominators of 1 up to 2^126: no slow path.
DEVICE float divide_fast(float numerator, float denominator) { return __fdividef(numerator, denominator); }

// 1 / x and 2^x within 2 units in the last place; results below 2^-126 are 0, and numbers below it count as 0.
DEVICE float reciprocal_fast(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
// The root within 2 units in the last place, of the smallest numbers too.
DEVICE float sqrt_fast(float x) {
  float result;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
DEVICE float exp2_fast(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
