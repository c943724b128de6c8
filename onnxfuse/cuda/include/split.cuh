// Factors of float32 that keep their digits: each is the sum of two TF32 numbers, x = high + low, and
// a b = low high + high low + high high. What is left out, low low, is 2^-22 of a product at most.
//
// high is x rounded to its 11 leading bits, and low, the exact rest, has 12 or fewer, of which the tensor cores read 11: one
// x of four loses its last bit, with either sign. Of what is smaller than 2^-113 bits are missing below 2^-136, where TF32
// ends.
//
// The tensor cores cut off what they add, where float32 rounds it, so that long sums lean towards zero. They add eight terms
// for these factors, the small parts first, and those sums are added up in float32.
//
// An infinity has no high part and a rest (that is NaN), and the greatest numbers round up to one.

DEVICE void split(unsigned& high, unsigned& low, unsigned whole) {
  high = (whole + 0x1000u) & ~0x1fffu;  // what round_to_tf32 gives of finite numbers, by two instructions for four
  low = bits_of_float(minus(float_of_bits(whole), float_of_bits(high)));
}

template <int N> DEVICE void split(unsigned (&high)[N], unsigned (&low)[N], const unsigned (&whole)[N]) {
  UNROLLED for (int i = 0; i < N; ++i) split(high[i], low[i], whole[i]);
}

// Whether all of some sums are finite: zero times NaN, or times an infinity, is NaN.
template <int N> DEVICE bool are_finite(const float (&sums)[N]) {
  float zero = 0.0f;
  UNROLLED for (float sum : sums) zero += sum * 0.0f;
  return zero == 0.0f;
}
template <class Sums, int N> DEVICE bool are_finite(const Sums (&sums)[N]) {
  bool finite = true;
  UNROLLED for (const Sums& some : sums) finite &= are_finite(some);
  return finite;
}
