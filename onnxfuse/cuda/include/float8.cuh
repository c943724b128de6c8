// Products of float8 e4m3 by a warp, with float32 sums.
//
// From sm_89 on an instruction multiplies e4m3, except where it is one for warpgroups only (sm_90, sm_100). It keeps fewer
// bits of a sum than float32: each has sums of its own, which are added in float32. Elsewhere the factors become float16,
// which holds all numbers of e4m3, so that their products are exact.

#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, e4m3*) {
  float sums[4] = {};
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  UNROLLED for (int i = 0; i < 4; ++i) d[i] += sums[i];
}
#else
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, f16*);  // sm80.cuh

// Two numbers, of bytes 0 and 1 of a word or of bytes 2 and 3, as float16.
DEVICE unsigned e4m3x2_to_f16x2(unsigned word, bool second) {
  const unsigned both = second ? word >> 16 : word & 0xffffu;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"((unsigned short)both));
  return halves;
#else
  return floats_to_f16x2(e4m3_to_float(both & 0xffu), e4m3_to_float(both >> 8));
#endif
}

// d[16, 8] += a[16, 32] b[32, 8]: the even pairs of terms, then the odd ones, of both factors alike.
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, e4m3*) {
  UNROLLED for (int half = 0; half < 2; ++half) {
    unsigned left[4];
    UNROLLED for (int i = 0; i < 4; ++i) left[i] = e4m3x2_to_f16x2(a[i], half == 1);
    mma(d, left, e4m3x2_to_f16x2(b0, half == 1), e4m3x2_to_f16x2(b1, half == 1), (f16*)nullptr);
  }
}
#endif
