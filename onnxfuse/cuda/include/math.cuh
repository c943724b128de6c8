// The scalar functions of the body language, for float and double (and integers where ONNX allows them).
// Plain C++: the GPU and the host's compiler build the same text.
//
// NaN: relu, clip, max, min hand a NaN on, as numpy and onnx.reference do.
// Accuracy: every function is within a few units in the last place of its own type; the forms below never cancel
// and never overflow on the way to a finite result.

namespace math {

#define ONNXFUSE_BOTH(name, for_float, for_double)    \
  DEVICE float name(float x) { return for_float(x); } \
  DEVICE double name(double x) { return for_double(x); }

ONNXFUSE_BOTH(exp, ::expf, ::exp)
ONNXFUSE_BOTH(expm1, ::expm1f, ::expm1)
ONNXFUSE_BOTH(log, ::logf, ::log)
ONNXFUSE_BOTH(log1p, ::log1pf, ::log1p)
ONNXFUSE_BOTH(sqrt, ::sqrtf, ::sqrt)
ONNXFUSE_BOTH(floor, ::floorf, ::floor)
ONNXFUSE_BOTH(ceil, ::ceilf, ::ceil)
ONNXFUSE_BOTH(round_half_even, ::rintf, ::rint)
ONNXFUSE_BOTH(sin, ::sinf, ::sin)
ONNXFUSE_BOTH(cos, ::cosf, ::cos)
ONNXFUSE_BOTH(tan, ::tanf, ::tan)
ONNXFUSE_BOTH(asin, ::asinf, ::asin)
ONNXFUSE_BOTH(acos, ::acosf, ::acos)
ONNXFUSE_BOTH(atan, ::atanf, ::atan)
ONNXFUSE_BOTH(sinh, ::sinhf, ::sinh)
ONNXFUSE_BOTH(cosh, ::coshf, ::cosh)
ONNXFUSE_BOTH(tanh, ::tanhf, ::tanh)
ONNXFUSE_BOTH(asinh, ::asinhf, ::asinh)
ONNXFUSE_BOTH(acosh, ::acoshf, ::acosh)
ONNXFUSE_BOTH(atanh, ::atanhf, ::atanh)
ONNXFUSE_BOTH(erf, ::erff, ::erf)
ONNXFUSE_BOTH(erfc, ::erfcf, ::erfc)
#undef ONNXFUSE_BOTH

// Beside 1.5 * 2^23 a float has no digits behind the point, and its last bits are an integer. A sum converts as a
// conversion does, in an eighth of its time, for whole numbers below 2^22.
constexpr float WHOLE = 12582912.0f;
DEVICE float float_of_small(int x) { return float_of_bits(0x4B400000u + (unsigned)x) - WHOLE; }
DEVICE float float_of_small(unsigned char x) { return float_of_bits(0x4B400000u | x) - WHOLE; }
DEVICE float float_of_small(signed char x) { return float_of_bits(0x4B400080u ^ (unsigned char)x) - (WHOLE + 128); }
DEVICE int int_of_whole(float x) { return (int)bits_of_float(x + WHOLE); }  // its last 16 bits

// The whole number nearest to x / scale, from `low` to `high`, above WHOLE. One reciprocal serves all elements that share
// the scale; two multiply-adds round the quotient as a division does. x is clipped, not the quotient: then none is too large
// for the sum, and the bounds, which are multiples of the scale, are their own nearest steps.
DEVICE float above_whole(float x, float scale, float low, float high) {
  const float each = 1 / scale, least = ::lesser(low * scale, high * scale),
              most = ::greater(low * scale, high * scale);
  const float inside = ::greater(::lesser(x, most), least), about = inside * each;
  return ::fmaf(::fmaf(about, -scale, inside), each, about) + WHOLE;
}
DEVICE float steps(float x, float scale, float low, float high) { return above_whole(x, scale, low, high) - WHOLE; }
DEVICE int int_of_steps(float x, float scale, float low, float high) {  // its last 16 bits
  return (int)bits_of_float(above_whole(x, scale, low, high));
}

// The same of a number that has been rounded before, as a product's sum times its scales: one multiply-add. Another step
// than the quotient's is nearest where the number lies within its own rounding of the middle of two.
DEVICE float near_whole(float x, float scale, float low, float high) {
  const float each = 1 / scale, least = ::lesser(low * scale, high * scale),
              most = ::greater(low * scale, high * scale);
  return ::fmaf(::greater(::lesser(x, most), least), each, WHOLE);
}
DEVICE float near_steps(float x, float scale, float low, float high) { return near_whole(x, scale, low, high) - WHOLE; }
DEVICE int int_of_near_steps(float x, float scale, float low, float high) {  // its last 16 bits
  return (int)bits_of_float(near_whole(x, scale, low, high));
}

// Both above a whole number, between bounds of the sum.
DEVICE float shifted_steps(float x, float scale, float zero, float low, float high) {
  return steps(x, scale, low - zero, high - zero) + zero;
}
DEVICE int int_of_shifted_steps(float x, float scale, float zero, float low, float high) {  // its last 16 bits
  return int_of_steps(x, scale, low - zero, high - zero) + int_of_whole(zero);
}
DEVICE float near_shifted_steps(float x, float scale, float zero, float low, float high) {
  return near_steps(x, scale, low - zero, high - zero) + zero;
}
DEVICE int int_of_near_shifted_steps(float x, float scale, float zero, float low, float high) {  // its last 16 bits
  return int_of_near_steps(x, scale, low - zero, high - zero) + int_of_whole(zero);
}

// The whole number nearest to x * slope + offset. Without an offset the sum rounds the product.
DEVICE float line_above_whole(float x, float slope, float offset) {
  return offset == 0 ? ::fmaf(x, slope, WHOLE) : ::fmaf(x, slope, offset) + WHOLE;
}
DEVICE float line_inside(float x, float slope, float offset, float, float) {
  return line_above_whole(x, slope, offset) - WHOLE;
}
DEVICE float line(float x, float slope, float offset, float low, float high) {
  return ::greater(::lesser(line_inside(x, slope, offset, low, high), high), low);
}
DEVICE int int_of_line_inside(float x, float slope, float offset, float, float) {  // its last 16 bits
  return (int)bits_of_float(line_above_whole(x, slope, offset));
}

DEVICE float pow(float x, float y) { return ::powf(x, y); }
DEVICE double pow(double x, double y) { return ::pow(x, y); }
DEVICE float fmod(float x, float y) { return ::fmodf(x, y); }
DEVICE double fmod(double x, double y) { return ::fmod(x, y); }
// divide_fast(float, float) comes from device.cuh: for denominators of 1 and more.
DEVICE double divide_fast(double x, double y) { return x / y; }
using ::divide_fast;

template <class T> DEVICE bool is_nan(T x) { return x != x; }
template <class T> DEVICE bool is_inf(T x) { return x - x != T(0) && x == x; }
template <class T> DEVICE T abs(T x) { return x < T(0) ? T(-x) : x; }
DEVICE float abs(float x) { return ::fabsf(x); }
DEVICE double abs(double x) { return ::fabs(x); }
template <class T> DEVICE T sign(T x) { return x > T(0) ? T(1) : (x < T(0) ? T(-1) : x); }
template <class T> DEVICE T max(T a, T b) { return a > b || a != a ? a : b; }
template <class T> DEVICE T min(T a, T b) { return a < b || a != a ? a : b; }
DEVICE float max(float a, float b) { return ::greater(a, b); }
DEVICE float min(float a, float b) { return ::lesser(a, b); }

// The greatest (or least) value so far and where it was. A NaN is beyond every number, as in numpy; of equals the
// first one counts, or the last one.
template <class T, class Index> struct Found {
  T value;
  Index at;
};
template <class T> DEVICE bool is_beyond(T a, T b, bool least) { return (least ? a < b : a > b) || (a != a && b == b); }
template <bool LEAST, bool LAST, class Found> DEVICE Found better(const Found& a, const Found& b) {
  const bool equal = !is_beyond(a.value, b.value, LEAST) && !is_beyond(b.value, a.value, LEAST);
  return (equal ? (LAST ? b.at > a.at : b.at < a.at) : is_beyond(b.value, a.value, LEAST)) ? b : a;
}

// The next element of a thread, behind those that it has seen. Where nothing is beyond the lowest value, nothing is kept.
template <bool LEAST, bool LAST, class Found, class T, class Index> DEVICE void follow(Found& found, T x, Index at) {
  const T best = found.value;
  const bool take = LAST ? !(LEAST ? x > best : x < best) && (best == best || x != x)
                         : !(LEAST ? x >= best : x <= best) && best == best;
  found.value = take ? x : best;
  found.at = take ? at : found.at;
}
// The first one, where all elements are the lowest value.
template <class Found> DEVICE long long position(const Found& found) {
  return found.at + 1 == 0 ? 0 : (long long)found.at;
}

template <class T> DEVICE T relu(T x) { return x < T(0) ? T(0) : x; }
DEVICE float relu(float x) { return ::greater(x, 0.0f); }
// Bounds are applied as ONNX says: where low > high, the result is high.
template <class T> DEVICE T clip(T x, T low, T high) {
  const T raised = x < low ? low : x;
  return raised > high ? high : raised;
}

// x^0.5 by sqrt; they differ only at -0 and -infinity.
template <class T> DEVICE T pow_half(T x) { return x < T(0) && is_inf(x) ? -x : sqrt(x + T(0)); }
template <class T> DEVICE T pow_minus_half(T x) { return T(1) / pow_half(x); }

// Python's %: the sign follows the divisor.
template <class T> DEVICE T mod_integer(T x, T y) {
  const T rest = T(x % y);
  return rest != T(0) && (rest < T(0)) != (y < T(0)) ? T(rest + y) : rest;
}
template <class T> DEVICE T mod_real(T x, T y) {
  const T rest = fmod(x, y);
  return rest != T(0) && (rest < T(0)) != (y < T(0)) ? rest + y : rest;
}
// C's remainder for integers, fmod=1: the sign follows the dividend.
template <class T> DEVICE T rem_integer(T x, T y) { return T(x % y); }

// 1 / (1 + e^-x), with e^-|x| so that nothing overflows and the small side keeps its digits.
template <class T> DEVICE T sigmoid(T x) {
  const T e = exp(-abs(x));
  return divide_fast(x < T(0) ? e : T(1), T(1) + e);
}
template <class T> DEVICE T softplus(T x) { return relu(x) + log1p(exp(-abs(x))); }
// x tanh(ln(1 + e^x)), with n = e^-|x|: (1 + 2n) / (1 + 2n + 2n^2) right of 0, (n^2 + 2n) / (n^2 + 2n + 2) left of it.
template <class T> DEVICE T mish(T x) {
  const T n = exp(-abs(x));
  const T upper = x < T(0) ? n * (n + T(2)) : T(1) + T(2) * n;
  const T rest = x < T(0) ? T(2) : T(2) * n * n;
  return x * divide_fast(upper, upper + rest);
}
// By erfc: 1 + erf would have no digit left where x is far below 0.
template <class T> DEVICE T one_plus_erf(T x) { return erfc(-x); }
// x Phi(x).
template <class T> DEVICE T gelu(T x) { return x * T(0.5) * one_plus_erf(x * T(0.70710678118654752440)); }
// 0.5 x (1 + erf(c x)), as GELU is spelled out, with c as it stands there.
template <class T> DEVICE T erf_gelu(T x, T c) { return x * T(0.5) * one_plus_erf(x * c); }
// Phi(-z) for 0 <= z <= 16: e^(-z^2 / 2), with what rounding z^2 and its factor lose made good, times a polynomial in
// 1 / (1 + 0.3 z), fitted to the least relative error, 5.9e-8. Less than 2^-126 is 0.
DEVICE float gaussian_tail(float z) {
  const float t = reciprocal_fast(::fmaf(0.3f, z, 1.0f));
  float sum = 0.0384060852f;
  sum = ::fmaf(sum, t, -0.169301638f);
  sum = ::fmaf(sum, t, 0.228940757f);
  sum = ::fmaf(sum, t, -0.0768280983f);
  sum = ::fmaf(sum, t, 0.142757936f);
  sum = ::fmaf(sum, t, 0.0945887425f);
  sum = ::fmaf(sum, t, 0.121944583f);
  sum = ::fmaf(sum, t, 0.119484295f);
  sum = ::fmaf(sum, t, 7.3676016e-06f);
  const float square = z * z, lost = ::fmaf(z, z, -square);
  const float power = square * -0.72134752f;  // log2(e) / 2, which float lacks 9.6e-9 of
  const float rest = ::fmaf(lost, -0.72134752f, ::fmaf(square, -9.62981517e-09f, ::fmaf(square, -0.72134752f, -power)));
  const float e = exp2_fast(power);
  return sum * ::fmaf(e, rest * 0.693147181f, e);
}
// x Phi(k x): max(x, 0) - |x| Phi(-|k x|) on both sides of 0, where nothing cancels. Infinity times 0 is kept from the
// right side. Half of the instructions of erfc: 4096x3072x768 as TF32 with GELU, H200, 2026-11: 73.9 us, by erfc 97.2.
DEVICE float gaussian_gate(float x, float k) {
  const float z = abs(min(x, 3.4028234663852886e38f));
  return ::fmaf(-z, gaussian_tail(min(k * z, 16.0f)), max(x, 0.0f));
}
DEVICE float gelu(float x) { return gaussian_gate(x, 1.0f); }
DEVICE float erf_gelu(float x, float c) { return gaussian_gate(x, 1.4142135623730950488f * c); }
// 0.5 x (1 + tanh(u)) = x sigmoid(2u).
template <class T> DEVICE T gelu_tanh(T x) {
  return x * sigmoid(T(1.5957691216057307118) * x * (T(1) + T(0.044715) * x * x));
}

}  // namespace math

