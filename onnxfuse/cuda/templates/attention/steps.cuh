// A step of an attention: STEP keys and their values through shared memory, times the rows of a warp. EDGE: some of its
// keys do not count, for all or for some queries.

// Of a row in shared memory: eight rows begin in different banks.
constexpr int ROW_BYTES = PADDED * (int)sizeof(E) + 16, STEP_BYTES = STEP * ROW_BYTES;
using StepRows = PaddedTile<ROW_BYTES>;
using Mma = MmaSync<E>;

// ---- into shared memory

// Rows that lie STRIDE elements apart: where each one begins; of 8-bit integers with their zero point.
template <class T, int STRIDE, int ZERO_POINT> struct Apart {
  using Element = T;
  static constexpr int ZERO = ZERO_POINT;
  const T* from;
  DEVICE const T* operator()(int row) const { return from + row * (long long)STRIDE; }
};

// Integers of a word, less their zero point, as float16, which holds all of them: 1024 + n has n in its last bits.
template <class T, int ZERO> DEVICE void widen(unsigned (&pair)[2], unsigned word) {
  constexpr bool SIGNED = (T)-1 < (T)0;
  constexpr unsigned BASE = 0x6400u + ZERO + (SIGNED ? 128 : 0);
  if (SIGNED) word ^= 0x80808080u;
  pair[0] = minus_f16x2(select_bytes(word, 0x64u, 0x4140), BASE << 16 | BASE);
  pair[1] = minus_f16x2(select_bytes(word, 0x64u, 0x4342), BASE << 16 | BASE);
}

// The same rows of 8-bit integers. Several loads are on their way together.
template <int MANY, int WORKERS, class Begin>
DEVICE void widen_rows(SharedAddress to, const Begin& begin, int first, int count) {
  using T = typename Begin::Element;
  constexpr int PIECES = SIZE / 16, EACH = (MANY * PIECES + WORKERS - 1) / WORKERS, TOGETHER = EACH < 4 ? EACH : 4;
  UNROLLED for (int i = 0; i < EACH; i += TOGETHER) {
    Pack<T, 16> held[TOGETHER] = {};
    UNROLLED for (int j = 0; j < TOGETHER; ++j) {
      const int unit = (i + j) * WORKERS + (int)thread_index() % WORKERS, row = unit / PIECES, piece = unit % PIECES;
      if (unit >= MANY * PIECES || first + row >= count) continue;
      const T* from = begin(first + row) + piece * 16;
      if constexpr (ALIGNED) held[j] = load<16>(from);
      else UNROLLED for (int e = 0; e < 16; ++e) held[j].set_bits(e, load_bits(from + e));
    }
    UNROLLED for (int j = 0; j < TOGETHER; ++j) {
      const int unit = (i + j) * WORKERS + (int)thread_index() % WORKERS, row = unit / PIECES, piece = unit % PIECES;
      if (unit >= MANY * PIECES) continue;
      UNROLLED for (int half = 0; half < 2; ++half) {
        unsigned low[2], high[2], word[4] = {};
        widen<T, Begin::ZERO>(low, held[j].word(half * 2));
        widen<T, Begin::ZERO>(high, held[j].word(half * 2 + 1));
        if (first + row < count) word[0] = low[0], word[1] = low[1], word[2] = high[0], word[3] = high[1];
        store_shared(StepRows{to}.at(row, piece * 2 + half), word);
      }
    }
  }
}

// MANY rows from `first` on, by WORKERS threads; those behind the last one are zeros, since no number times a weight of
// 0 is one, and so is what is behind a row's SIZE elements.
template <int MANY, int WORKERS, class Begin>
DEVICE void copy_rows(SharedAddress to, const Begin& begin, int first, int count) {
  // The addresses of more than eight copies would not fit the registers.
  _Pragma("unroll 8") for (int i = 0; i < (MANY * UNITS + WORKERS - 1) / WORKERS; ++i) {
    const int unit = i * WORKERS + (int)thread_index() % WORKERS, row = unit / UNITS, piece = unit % UNITS;
    if ((MANY * UNITS) % WORKERS == 0 || unit < MANY * UNITS) {
      const bool there = first + row < count && (UNITS == GIVEN_UNITS || piece < GIVEN_UNITS);
      const E* from = begin(there ? first + row : 0) + (there ? piece : 0) * PER_UNIT;
      copy_piece<ALIGNED ? 16 : (int)sizeof(E), false, true>(StepRows{to}.at(row, piece), from, there ? PER_UNIT : 0);
    }
  }
}

template <int MANY, int WORKERS, class Begin>
DEVICE void fetch_rows(SharedAddress to, const Begin& begin, int first, int count) {
  if constexpr (sizeof(typename Begin::Element) == 1) widen_rows<MANY, WORKERS>(to, begin, first, count);
  else copy_rows<MANY, WORKERS>(to, begin, first, count);
}

// ---- into the registers of a warp

// A lane's words of a row of queries.
template <int ZERO = 0, class T> DEVICE void load_query(Rows& rows, int tile, int half, const T* row) {
  UNROLLED for (int k = 0; k < (HELD ? TERMS : 0); ++k) UNROLLED for (int right = 0; right < 2; ++right) {
    const T* from = row + (k * 8 + right * 4 + (int)thread_index() % 4) * PER_WORD;
    unsigned both = 0;
    if constexpr (sizeof(T) == 1) {
      unsigned pair[2];
      if constexpr (ALIGNED) widen<T, ZERO>(pair, load<2>(from).word(0));
      else widen<T, ZERO>(pair, (unsigned)load_bits(from) | (unsigned)load_bits(from + 1) << 8);
      both = pair[0];
    } else if ((k * 8 + right * 4) * PER_WORD < SIZE) {
      if constexpr (ALIGNED) both = load<PER_WORD>(from).word(0);
      else UNROLLED for (int i = 0; i < PER_WORD; ++i) both |= (unsigned)load_bits(from + i) << i * 16;
    }
    rows.q[tile][k][right * 2 + half] = Mma::operand(both);
  }
}

