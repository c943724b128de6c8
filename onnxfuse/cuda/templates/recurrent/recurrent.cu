// y[t] = h[t] = the cells' step of (x[t] W^T + Wb, h[t - 1] R^T + Rb), for all positions t of a layer, one after the other.
//
// products [steps, batch, WAYS * GATES * HIDDEN] in float32: x W^T, of an earlier launch. R [WAYS, GATES * HIDDEN, HIDDEN],
// bias [WAYS, 2 * GATES * HIDDEN], states [WAYS, batch, HIDDEN]; y [steps, WAYS, batch, HIDDEN], and the last h and c like
// the states. Accuracy: sums, gates and c are float32 from the first position to the last; h is rounded once a position, as
// it is written.
//
// The weights stay on the chip for all positions (Diamos et al., Persistent RNNs, 2016).
//
// A direction of ROWS sequences is the work of a cluster. Each of its blocks has CELLS cells with their part of R, in
// registers for the first HELD slices of 16 terms, in shared memory for the rest, so that nothing but h moves between
// positions: each block has all of it in shared memory, twice, since what the blocks send each other for the next position
// is written while this one's is read. A block goes on when all of it has come: then every warp of the cluster has sent its
// part, after it read the position before, whose place is free. No other barrier is needed.
//
// A tile of 16 rows is four cells with SLOTS gates each, zeros where a kind has fewer: row 2i is gate 0 of cell i, row
// 2i + 1 its gate 1, rows 2i + 8 and 2i + 9 are gates 2 and 3. So two neighbours of a product's lanes have all gates of a
// cell for two sequences: each hands the other what it needs, and has one. Four lanes then have the cells of a sequence in
// two tiles, 16 bytes, which each of them sends to every fourth block. h lies as products read it: eight sequences by eight
// cells are 128 bytes side by side, which a quarter of a warp sends and reads at once.

constexpr int SLOTS = 4, IN_TILE = 4;
constexpr int CELLS = WARPS * TILES * IN_TILE;
constexpr int BEHIND = SLICES - HELD;
constexpr int SEQUENCES = ROWS / 8;
// Sums of a tile side by side: a product need not wait for that of the one before it. As many as the registers hold.
constexpr int CHAINS = SEQUENCES == 1 && TILES == 2 && BEHIND == 0 ? 4 : 2;
constexpr int STATE = ROWS * WIDTH / 8;           // pieces of 16 bytes
constexpr int SENT = ROWS * CLUSTER * CELLS * 2;  // bytes that come to a block from one position to the next
constexpr int STORED = WARPS * TILES * BEHIND * 32;
static_assert(SLICES % 2 == 0 && HELD % 2 == 0 && TILES % 2 == 0, "two at a time");
static_assert(WIDTH >= SLICES * 16 && WIDTH >= CLUSTER * CELLS && WIDTH % 8 == 0,
              "h has a place for each term and cell");
static_assert(THREADS == WARPS * 32 && SHARED_BYTES == (2 * STATE + STORED) * 16, "the plan counts as the kernel does");

using Mma = MmaSync<Factor>;
using Memory = Shared<Chunk<16>, 2 * STATE + STORED>;
DYNAMIC_SHARED(char, memory, sizeof(Memory));

struct Parameters { unsigned steps, batch; };

DEVICE unsigned short bits_of(const Factor* from) { return load_bits(from); }
DEVICE float value_of(const Factor* from) { return decode(load_bits(from), (Factor*)nullptr); }

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
  UNROLLED for (int i = 0; i < 4; ++i) to[i] =
      two_weights(r, part, tile, part.lane / 4 + i % 2 * 8, slice * 16 + part.lane % 4 * 2 + i / 2 * 8);
}

// Where the piece of a sequence with `cell` and its seven neighbours lies in h.
DEVICE int piece_of(int sequence, int cell) { return (sequence / 8 * (WIDTH / 8) + cell / 8) * 8 + sequence % 8; }