// The same for values of float16 and bfloat16, which keep 11 and 8 bits: shorter, with a relative error below 2^-13,
// half the rounding of float16 that follows, or an absolute one below 2^-27, an eighth of the least float16. At 2 bytes
// per element the longer forms are bound by instructions, not by memory; after a matrix product each instruction per
// element costs 2% of its time (bias + GELU, 4096x3072x768, H200, 2026-11: 38.8 us with 22, 37.0 with 17, 35.4 with 15).
namespace math16 {

using math::abs;

DEVICE float exp(float x) { return exp2_fast(x * 1.4426950408889634f); }
DEVICE float sqrt(float x) { return sqrt_fast(x); }

// Where e^-x overflows its reciprocal is 0: right to 2^-127.
DEVICE float sigmoid(float x) { return reciprocal_fast(1.0f + exp(-x)); }
DEVICE float mish(float x) {
  const float n = exp(-abs(x));
  const float upper = x < 0.0f ? n * (n + 2.0f) : 1.0f + 2.0f * n;
  const float rest = x < 0.0f ? 2.0f : 2.0f * n * n;
  return x * (upper * reciprocal_fast(upper + rest));
}
// Phi(-z) for z >= 0, whose logarithm is smooth; coefficients fitted to the least error of z Phi(-z), relative where it
// is a normal float16 (8.5e-5), absolute where it is less (5.1e-9). Further out it goes on to 0.
DEVICE float gaussian_tail(float z) {
  float sum = -0.000320441701f;
  sum = sum * z + 0.00582648627f;
  sum = sum * z - 0.0482338928f;
  sum = sum * z - 0.464127094f;
  sum = sum * z - 1.14917123f;
  sum = sum * z - 1.00012183f;
  return exp2_fast(sum);
}
// erfc(-x): no cancellation left of 0.
DEVICE float one_plus_erf(float x) {
  const float tail = 2.0f * gaussian_tail(1.4142135623730950488f * abs(x));
  return x < 0.0f ? tail : 2.0f - tail;
}
// x Phi(k x): max(x, 0) - |x| Phi(-|k x|) on both sides of 0, where nothing cancels. Infinity times 0 is kept from the
// right side.
DEVICE float gaussian_gate(float x, float k) {
  const float z = abs(math::min(x, 3.4028234663852886e38f));
  return math::max(x, 0.0f) - z * gaussian_tail(k * z);
}
// 0.5 x (1 + erf(c x)) for c > 0: c is 1 / sqrt(2) with the digits that a model gives it.
DEVICE float erf_gelu(float x, float c) { return gaussian_gate(x, 1.4142135623730950488f * c); }
DEVICE float gelu(float x) { return gaussian_gate(x, 1.0f); }
DEVICE float gelu_tanh(float x) { return x * sigmoid(1.5957691216057307118f * x * (1.0f + 0.044715f * x * x)); }

}  // namespace math16
