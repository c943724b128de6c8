// y[t] = h[t] = the cells' step of (x[t] W^T + Wb, h[t - 1] R^T + Rb), for all positions t of a layer, one after the other.
//
// products [steps, batch, WAYS * GATES * HIDDEN] in float32: x W^T, of an earlier launch. R [WAYS, GATES * HIDDEN, HIDDEN],
// bias [WAYS, 2 * GATES * HIDDEN], states [WAYS, batch, HIDDEN]; y [steps, WAYS, batch, HIDDEN], and the last h and c like
// the states. Accuracy: sums, gates and c are float32 from the first position to the last; h is rounded once a position, as
// it is written.
//
// A direction of ROWS sequences is the work of a cluster. Each of its blocks has CELLS cells with their part of R, in
// registers for the first HELD slices of 16 terms, in shared memory for the rest, so that nothing but h moves between
// positions: each block has all of it in shared memory, twice, since what the blocks hand each other for the next position
// is written while this one's is read. One barrier of the cluster a position.
//
// A tile of 16 rows is four cells with SLOTS gates each, zeros where a kind has fewer: row 2i is gate 0 of cell i, row
// 2i + 1 its gate 1, rows 2i + 8 and 2i + 9 are gates 2 and 3. So two neighbours of a product's lanes have all gates of a
// cell for two sequences: each hands the other what it needs, and has one.

constexpr int SLOTS = 4, IN_TILE = 4;
constexpr int CELLS = WARPS * TILES * IN_TILE;
constexpr int BEHIND = SLICES - HELD;
constexpr int CHAINS = TILES == 1 ? 4 : 2;  // sums of a tile side by side, so that products need not wait for each other
constexpr int SEQUENCES = ROWS / 8;
constexpr int PITCH = WIDTH + 8;            // elements: eight rows on, a lane meets other banks
constexpr int STATE = ROWS * PITCH / 4;     // words of 8 bytes
constexpr int STORED = WARPS * TILES * BEHIND * 32 * 2;
static_assert(SLICES % 2 == 0 && HELD % 2 == 0 && WIDTH >= SLICES * 16 && WIDTH >= CLUSTER * CELLS && WIDTH % 32 == 0,
              "h has a place for each term and each cell");
static_assert(THREADS == WARPS * 32 && SHARED_BYTES == (2 * STATE + STORED) * 8, "the plan counts as the kernel does");

using Memory = Shared<Chunk<8>, 2 * STATE + STORED>;
DYNAMIC_SHARED(char, memory, sizeof(Memory));

struct Parameters {
  unsigned steps, batch;
};

DEVICE unsigned short bits_of(const Factor* from) { return load_bits(from); }
DEVICE float value_of(const Factor* from) { return decode(load_bits(from), (Factor*)nullptr); }

// The block's barrier, or that of the cluster: between the two halves a thread does what others need not wait for.
DEVICE void arrive() {
  if constexpr (CLUSTER > 1) {
    wait_for_warp();
    arrive_at_blocks();
  }
}
DEVICE void wait_for_all() {
  if constexpr (CLUSTER > 1) wait_for_arrived_blocks();
  else wait_for_block();
}

// Where the thread's part of the layer lies.
struct Part {
  int lane, warp;
  unsigned rank, way;
  unsigned row;  // the first of the cluster's sequences
  DEVICE Part(const Parameters& p) {
    const unsigned cluster = block_index() / CLUSTER, groups = (p.batch + ROWS - 1) / ROWS;
    lane = thread_index() % 32;
    warp = thread_index() / 32;
    rank = block_index() % CLUSTER;
    way = cluster / groups;
    row = (cluster - way * groups) * ROWS;
  }
  // The first cell of a tile, of the direction's.
  DEVICE int first(int tile) const { return (int)rank * CELLS + (warp * TILES + tile) * IN_TILE; }
  // After the exchange: the lane's cell in a tile, its sequence in eight.
  DEVICE int cell(int tile) const { return first(tile) + lane / 8; }
  DEVICE unsigned sequence(int eight) const { return row + eight * 8 + lane % 4 * 2 + lane / 4 % 2; }
};

