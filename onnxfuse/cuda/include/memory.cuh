// Elements in memory and in registers. A Pack holds W neighbours as they lie in memory (raw words: half as many
// registers as floats for 16-bit types), moves in accesses of at most 16 bytes, and decodes one element at a time.

struct f16 { unsigned short bits; };
struct bf16 { unsigned short bits; };
struct e4m3 { unsigned char bits; };  // float8 of four bits of exponent and three of mantissa, up to 448; 0x7f is NaN
struct boolean { unsigned char bits; };

// The type that an element is computed in, and its raw bits in memory.
template <class T> struct Stored { using Value = T; };
template <> struct Stored<f16> { using Value = float; };
template <> struct Stored<bf16> { using Value = float; };
template <> struct Stored<e4m3> { using Value = float; };
template <> struct Stored<boolean> { using Value = bool; };

template <int BYTES> struct Raw;
template <> struct Raw<1> { using Word = unsigned char; };
template <> struct Raw<2> { using Word = unsigned short; };
template <> struct Raw<4> { using Word = unsigned; };
template <> struct Raw<8> { using Word = unsigned long long; };

// Its bits behind the sign are those of a float16 from the second bit of the exponent on, 2^8 too small.
DEVICE float e4m3_to_float(unsigned bits) {
  const float value = f16_to_float((bits & 0x80u) << 8 | (bits & 0x7fu) << 7) * 256.0f;
  return (bits & 0x7fu) == 0x7fu ? float_of_bits(0x7fc00000u) : value;
}
// Round to nearest even; what is greater than 448 becomes 448, as ONNX's Cast and QuantizeLinear saturate.
DEVICE unsigned float_to_e4m3(float value) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  unsigned short both;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(both) : "f"(0.0f), "f"(value));
  return both & 0xffu;
#else
  const unsigned word = bits_of_float(value), sign = word >> 24 & 0x80u, size = word & 0x7fffffffu;
  if (size > 0x7f800000u) return sign | 0x7fu;
  if (size >= 0x43e00000u) return sign | 0x7eu;  // 448
  // Below 2^-6 there are steps of 2^-9, which a sum with 2^14 rounds to; else 20 bits of the mantissa are rounded away.
  if (size < 0x3c800000u) return sign | (bits_of_float(float_of_bits(size) + 16384.0f) & 0xfu);
  return sign | ((size + 0x7ffffu + (size >> 20 & 1u)) >> 20) - (120u << 3);
#endif
}

template <class T> DEVICE typename Stored<T>::Value decode(typename Raw<sizeof(T)>::Word bits, T*) { return (T)bits; }
DEVICE float decode(unsigned short bits, f16*) { return f16_to_float(bits); }
DEVICE float decode(unsigned short bits, bf16*) { return bf16_to_float(bits); }
DEVICE float decode(unsigned char bits, e4m3*) { return e4m3_to_float(bits); }
DEVICE bool decode(unsigned char bits, boolean*) { return bits != 0; }
DEVICE float decode(unsigned bits, float*) { return float_of_bits(bits); }
DEVICE double decode(unsigned long long bits, double*) { return double_of_bits(bits); }

template <class T> DEVICE typename Raw<sizeof(T)>::Word encode(T value, T*) {
  return (typename Raw<sizeof(T)>::Word)value;
}
DEVICE unsigned short encode(float value, f16*) { return (unsigned short)floats_to_f16x2(value, 0.0f); }
DEVICE unsigned short encode(float value, bf16*) { return (unsigned short)floats_to_bf16x2(value, 0.0f); }
DEVICE unsigned char encode(float value, e4m3*) { return (unsigned char)float_to_e4m3(value); }
DEVICE unsigned char encode(bool value, boolean*) { return value ? 1 : 0; }
DEVICE unsigned encode(float value, float*) { return bits_of_float(value); }
DEVICE unsigned long long encode(double value, double*) { return bits_of_double(value); }

DEVICE float round_to_f16(float value) { return f16_to_float(floats_to_f16x2(value, 0.0f) & 0xffffu); }
DEVICE float round_to_bf16(float value) { return bf16_to_float(floats_to_bf16x2(value, 0.0f) & 0xffffu); }

DEVICE float round_to_e4m3(float value) { return e4m3_to_float(float_to_e4m3(value)); }

template <int BYTES> struct alignas(BYTES) Chunk {
  typename Raw < BYTES<4 ? BYTES : 4>::Word word[BYTES < 4 ? 1 : BYTES / 4];
};