// The cells of a sequence in two tiles side by side, from the four lanes that have them: in low halves those of the first.
DEVICE Chunk<16> gathered(unsigned both) {
  const int quarter = thread_index() % 32 / 8;
  const unsigned neighbour = exchange(both, 8);
  const unsigned even = quarter % 2 ? neighbour : both, odd = quarter % 2 ? both : neighbour;
  const unsigned other_even = exchange(even, 16), other_odd = exchange(odd, 16);
  const unsigned a = quarter / 2 ? other_even : even, b = quarter / 2 ? other_odd : odd;
  const unsigned c = quarter / 2 ? even : other_even, d = quarter / 2 ? odd : other_odd;
  return {(a & 0xffffu) | b << 16, (c & 0xffffu) | d << 16, a >> 16 | (b & 0xffff0000u), c >> 16 | (d & 0xffff0000u)};
}

// The products of the layer's input of one position, for the thread's cells.
struct Given {
  float of[TILES][SEQUENCES][GATES];
  DEVICE void load(const float* products, const Part& part, const Parameters& p, unsigned at) {
    UNROLLED for (int n = 0; n < SEQUENCES; ++n) {
      const unsigned b = part.sequence(n);
      const float* from =
          products + ((unsigned long long)at * p.batch + b) * (WAYS * GATES * HIDDEN) + part.way * (GATES * HIDDEN);
      UNROLLED for (int i = 0; i < TILES; ++i) UNROLLED for (int g = 0; g < GATES; ++g) of[i][n][g] =
          b < p.batch && part.cell(i) < HIDDEN ? read(from + g * HIDDEN + part.cell(i)) : 0.0f;
    }
  }
};