// Two neighbours of a row of R.
DEVICE unsigned two_weights(const Factor* r, const Part& part, int tile, int row, int term) {
  const int cell = part.first(tile) + row % 8 / 2, gate = row / 8 * 2 + row % 2;
  if (cell >= HIDDEN || gate >= GATES || term >= HIDDEN) return 0;
  const Factor* from = r + ((unsigned long long)(part.way * GATES + gate) * HIDDEN + cell) * HIDDEN + term;
  if constexpr (PAIRED) return read(reinterpret_cast<const unsigned*>(from));
  return bits_of(from) | (term + 1 < HIDDEN ? (unsigned)bits_of(from + 1) << 16 : 0u);
}
DEVICE void load_weights(unsigned (&to)[4], const Factor* r, const Part& part, int tile, int slice) {
  UNROLLED for (int i = 0; i < 4; ++i)
    to[i] = two_weights(r, part, tile, part.lane / 4 + i % 2 * 8, slice * 16 + part.lane % 4 * 2 + i / 2 * 8);
}

// The products of the layer's input of one position, for the thread's cells.
struct Given {
  float of[TILES][SEQUENCES][GATES];
  DEVICE void load(const float* products, const Part& part, const Parameters& p, unsigned at) {
    UNROLLED for (int n = 0; n < SEQUENCES; ++n) {
      const unsigned b = part.sequence(n);
      const float* from = products + ((unsigned long long)at * p.batch + b) * (WAYS * GATES * HIDDEN) + part.way * (GATES * HIDDEN);
      UNROLLED for (int i = 0; i < TILES; ++i)
        UNROLLED for (int g = 0; g < GATES; ++g)
          of[i][n][g] = b < p.batch && part.cell(i) < HIDDEN ? read(from + g * HIDDEN + part.cell(i)) : 0.0f;
    }
  }
};

