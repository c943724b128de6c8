// What the kernels of cached_attention share: which keys a token sees, how a row of queries or keys is normalized and rotated,
// what is done to scores. cached.cu says what all of it computes.

struct Parameters {
  long long queries, total, past, present, batch;
  long long parts;     // blocks that share the keys of a head, or its queries
  long long tiles;     // of 16 rows of a head of keys
  long long counters;  // words of scratch memory before what blocks leave there: zeros before and after a launch
};

constexpr int GROUP = K_GROUP, MANY = HEADS / GROUP;
constexpr bool TURNS = HALF > 0 || NORM;

// Tokens of a row that are in the cache, of so many in all. Nothing beside the caches is touched, whatever the lengths say.
DEVICE int before_of_all(long long all, const Parameters& p) {
  const long long before = all - p.queries, room = p.present - p.queries, most = p.past < room ? p.past : room;
  return (int)(before < 0 ? 0 : before < most ? before : most);
}
// By the row's own length alone: in a CUDA graph that is replayed for longer rows the total is that of the capture.
DEVICE int before_of(const int* length, const Parameters& p) { return before_of_all(read(length) + 1ll, p); }

// Tokens of a row with its new ones, but for what pads a prompt behind them.
DEVICE int tokens_of(const int* length, int before, const Parameters& p) {
  const long long own = read(length) + 1ll, most = before + p.queries;
  return (int)(own < 0 ? 0 : own < most ? own : most);
}

// The keys that a query sees: none of the padding, which sees the row's tokens that a token in its place would.
DEVICE int end_of(int before, int query, int tokens) { return before + query < tokens ? before + query + 1 : tokens; }
DEVICE int begin_of(int before, int query) {
  return WINDOW > 0 && before + query >= WINDOW ? before + query + 1 - WINDOW : 0;
}

// ---- rows of queries and keys

// Where the two elements of a pair stand: pairs that rotate together, then neighbours.
DEVICE int element_of(int pair, int which) {
  if (!INTERLEAVED && pair < HALF) return pair + which * HALF;
  return 2 * pair + which;
}

DEVICE float load_1(const E* from) { return decode(load_bits(from), (E*)nullptr); }

struct Tables { const E *cos, *sin; };

// A row normalized and rotated by a warp; `load` reads an element and `store` writes one, each by the lane that read it.
template <class Load, class Store>
DEVICE void turn(int token, const E* norm, const Tables& tables, Load load, Store store) {
  constexpr int EACH = (SIZE / 2 + 31) / 32;
  const int lane = thread_index() % 32;
  float x[EACH][2] = {}, squares = 0.0f, cosine[EACH] = {}, sine[EACH] = {};
  UNROLLED for (int j = 0; j < EACH; ++j) {
    const int pair = j * 32 + lane;
    if (pair < SIZE / 2) UNROLLED for (int e = 0; e < 2; ++e) x[j][e] = load(element_of(pair, e));
    if (pair < HALF) {
      cosine[j] = load_1(tables.cos + (long long)token * HALF + pair);
      sine[j] = load_1(tables.sin + (long long)token * HALF + pair);
    }
  }
  if constexpr (NORM) {
    UNROLLED for (int j = 0; j < EACH; ++j) squares += x[j][0] * x[j][0] + x[j][1] * x[j][1];
    UNROLLED for (int distance = 16; distance > 0; distance /= 2) squares +=
        float_of_bits(exchange(bits_of_float(squares), distance));
    const float share = reciprocal_fast(sqrt_fast(squares * (1.0f / SIZE) + EPSILON));
    UNROLLED for (int j = 0; j < EACH; ++j) UNROLLED for (int e = 0; e < 2; ++e) {
      const int pair = j * 32 + lane;
      if (pair < SIZE / 2) x[j][e] *= share * load_1(norm + element_of(pair, e));
    }
  }
  UNROLLED for (int j = 0; j < EACH; ++j) {
    const int pair = j * 32 + lane;
    if (pair < HALF) {
      const float first = x[j][0] * cosine[j] - x[j][1] * sine[j], second = x[j][0] * sine[j] + x[j][1] * cosine[j];
      x[j][0] = first, x[j][1] = second;
    }
    if (pair < SIZE / 2) UNROLLED for (int e = 0; e < 2; ++e) store(element_of(pair, e), encode(x[j][e], (E*)nullptr));
  }
}