template <class T, int W> struct Pack {
  static constexpr int BYTES = int(sizeof(T)) * W;
  static constexpr int CHUNK = BYTES < 16 ? BYTES : 16;
  static constexpr int CHUNKS = BYTES / CHUNK;
  static constexpr int PER_WORD = sizeof(T) < 4 ? (CHUNK < 4 ? W : 4 / int(sizeof(T))) : 1;
  static constexpr int WORDS = sizeof(Chunk<CHUNK>) / sizeof(Chunk<CHUNK>{}.word[0]);
  using Value = typename Stored<T>::Value;
  using Bits = typename Raw<sizeof(T)>::Word;

  Chunk<CHUNK> chunk[CHUNKS];

  DEVICE auto& word(int i) { return chunk[i / WORDS].word[i % WORDS]; }
  DEVICE auto word(int i) const { return chunk[i / WORDS].word[i % WORDS]; }

  DEVICE Bits bits(int w) const {
    if constexpr (sizeof(T) == 8) {
      return (Bits)word(2 * w) | (Bits)word(2 * w + 1) << 32;
    } else {
      return (Bits)(word(w / PER_WORD) >> (w % PER_WORD * 8 * int(sizeof(T)) & 31));
    }
  }
  DEVICE Value get(int w) const { return decode(bits(w), (T*)nullptr); }

  // Lanes are set in order, each one once, on a Pack that began as zeros.
  DEVICE void set_bits(int w, Bits bits) {
    if constexpr (sizeof(T) == 8) {
      word(2 * w) = (unsigned)bits;
      word(2 * w + 1) = (unsigned)(bits >> 32);
    } else {
      word(w / PER_WORD) |= (unsigned)bits << (w % PER_WORD * 8 * int(sizeof(T)) & 31);
    }
  }
};

// One number for all elements.
template <class T> struct Splat {
  Pack<T, 1> one;
  DEVICE typename Stored<T>::Value get(int) const { return one.get(0); }
};

// A number of the text in the place of one in memory.
template <class T> struct Literal {
  T one;
  DEVICE T get(int) const { return one; }
};

template <class T> DEVICE typename Raw<sizeof(T)>::Word load_bits(const T* from) {
  return read(reinterpret_cast<const typename Raw<sizeof(T)>::Word*>(from));
}

template <int W, class T> DEVICE Pack<T, W> load(const T* from) {
  Pack<T, W> pack;
  const auto* chunks = reinterpret_cast<const Chunk<Pack<T, W>::CHUNK>*>(from);
  UNROLLED for (int i = 0; i < Pack<T, W>::CHUNKS; ++i) pack.chunk[i] = read(chunks + i);
  return pack;
}
template <class T> DEVICE Splat<T> load_splat(const T* from) { return {load<1>(from)}; }

template <int W, class T> DEVICE void store(T* to, const Pack<T, W>& pack) {
  auto* chunks = reinterpret_cast<Chunk<Pack<T, W>::CHUNK>*>(to);
  UNROLLED for (int i = 0; i < Pack<T, W>::CHUNKS; ++i) write(chunks + i, pack.chunk[i]);
}

// W computed values as they lie in memory; 16-bit floats are rounded two at a time.
template <class T, int W> DEVICE Pack<T, W> packed(const typename Stored<T>::Value (&value)[W]) {
  Pack<T, W> pack = {};
  UNROLLED for (int i = 0; i < W; ++i) pack.set_bits(i, encode(value[i], (T*)nullptr));
  return pack;
}
template <int W> DEVICE Pack<f16, W> packed_f16(const float (&value)[W]) {
  Pack<f16, W> pack = {};
  if constexpr (W == 1) pack.set_bits(0, encode(value[0], (f16*)nullptr));
  else UNROLLED for (int i = 0; i < W / 2; ++i) pack.word(i) = floats_to_f16x2(value[2 * i], value[2 * i + 1]);
  return pack;
}
template <int W> DEVICE Pack<bf16, W> packed_bf16(const float (&value)[W]) {
  Pack<bf16, W> pack = {};
  if constexpr (W == 1) pack.set_bits(0, encode(value[0], (bf16*)nullptr));
  else UNROLLED for (int i = 0; i < W / 2; ++i) pack.word(i) = floats_to_bf16x2(value[2 * i], value[2 * i + 1]);
  return pack;
}

// The same by the type that a pointer is of.
template <int W> DEVICE Pack<f16, W> packed_as(f16*, const float (&value)[W]) { return packed_f16<W>(value); }
template <int W> DEVICE Pack<bf16, W> packed_as(bf16*, const float (&value)[W]) { return packed_bf16<W>(value); }
template <int W, class T> DEVICE Pack<T, W> packed_as(T*, const typename Stored<T>::Value (&value)[W]) {
  return packed<T, W>(value);
}
template <int W, class T> DEVICE void store_values(T* to, const typename Stored<T>::Value (&value)[W]) {
  store<W>(to, packed_as<W>(to, value));
}

// n / d for n below half of Index's range, without a division (Granlund and Montgomery, 1994).
template <class Index> struct Divisor {
  Index value, multiplier, shift;
  DEVICE Index quotient(Index n) const { return (multiply_high(n, multiplier) + n) >> shift; }
};