DEVICE void recurrent(const Pointers& t, const Parameters& p) {
  const Part part(p);
  Memory& shared = *reinterpret_cast<Memory*>(memory);
  Chunk<8>* mine = shared.mine();
  const int lane = part.lane;

  // ---- what stays: R, the biases, h and c before the first position
  unsigned held[TILES][HELD][4];
  UNROLLED for (int i = 0; i < TILES; ++i) {
    UNROLLED for (int s = 0; s < HELD; ++s) load_weights(held[i][s], t.r, part, i, s);
    for (int s = 0; s < BEHIND; ++s) {
      unsigned weights[4];
      load_weights(weights, t.r, part, i, HELD + s);
      store_shared(shared_address(mine + 2 * STATE + (((part.warp * TILES + i) * BEHIND + s) * 32 + lane) * 2), weights);
    }
  }
  float bias_of_x[TILES][GATES] = {}, bias_of_r[TILES][SLOTS] = {};
  UNROLLED for (int i = 0; i < TILES; ++i)
    UNROLLED for (int g = 0; g < GATES; ++g)
      if (t.bias && part.cell(i) < HIDDEN) {
        const Factor* from = t.bias + (part.way * 2 * GATES + g) * HIDDEN + part.cell(i);
        bias_of_x[i][g] = value_of(from);
        bias_of_r[i][g] = value_of(from + GATES * HIDDEN);
      }
  const auto state = [&](unsigned b, int cell) { return ((unsigned long long)part.way * p.batch + b) * HIDDEN + cell; };
  float h[TILES][SEQUENCES] = {}, c[TILES][SEQUENCES] = {};
  UNROLLED for (int i = 0; i < TILES; ++i)
    UNROLLED for (int n = 0; n < SEQUENCES; ++n)
      if (const unsigned b = part.sequence(n); b < p.batch && part.cell(i) < HIDDEN) {
        if (t.h) h[i][n] = value_of(t.h + state(b, part.cell(i)));
        if (t.c) c[i][n] = value_of(t.c + state(b, part.cell(i)));
      }
  for (int i = thread_index(); i < STATE; i += THREADS) {
    unsigned word[2] = {};
    UNROLLED for (int e = 0; e < 4; ++e) {
      const int cell = i * 4 % PITCH + e;
      const unsigned b = part.row + i * 4 / PITCH;
      if (t.h && b < p.batch && cell < HIDDEN) word[e / 2] |= (unsigned)bits_of(t.h + state(b, cell)) << e % 2 * 16;
    }
    mine[i] = {word[0], word[1]};
    mine[STATE + i] = {};
  }
  const bool reverse = REVERSE || part.way == 1;
  const auto place = [&](unsigned step) { return reverse ? p.steps - 1 - step : step; };
  Given given;
  if (p.steps > 0) given.load(t.products, part, p, place(0));
  wait_for_block();
  arrive();
  wait_for_all();

  for (unsigned step = 0; step < p.steps; ++step) {
    const SharedAddress now = shared_address(mine + step % 2 * STATE);
    const int next = (step + 1) % 2 * STATE;
    unsigned result[TILES][SEQUENCES];
    UNROLLED for (int n = 0; n < SEQUENCES; ++n) {
      // ---- h R^T for eight sequences
      float sums[TILES][CHAINS][4] = {};
      UNROLLED for (int pair = 0; pair < SLICES / 2; ++pair) {
        unsigned terms[4];
        load_blocks<false>(terms, now + ((n * 8 + lane % 8) * PITCH + pair * 32 + lane / 8 * 8) * 2);
        UNROLLED for (int half = 0; half < 2; ++half)
          UNROLLED for (int i = 0; i < TILES; ++i) {
            const int slice = pair * 2 + half;
            if (slice < HELD) {
              product(sums[i][slice % CHAINS], held[i][slice < HELD ? slice : 0], terms[half * 2], terms[half * 2 + 1],
                      (Factor*)nullptr);
            } else {
              unsigned weights[4];
              const int at = ((part.warp * TILES + i) * BEHIND + slice - HELD) * 32 + lane;
              load_shared(weights, shared_address(mine + 2 * STATE + at * 2));
              product(sums[i][slice % CHAINS], weights, terms[half * 2], terms[half * 2 + 1], (Factor*)nullptr);
            }
          }
      }
      // ---- the cells
      UNROLLED for (int i = 0; i < TILES; ++i) {
        float sum[4];
        UNROLLED for (int e = 0; e < 4; ++e) {
          sum[e] = sums[i][0][e];
          UNROLLED for (int chain = 1; chain < CHAINS; ++chain) sum[e] += sums[i][chain][e];
        }
        const bool odd = lane / 4 % 2;
        const float low = float_of_bits(exchange(bits_of_float(odd ? sum[0] : sum[1]), 4));
        const float high = float_of_bits(exchange(bits_of_float(odd ? sum[2] : sum[3]), 4));
        const float own[SLOTS] = {odd ? low : sum[0], odd ? sum[1] : low, odd ? high : sum[2], odd ? sum[3] : high};
        float x[GATES], r[SLOTS];
        UNROLLED for (int g = 0; g < GATES; ++g) x[g] = given.of[i][n][g] + bias_of_x[i][g];
        UNROLLED for (int g = 0; g < SLOTS; ++g) r[g] = own[g] + bias_of_r[i][g];
        Cell::step(x, r, h[i][n], c[i][n]);
        result[i][n] = encode(h[i][n], (Factor*)nullptr);
        // The four cells of the tile side by side; each quarter of the warp gives them to every fourth block.
        const unsigned other = exchange(result[i][n], 8);
        const unsigned pair = lane / 8 % 2 ? other | result[i][n] << 16 : result[i][n] | other << 16;
        const unsigned beside = exchange(pair, 16);
        const Chunk<8> four = {lane / 16 ? beside : pair, lane / 16 ? pair : beside};
        const int to = next + ((n * 8 + lane % 4 * 2 + odd) * PITCH + part.first(i)) / 4;
        UNROLLED for (int rank = 0; rank < CLUSTER; rank += 4)
          if (rank + lane / 8 < CLUSTER) shared.in(rank + lane / 8)[to] = four;
      }
    }
    arrive();
    if (t.y)
      UNROLLED for (int n = 0; n < SEQUENCES; ++n)
        UNROLLED for (int i = 0; i < TILES; ++i)
          if (const unsigned b = part.sequence(n); b < p.batch && part.cell(i) < HIDDEN)
            write(reinterpret_cast<unsigned short*>(t.y) +
                      (((unsigned long long)place(step) * WAYS + part.way) * p.batch + b) * HIDDEN + part.cell(i),
                  (unsigned short)result[i][n]);
    if (step + 1 < p.steps) given.load(t.products, part, p, place(step + 1));
    wait_for_all();
  }

  UNROLLED for (int i = 0; i < TILES; ++i)
    UNROLLED for (int n = 0; n < SEQUENCES; ++n)
      if (const unsigned b = part.sequence(n); b < p.batch && part.cell(i) < HIDDEN) {
        if (t.last_h) write(reinterpret_cast<unsigned short*>(t.last_h) + state(b, part.cell(i)), encode(h[i][n], (Factor*)nullptr));
        if (t.last_c) write(reinterpret_cast<unsigned short*>(t.last_c) + state(b, part.cell(i)), encode(c[i][n], (Factor*)nullptr));
      }
}