using Word = typename Raw<sizeof(E)>::Word;

// A row of the cache by a warp; zeros where there is none to copy.
DEVICE void copy_row(E* to, const E* from) {
  if constexpr (ALIGNED) {
    for (int unit = thread_index() % 32; unit < GIVEN_UNITS; unit += 32)
      write((Chunk<16>*)to + unit, from == nullptr ? Chunk<16>{} : read((const Chunk<16>*)from + unit));
  } else {
    for (int i = thread_index() % 32; i < SIZE; i += 32)
      write((Word*)(to + i), from == nullptr ? (Word)0 : load_bits(from + i));
  }
}

// Whether the caches that are written are not those that are read.
DEVICE bool has_buffers_of_its_own(const Pointers& pointers) {
  return pointers.present_k != pointers.past_k || pointers.present_v != pointers.past_v;
}

// A token of a head of the caches that are written, by a warp: a new one, one that another buffer has, or none.
DEVICE void put_token(const Pointers& pointers, long long batch, long long head, int before, int token,
                      const Parameters& p) {
  const long long to = ((batch * MANY + head) * p.present + token) * SIZE;
  E *const k = pointers.present_k + to, *const v = pointers.present_v + to;
  const int fresh = token - before;
  if (fresh >= 0 && fresh < p.queries) {
    const long long from = (batch * p.queries + fresh) * KV_ROW + head * SIZE;
    const E* const of_k = pointers.k + K_FIRST + from;
    if constexpr (TURNS)
      turn(
          token, pointers.k_norm, {pointers.cos, pointers.sin}, [&](int i) { return load_1(of_k + i); },
          [&](int i, Word bits) { write((Word*)(k + i), bits); });
    else copy_row(k, of_k);
    copy_row(v, pointers.v + V_FIRST + from);
  } else {
    const long long from = ((batch * MANY + head) * p.past + token) * SIZE;
    if (pointers.present_k != pointers.past_k) copy_row(k, fresh < 0 ? pointers.past_k + from : nullptr);
    if (pointers.present_v != pointers.past_v) copy_row(v, fresh < 0 ? pointers.past_v + from : nullptr);
  }
}

// ---- scores

DEVICE float capped(float score) {
  const float grown = exp2_fast(score * (2.0f * PLAIN_SCALE * LOG2_E / CAP));
  return CAP * LOG2_E * (1.0f - 2.0f * reciprocal_fast(1.0f + grown));
}

// What the queries of this lane's rows see.
struct Seen {
  int begin[TILES][2], end[TILES][2];

  template <bool EDGE> DEVICE void scale(Scores<STEP>& scores, int first_key, int) const {
    UNROLLED for (int tile = 0; tile < TILES; ++tile) UNROLLED for (int half = 0; half < 2; ++half)
        UNROLLED for (int column = 0; column < STEP / 8; ++column) {
      const int key = first_key + column * 8 + (int)thread_index() % 4 * 2;
      UNROLLED for (int i = 0; i < 2; ++i) {
        float& score = scores.of[tile][column][half * 2 + i];
        if constexpr (CAPPED) score = capped(score);
        else if (!SCALED_LATE) score *= SCORE_UNIT;
        if (EDGE) score = key + i >= begin[tile][half] && key + i < end[tile][half] ? score : lowest();
      }
    }
  }
};

// By what a row is multiplied: its weights' share of all, with a sink among them. `highest`: of its scores; 0 without a key.
DEVICE float share_beside(const E* sinks, int head, float highest, float sum) {
  if constexpr (!SINK && !SMOOTH) return sum == 0.0f ? 0.0f : reciprocal_fast(sum);
  constexpr float UNIT = SCALED_LATE ? SCALE : 1.0f;
  const float sink = (SINK ? load_1(sinks + head) : 0.0f) * LOG2_E;
  const float top = greater(highest * UNIT, sink), by = exp2_fast(highest * UNIT - top);
  return by * reciprocal_fast(sum * by + exp2_fast(sink - top));
}
