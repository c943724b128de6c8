// Products of 8-bit integers, signed or not on either side, which tensor cores add up exactly in int32 (sm_80 and later).
// tests/emulator/host.cuh has the same for the CPU.
//
// Kernels hold the sums of a tile as floats: here the 32 bits of each are an int32.

// An element of either factor, of type A in the left one and B in the right one: copies look at its bits alone.
template <class A, class B> struct Bytes { unsigned char bits; };

template <class A, class B> DEVICE float add_sums(float a, float b, Bytes<A, B>*) {
  return float_of_bits(bits_of_float(a) + bits_of_float(b));
}

template <class T> struct IsSigned { static constexpr bool value = (T)-1 < (T)0; };

// d[16, 8] += a[16, 32] b[32, 8] by a warp; fragments lie as those of 16-bit types do, four elements in a word.
template <class A, class B>
DEVICE void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, Bytes<A, B>*) {
  int s[4];
  UNROLLED for (int i = 0; i < 4; ++i) s[i] = (int)bits_of_float(d[i]);
#define MULTIPLY(LEFT, RIGHT)                                                         \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." LEFT "." RIGHT                \
               ".s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
               : "+r"(s[0]), "+r"(s[1]), "+r"(s[2]), "+r"(s[3])                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (IsSigned<A>::value && IsSigned<B>::value) MULTIPLY("s8", "s8");
  else if constexpr (IsSigned<A>::value) MULTIPLY("s8", "u8");
  else if constexpr (IsSigned<B>::value) MULTIPLY("u8", "s8");
  else MULTIPLY("u8", "u8");
#undef MULTIPLY
  UNROLLED for (int i = 0; i < 4; ++i) d[i] = float_of_bits((unsigned)s[i]);
}
