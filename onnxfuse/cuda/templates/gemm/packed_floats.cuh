// Numbers of any bits (packed.cuh) as elements of any type, by float: those of which packed_pairs.cuh does not make pairs.

DEVICE float element_of_bits(unsigned bits) {
  return decode((typename Raw<sizeof(Factor)>::Word)bits, (Factor*)nullptr);
}
// 16 bytes of elements from numbers and the bits of their scale and zero point: a number if it is packed.
DEVICE void elements_of(unsigned (&word)[4], const unsigned* number, unsigned scale, unsigned zero) {
  constexpr int WIDE = 16 / sizeof(Factor), BITS = RightFactor::BITS;
  const float offset = RightFactor::ZEROS == Zeros::MIDDLE   ? RightFactor::MIDDLE
                       : RightFactor::ZEROS == Zeros::PACKED ? (float)zero
                                                             : element_of_bits(zero);
  float value[WIDE];
  UNROLLED for (int i = 0; i < WIDE; ++i) value[i] =
      ((float)(number[i * BITS / 32] >> i * BITS % 32 & RightFactor::MASK) - offset) * element_of_bits(scale);
  const Pack<Factor, WIDE> pack = packed_as<WIDE>((Factor*)nullptr, value);
  UNROLLED for (int i = 0; i < 4; ++i) word[i] = pack.word(i);
}
