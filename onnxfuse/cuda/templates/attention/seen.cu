// What tiles of 64 queries see of steps of STEP keys, by a bias [batch, 1, queries, keys] whose rows begin on boundaries of
// 16 bytes: for a kernel that leaves steps out (sm90.cu). A warp takes a step and a quarter of a tile: read once here, for
// all heads. Accuracy: biases are compared as they are, with HIDDEN of seen.cuh.

struct Parameters {
  long long queries, keys;
  long long count;                   // tiles times steps, of all batches
  long long tiles, steps;            // of a batch
  long long bias_batch, bias_query;  // elements
};

constexpr int PIECES = STEP / 8, AT_ONCE = 32 / PIECES;  // of 16 bytes, of a row; rows of a warp at once
static_assert(32 % PIECES == 0, "a warp reads whole rows");

DEVICE void find_seen(const Pointers& pointers, const Parameters& p) {
  const int lane = thread_index() % 32, warp = thread_index() / 32, quarter = warp % 4;
  const long long number = block_index() * (long long)(THREADS / 128) + warp / 4;
  if (number >= p.count) return;
  const long long step = number % p.steps, tile = number / p.steps % p.tiles, batch = number / p.steps / p.tiles;
  const long long key = step * STEP + lane % PIECES * 8, first = tile * 64 + quarter * 16 + lane / PIECES;
  const E* from = pointers.bias + batch * p.bias_batch + first * p.bias_query + key;
  Pack<E, 8> all[16 / AT_ONCE];
  UNROLLED for (int i = 0; i < 16 / AT_ONCE; ++i) {
    all[i] = {};
    if (key < p.keys && first + i * AT_ONCE < p.queries) all[i] = load<8>(from + i * AT_ONCE * p.bias_query);
  }
  unsigned rows = 0, some = 0;
  UNROLLED for (int i = 0; i < 16 / AT_ONCE; ++i) {
    bool shows = false;
    UNROLLED for (int k = 0; k < 8; ++k) shows |= !(all[i].get(k) <= HIDDEN);
    UNROLLED for (int k = 0; k < 4; ++k) some |= all[i].word(k) & 0x7fff7fffu;
    if (shows && key < p.keys && first + i * AT_ONCE < p.queries) rows |= 1u << i * AT_ONCE + lane / PIECES;
  }
  const bool plain = !any_of_warp(some != 0);
  UNROLLED for (int distance = 1; distance < 32; distance *= 2) rows |= exchange(rows, distance);
  Seen* found = (Seen*)pointers.scratch + number;
  if (lane == 0) {
    write(&found->rows[quarter], (unsigned short)rows);
    write(&found->plain[quarter], (unsigned char)plain);
  }
}
