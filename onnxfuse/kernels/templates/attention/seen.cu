// What tiles of 64 queries see of steps of STEP keys, by a bias [batch, 1, queries, keys] whose rows begin on boundaries of
// 16 bytes: for a kernel that leaves steps out. A warp takes a tile and a step: read once here, for all heads.

struct Parameters {
  long long queries, keys;
  long long count;          // tiles times steps, of all batches
  long long tiles, steps;   // of a batch
  long long bias_batch, bias_query;  // elements
};

constexpr int PIECES = STEP / 8, AT_ONCE = 32 / PIECES;  // of 16 bytes, of a row; rows of a warp at once

DEVICE void find_seen(const Pointers& pointers, const Parameters& p) {
  const int lane = thread_index() % 32;
  const long long number = block_index() * (long long)(THREADS / 32) + thread_index() / 32;
  if (number >= p.count) return;
  const long long step = number % p.steps, tile = number / p.steps % p.tiles, batch = number / p.steps / p.tiles;
  const long long key = step * STEP + lane % PIECES * 8, first = tile * 64 + lane / PIECES;
  const E* from = pointers.bias + batch * p.bias_batch + first * p.bias_query + key;
  Pack<E, 8> all[64 / AT_ONCE];
  UNROLLED for (int i = 0; i < 64 / AT_ONCE; ++i) {
    all[i] = {};
    if (key < p.keys && first + i * AT_ONCE < p.queries) all[i] = load<8>(from + i * AT_ONCE * p.bias_query);
  }
  Seen found = {};
  unsigned some = 0;
  UNROLLED for (int i = 0; i < 64 / AT_ONCE; ++i) {
    bool shows = false;
    UNROLLED for (int k = 0; k < 8; ++k) shows |= !(all[i].get(k) <= HIDDEN);
    UNROLLED for (int k = 0; k < 4; ++k) some |= all[i].word(k) & 0x7fff7fffu;
    const int row = i * AT_ONCE + lane / PIECES;
    if (shows && key < p.keys && tile * 64 + row < p.queries) found.rows[row / 32] |= 1u << row % 32;
  }
  UNROLLED for (int distance = 1; distance < 32; distance *= 2) {
    found.rows[0] |= exchange(found.rows[0], distance);
    found.rows[1] |= exchange(found.rows[1], distance);
    some |= exchange(some, distance);
  }
  found.plain = some == 0;
  if (lane == 0) write((Seen*)pointers.scratch + number, found);
}
