// The elements [n, k] of right factors in few bits (packed.cuh), one factor after the other: for products of many rows
// (sm90.cu), whose tiles would each make the same elements of them again.
//
// Accuracy: an element is a number less its zero point times its scale, rounded once, as the other kernels of such
// factors have it. A thread makes eight elements from one or two words, EACH times; its loads wait together.

struct Parameters { Index columns[PRODUCTS]; };

constexpr Index OF_COLUMN = TERMS / 8, WORDS = 8 / WORD_TERMS;

struct Found { unsigned number[WORDS], scale, zero; };

DEVICE Found find(const RightFactor& from, Index unit) {
  constexpr Index BLOCKS = TERMS / RightFactor::BLOCK;
  const Index column = unit / OF_COLUMN, block = unit % OF_COLUMN * 8 / RightFactor::BLOCK;
  Found found = {};
  UNROLLED for (Index i = 0; i < WORDS; ++i) found.number[i] =
      read((const unsigned*)from.numbers + (unsigned long long)unit * WORDS + i);
  found.scale = load_bits(from.scales + ((unsigned long long)column * BLOCKS + block));
  if constexpr (RightFactor::ZEROS == Zeros::PACKED)
    found.zero = read((const unsigned char*)from.zeros + RightFactor::zero_byte(column, block, BLOCKS)) >>
                     RightFactor::zero_shift(block) &
                 RightFactor::MASK;
  if constexpr (RightFactor::ZEROS == Zeros::REAL)
    found.zero = load_bits((const Factor*)from.zeros + ((unsigned long long)column * BLOCKS + block));
  return found;
}

DEVICE void unpack(const Operands& operands, Chunk<16>* to, const Parameters& p) {
  Found found[EACH] = {};
  bool there[EACH] = {};
  const Index first = block_index() * (Index)(EACH * THREADS) + thread_index();
  UNROLLED for (int i = 0; i < EACH; ++i) {
    Index unit = first + i * THREADS;
    int product = 0;
    UNROLLED for (int k = 0; k < PRODUCTS - 1; ++k) if (product == k && unit >= p.columns[k] * OF_COLUMN) unit -=
        p.columns[k] * OF_COLUMN,
        ++product;
    there[i] = unit < p.columns[product] * OF_COLUMN;
    if (there[i]) found[i] = find(right_factor(operands, product), unit);
  }
  UNROLLED for (int i = 0; i < EACH; ++i) {
    Chunk<16> elements;
    elements_of(elements.word, found[i].number, found[i].scale, found[i].zero);
    if (there[i]) write(to + first + i * THREADS, elements);
  }
}
