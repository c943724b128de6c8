// A step of an attention: STEP keys and their values through shared memory, times the rows of a warp. EDGE: some of its
// keys do not count, for all or for some queries.

// Of a row in shared memory: eight rows begin in different banks.
constexpr int ROW_BYTES = PADDED * (int)sizeof(E) + 16, STEP_BYTES = STEP * ROW_BYTES;
constexpr int GROUPS = STEP / 16;  // products of 16 keys, of a step

// ---- into shared memory

DEVICE void fetch_unit(SharedAddress to, const E* from, bool there) {
  if constexpr (ALIGNED) {
    copy_beside<16>(to, from, there);
  } else {
    unsigned word[4] = {};
    if (there)
      UNROLLED for (int i = 0; i < PER_UNIT; ++i)
        word[i / PER_WORD] |= (unsigned)load_bits(from + i) << i % PER_WORD * 16;
    store_shared(to, word);
  }
}

// Rows that lie STRIDE elements apart: where each one begins.
template <int STRIDE> struct Apart {
  const E* from;
  DEVICE const E* operator()(int row) const { return from + row * (long long)STRIDE; }
};

// MANY rows from `first` on, by WORKERS threads; those behind the last one are zeros, since no number times a weight of
// 0 is one, and so is what is behind a row's SIZE elements.
template <int MANY, int WORKERS, class Begin>
DEVICE void fetch_rows(SharedAddress to, const Begin& begin, int first, int count) {
  // The addresses of more than eight copies would not fit the registers.
  _Pragma("unroll 8") for (int i = 0; i < (MANY * UNITS + WORKERS - 1) / WORKERS; ++i) {
    const int unit = i * WORKERS + (int)thread_index() % WORKERS, row = unit / UNITS, piece = unit % UNITS;
    if ((MANY * UNITS) % WORKERS == 0 || unit < MANY * UNITS) {
      const bool there = first + row < count && (UNITS == GIVEN_UNITS || piece < GIVEN_UNITS);
      const E* from = begin(there ? first + row : 0) + (there ? piece : 0) * PER_UNIT;
      fetch_unit(to + row * ROW_BYTES + piece * 16, from, there);
    }
  }
}

// ---- into the registers of a warp

// A lane's words of a row of queries.
DEVICE void load_query(Rows& rows, int tile, int half, const E* row) {
  UNROLLED for (int k = 0; k < (HELD ? TERMS : 0); ++k)
    UNROLLED for (int right = 0; right < 2; ++right) {
      const E* from = row + (k * 8 + right * 4 + (int)thread_index() % 4) * PER_WORD;
      unsigned both = 0;
      if ((k * 8 + right * 4) * PER_WORD < SIZE) {
        if constexpr (ALIGNED) both = load<PER_WORD>(from).word(0);
        else UNROLLED for (int i = 0; i < PER_WORD; ++i) both |= (unsigned)load_bits(from + i) << i * 16;
      }
      rows.q[tile][k][right * 2 + half] = factor(both, (E*)nullptr);
    }
}

// ---- products

// Groups of 16 keys that count: in a step that the end cuts short, not all.
template <bool EDGE> DEVICE int groups_of(int first_key, int end) {
  return EDGE && end - first_key < STEP ? (end - first_key + 15) / 16 : GROUPS;
}

template <bool EDGE>
DEVICE void multiply_keys(Scores<STEP>& scores, const Rows& rows, SharedAddress queries, SharedAddress keys, int groups) {
  const int lane = thread_index() % 32;
  const SharedAddress left = queries + lane % 16 * ROW_BYTES + lane / 16 * 16;
  const SharedAddress row = keys + (lane / 16 * 8 + lane % 8) * ROW_BYTES + lane / 8 % 2 * 16;
  UNROLLED for (int group = 0; group < GROUPS; ++group) {
    if (EDGE && group >= groups) break;
    UNROLLED for (int k = 0; k < TERMS; ++k) {
      unsigned key[4];
      load_blocks<false>(key, row + group * 16 * ROW_BYTES + k * 32);
      UNROLLED for (int i = 0; i < 4; ++i) key[i] = factor(key[i], (E*)nullptr);
      UNROLLED for (int tile = 0; tile < TILES; ++tile) {
        unsigned query[4];
        if (!HELD) load_blocks<false>(query, left + tile * 16 * ROW_BYTES + k * 32);
        UNROLLED for (int i = 0; i < 4; ++i) query[i] = HELD ? rows.q[tile][HELD ? k : 0][i] : factor(query[i], (E*)nullptr);
        product(scores.of[tile][2 * group], query, key[0], key[1], (E*)nullptr);
        product(scores.of[tile][2 * group + 1], query, key[2], key[3], (E*)nullptr);
      }
    }
  }
}

// What is added to two neighbouring keys of a query, from `at` on.
template <bool EDGE> DEVICE Pair load_bias(const E* at, long long stride, bool wide, int key, int keys) {
  Pack<E, 2> both = {};
  if (!EDGE && wide) {
    both = load<2>(at);
  } else {
    if (!EDGE || key < keys) both.set_bits(0, load_bits(at));
    if (!EDGE || key + 1 < keys) both.set_bits(1, load_bits(at + stride));
  }
  return {both.get(0) * ADDED_UNIT, both.get(1) * ADDED_UNIT};
}

template <bool EDGE>
DEVICE void multiply_values(Rows& rows, const Scores<STEP>& weights, SharedAddress values, int groups) {
  UNROLLED for (int group = 0; group < GROUPS; ++group) {
    if (EDGE && group >= groups) break;
    add_group<ROW_BYTES>(rows, weights, values, group, (E*)nullptr);
  }
}