DEVICE void recurrent(const Pointers& t, const Parameters& p) {
  const Part part(p);
  Memory& shared = *reinterpret_cast<Memory*>(memory);
  Chunk<16>* mine = shared.mine();
  const int lane = part.lane;

  // ---- what stays: R, the biases, h and c before the first position
  unsigned held[TILES][HELD][4];
  UNROLLED for (int i = 0; i < TILES; ++i) {
    UNROLLED for (int s = 0; s < HELD; ++s) load_weights(held[i][s], t.r, part, i, s);
    for (int s = 0; s < BEHIND; ++s) {
      unsigned weights[4];
      load_weights(weights, t.r, part, i, HELD + s);
      store_shared(shared_address(mine + 2 * STATE + ((part.warp * TILES + i) * BEHIND + s) * 32 + lane), weights);
    }
  }
  float bias_of_x[TILES][GATES] = {}, bias_of_r[TILES][SLOTS] = {};
  UNROLLED for (int i = 0; i < TILES; ++i)
      UNROLLED for (int g = 0; g < GATES; ++g) if (t.bias && part.cell(i) < HIDDEN) {
    const Factor* from = t.bias + (part.way * 2 * GATES + g) * HIDDEN + part.cell(i);
    bias_of_x[i][g] = value_of(from);
    bias_of_r[i][g] = value_of(from + GATES * HIDDEN);
  }
  const auto state = [&](unsigned b, int cell) { return ((unsigned long long)part.way * p.batch + b) * HIDDEN + cell; };
  float h[TILES][SEQUENCES] = {}, c[TILES][SEQUENCES] = {};
  UNROLLED for (int i = 0; i < TILES; ++i)
      UNROLLED for (int n = 0; n < SEQUENCES; ++n) if (const unsigned b = part.sequence(n);
                                                       b < p.batch && part.cell(i) < HIDDEN) {
    if (t.h) h[i][n] = value_of(t.h + state(b, part.cell(i)));
    if (t.c) c[i][n] = value_of(t.c + state(b, part.cell(i)));
  }
  for (int i = thread_index(); i < STATE; i += THREADS) {
    const int first = i / 8 % (WIDTH / 8) * 8;
    const unsigned b = part.row + i / 8 / (WIDTH / 8) * 8 + i % 8;
    unsigned word[4] = {};
    UNROLLED for (int e = 0; e < 8; ++e) if (t.h && b < p.batch && first + e < HIDDEN) word[e / 2] |=
        (unsigned)bits_of(t.h + state(b, first + e)) << e % 2 * 16;
    mine[i] = {word[0], word[1], word[2], word[3]};
    mine[STATE + i] = {};
  }
  const bool reverse = REVERSE || part.way == 1;
  const auto place = [&](unsigned step) { return reverse ? p.steps - 1 - step : step; };
  Given given;
  if (p.steps > 0) given.load(t.products, part, p, place(0));
  SHARED Shared<Arrivals, 2> arrivals;
  if constexpr (CLUSTER > 1) {
    if (thread_index() == 0) {
      UNROLLED for (int i = 0; i < 2; ++i) arrivals.mine()[i].begin();
      arrivals.mine()[1].announce(SENT);
    }
    wait_for_warp();
    cluster_sync();
  } else {
    wait_for_block();
  }

  for (unsigned step = 0; step < p.steps; ++step) {
    const SharedAddress now = shared_address(mine + step % 2 * STATE);
    const int other = (step + 1) % 2, next = other * STATE;
    unsigned result[TILES][SEQUENCES];
    UNROLLED for (int n = 0; n < SEQUENCES; ++n) {
      // ---- h R^T for eight sequences
      float sums[TILES][CHAINS][4] = {};
      UNROLLED for (int pair = 0; pair < SLICES / 2; ++pair) {
        unsigned terms[4];
        load_matrices<false>(terms, now + piece_of(n * 8 + lane % 8, pair * 32 + lane / 8 * 8) * 16);
        UNROLLED for (int half = 0; half < 2; ++half) UNROLLED for (int i = 0; i < TILES; ++i) {
          const int slice = pair * 2 + half;
          if (slice < HELD) {
            Mma::multiply(sums[i][slice % CHAINS], held[i][slice < HELD ? slice : 0], terms[half * 2],
                          terms[half * 2 + 1]);
          } else {
            unsigned weights[4];
            const int at = ((part.warp * TILES + i) * BEHIND + slice - HELD) * 32 + lane;
            load_shared(weights, shared_address(mine + 2 * STATE + at));
            Mma::multiply(sums[i][slice % CHAINS], weights, terms[half * 2], terms[half * 2 + 1]);
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
      }
      const int sequence = n * 8 + lane % 4 * 2 + lane / 4 % 2;
      UNROLLED for (int i = 0; i < TILES; i += 2) {
        const Chunk<16> eight = gathered(result[i][n] | result[i + 1][n] << 16);
        const int to = next + piece_of(sequence, part.first(i));
        if constexpr (CLUSTER > 1) {
          UNROLLED for (int rank = 0; rank < CLUSTER; rank += 4) if (rank + lane / 8 < CLUSTER)
              shared.send(rank + lane / 8, to, eight, arrivals, other);
        } else if (lane < 8) {
          mine[to] = eight;
        }
      }
    }
    if (CLUSTER > 1 && thread_index() == 0)
      arrivals.mine()[step % 2].announce(SENT);  // for the position after the next
    if (t.y)
      UNROLLED for (int n = 0; n < SEQUENCES; ++n)
          UNROLLED for (int i = 0; i < TILES; ++i) if (const unsigned b = part.sequence(n);
                                                       b < p.batch && part.cell(i) < HIDDEN)
              write(reinterpret_cast<unsigned short*>(t.y) +
                        (((unsigned long long)place(step) * WAYS + part.way) * p.batch + b) * HIDDEN + part.cell(i),
                    (unsigned short)result[i][n]);
    if (step + 1 < p.steps) given.load(t.products, part, p, place(step + 1));
    if constexpr (CLUSTER > 1) {
      arrivals.mine()[other].wait_for(step / 2);
      wait_for_warp();
    } else {
      wait_for_block();
    }
  }

  UNROLLED for (int i = 0; i < TILES; ++i)
      UNROLLED for (int n = 0; n < SEQUENCES; ++n) if (const unsigned b = part.sequence(n);
                                                       b < p.batch && part.cell(i) < HIDDEN) {
    if (t.last_h)
      write(reinterpret_cast<unsigned short*>(t.last_h) + state(b, part.cell(i)), encode(h[i][n], (Factor*)nullptr));
    if (t.last_c)
      write(reinterpret_cast<unsigned short*>(t.last_c) + state(b, part.cell(i)), encode(c[i][n], (Factor*)nullptr));
  }
}