// ---- products

// Groups of 16 keys that count: in a step that the end cuts short, not all.
template <int COUNT, bool EDGE> DEVICE int groups_of(int first_key, int end) {
  return EDGE && end - first_key < COUNT ? (end - first_key + 15) / 16 : COUNT / 16;
}

template <bool EDGE, int COUNT> DEVICE void multiply_keys(Scores<COUNT>& scores, const Rows& rows,
                                                          SharedAddress queries, SharedAddress keys, int groups) {
  const PaddedFragments<FactorOf::LEFT, false, ROW_BYTES> left(StepRows{queries});
  const PaddedFragments<FactorOf::RIGHT, false, ROW_BYTES> right(StepRows{keys});
  UNROLLED for (int group = 0; group < COUNT / 16; ++group) {
    if (EDGE && group >= groups) break;
    UNROLLED for (int k = 0; k < TERMS; ++k) {
      unsigned key[4];
      right.load(key, group * 16, k * 2);
      Mma::convert(key);
      UNROLLED for (int tile = 0; tile < TILES; ++tile) {
        unsigned query[4];
        if (!HELD) left.load(query, tile * 16, k * 2);
        UNROLLED for (int i = 0; i < 4; ++i) query[i] = HELD ? rows.q[tile][HELD ? k : 0][i] : Mma::operand(query[i]);
        Mma::multiply(scores.of[tile][2 * group], query, key[0], key[1]);
        Mma::multiply(scores.of[tile][2 * group + 1], query, key[2], key[3]);
      }
    }
  }
}

// Weights of 16 keys times their values of 16 columns.
DEVICE void add_values(Rows& rows, const unsigned (&weight)[TILES][4], const unsigned (&value)[4], int k) {
  UNROLLED for (int tile = 0; tile < TILES; ++tile) {
    Mma::multiply(rows.y[tile][2 * k], weight[tile], value[0], value[1]);
    if (2 * k + 1 < COLUMNS) Mma::multiply(rows.y[tile][2 * k + 1], weight[tile], value[2], value[3]);
  }
}

// Weights of a group of 16 keys times their values.
template <int COUNT, class T>
DEVICE void add_group(Rows& rows, const Scores<COUNT>& weights, SharedAddress values, int group, T*) {
  const PaddedFragments<FactorOf::RIGHT, true, ROW_BYTES> right(StepRows{values});
  unsigned weight[TILES][4];
  round_weights(weight, weights, group, (T*)nullptr);
  UNROLLED for (int k = 0; k < TERMS; ++k) {
    unsigned value[4];
    right.load(value, group * 16, k * 2);
    add_values(rows, weight, value, k);
  }
}
template <int COUNT>
DEVICE void add_group(Rows& rows, const Scores<COUNT>& weights, SharedAddress values, int group, float*) {
  const int lane = thread_index() % 32;
  const SharedAddress row = values + (group * 16 + lane % 4 * 2) * ROW_BYTES + lane / 4 * (AT_ONCE * 4);
  UNROLLED for (int half = 0; half < 2; ++half) {
    unsigned weight[TILES][4];
    UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int part = 0; part < 4; ++part) weight[tile][part] =
        Mma::operand(bits_of_float(weights.of[tile][2 * group + half][part % 2 * 2 + part / 2]));
    UNROLLED for (int column = 0; column < COLUMNS; column += AT_ONCE) {
      unsigned value[2][AT_ONCE];
      UNROLLED for (int key = 0; key < 2; ++key)
          load_shared(value[key], row + (half * 8 + key) * ROW_BYTES + column * 32);
      UNROLLED for (int i = 0; i < AT_ONCE; ++i) {
        const unsigned low = Mma::operand(value[0][i]), high = Mma::operand(value[1][i]);
        UNROLLED for (int tile = 0; tile < TILES; ++tile)
            Mma::multiply(rows.y[tile][column + i], weight[tile], low, high);
      }
    }
  }
}

template <bool EDGE, int COUNT>
DEVICE void multiply_values(Rows& rows, const Scores<COUNT>& weights, SharedAddress values, int groups) {
  UNROLLED for (int group = 0; group < COUNT / 16; ++group) {
    if (EDGE && group >= groups) break;
    add_group(rows, weights, values, group, (E*)nullptr);
  }
}

// ---- a step of a kernel that does nothing between these

// Keys and then values on their way to shared memory, by WORKERS threads; nothing behind the last key.
template <class Pipeline, int WORKERS, class Keys, class Values>
DEVICE void fetch_step(SharedAddress to, const Keys& keys, const Values& values, int first_key, int end) {
  if (first_key < end) {
    fetch_rows<STEP, WORKERS>(to, keys, first_key, end);
    fetch_rows<STEP, WORKERS>(to + STEP_BYTES, values, first_key, end);
  }
  Pipeline::producer_commit();
}

// Of keys, and of their values behind them; `seen` scales scores and masks them.
template <bool EDGE, class Seen>
DEVICE void attend_step(Rows& rows, SharedAddress keys, const Seen& seen, int first_key, int end) {
  const int groups = groups_of<STEP, EDGE>(first_key, end);
  Scores<STEP> scores = {};
  multiply_keys<EDGE>(scores, rows, keys, keys, groups);
  if (EDGE || !SCALED_LATE) seen.template scale<EDGE>(scores, first_key, end);
  weigh<false>(scores, rows);
  multiply_values<EDGE>(rows, scores, keys + STEP_BYTES, groups);
}
