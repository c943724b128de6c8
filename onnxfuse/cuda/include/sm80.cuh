// What sm_80 and every later GPU has for matrix products, as plain functions over PTX: copies into shared memory that run
// beside the threads, fragments that a warp loads at once. tests/emulator/host.cuh has the same list for the CPU.

// A place in shared memory.
using SharedAddress = unsigned;

DEVICE SharedAddress shared_address(const void* pointer) { return (unsigned)__cvta_generic_to_shared(pointer); }

// BYTES (4, 8 or 16) from global memory, zeros unless `there`.
template <int BYTES> DEVICE void copy_async(SharedAddress to, const void* from, bool there) {
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
                 "n"(BYTES), "r"(there ? BYTES : 0)
                 : "memory");
}

// Of 16 bytes the first ones, a whole number of words or of halves of them; zeros behind them, or where there are none.
DEVICE void copy_async_prefix(SharedAddress to, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(__cvta_generic_to_global(from)),
               "r"(bytes > 0 ? bytes : 0)
               : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until at most `GROUPS` of this thread's groups of copies have not yet arrived.
template <int GROUPS> DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(GROUPS) : "memory");
}

DEVICE unsigned load_shared(SharedAddress from) {
  unsigned word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
}
DEVICE void load_shared(unsigned (&word)[2], SharedAddress from) {
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "r"(from) : "memory");
}
DEVICE void load_shared(unsigned (&word)[4], SharedAddress from) {
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
               : "r"(from)
               : "memory");
}
DEVICE void store_shared(SharedAddress to, const unsigned (&word)[4]) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(word[0]), "r"(word[1]), "r"(word[2]),
               "r"(word[3])
               : "memory");
}

// word & mask | base in one instruction: of two constants the compiler makes two.
DEVICE unsigned masked_onto(unsigned word, unsigned mask, unsigned base) {
  unsigned result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "r"(mask), "r"(base));
  return result;
}
// Differences of pairs of bfloat16, as minus_f16x2 has those of float16.
DEVICE unsigned minus_bf16x2(unsigned a, unsigned b) {
  unsigned word;  // 1 a - b
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(0x3f803f80u), "r"(b ^ 0x80008000u));
  return word;
}

// Products of them.
DEVICE unsigned product_f16x2(unsigned a, unsigned b) {
  unsigned word;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(word) : "r"(a), "r"(b));
  return word;
}
DEVICE unsigned product_bf16x2(unsigned a, unsigned b) {
  unsigned word;  // a b - 0
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(word) : "r"(a), "r"(b), "r"(0x80008000u));
  return word;
}

// Four blocks of eight rows of 16 bytes, spread over the lanes as PTX says of ldmatrix; lane i says where row i % 8 of
// block i / 8 lies. TRANSPOSED: of elements of 16 bits, with rows and columns exchanged.
template <bool TRANSPOSED> DEVICE void load_matrices(unsigned (&block)[4], SharedAddress row) {
  if constexpr (TRANSPOSED)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(block[0]), "=r"(block[1]), "=r"(block[2]), "=r"(block[3])
                 : "r"(row)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(block[0]), "=r"(block[1]), "=r"(block[2]), "=r"(block[3])
                 : "r"(row)
                 : "memory");
}

// d += a b by a warp on the tensor cores: [16, 16] by [16, 8], spread over the lanes as mma.m16n8k16 says (PTX). Volatile:
// all lanes must get there, so it must not sink into a branch that reads its result.
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, f16*) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bf16*) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The same of TF32: [16, 8] by [8, 8], mma.m16n8k8.
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, float*) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
