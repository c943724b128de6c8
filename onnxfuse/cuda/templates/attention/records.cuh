// What a warp or a block has found of 16 rows, by the keys that it has seen, and how several of these meet: in float, in an order
// that never changes (Dao et al., Flash-Decoding, 2023).

// 16 rows before they are divided by the sum of their weights.
struct alignas(16) Record {
  float y[16][SIZE + 8];  // eight rows begin in different banks
  float highest[16], sum[16];
};

// Steps that a warp copies before it multiplies the first. WHOLE: mostly all that it has; else the ring has room for the next
// one while a step is multiplied, not behind it.
constexpr int FILLED = WHOLE ? STAGES : STAGES - 1;
// Of a warp: its ring, in whose place its rows come.
constexpr int bytes_of_warp() {
  constexpr int RING = STAGES * 2 * STEP_BYTES, ROWS = (int)sizeof(Record);
  return RING > ROWS ? RING : ROWS;
}

// Where the i-th one of a lane's two elements of a column of eight stands in its row; see rows.cuh.
template <class T> DEVICE int element(int column, int i, T*) { return column * 8 + (int)thread_index() % 4 * 2 + i; }
DEVICE int element(int column, int i, float*) {
  return column / AT_ONCE * AT_ONCE * 8 + (int)thread_index() % 4 * (2 * AT_ONCE) + i * AT_ONCE + column % AT_ONCE;
}

DEVICE void leave(Record& record, const Rows& rows) {
  UNROLLED for (int half = 0; half < 2; ++half) {
    const int row = (int)thread_index() % 32 / 4 + half * 8;
    UNROLLED for (int column = 0; column < COLUMNS; ++column) UNROLLED for (int i = 0; i < 2; ++i)
        record.y[row][element(column, i, (E*)nullptr)] = rows.y[0][column][half * 2 + i];
    float sum = rows.sum[0][half];
    UNROLLED for (int distance = 1; distance <= 2; distance *= 2) sum +=
        float_of_bits(exchange(bits_of_float(sum), distance));
    record.highest[row] = rows.highest[0][half];
    record.sum[row] = sum;
  }
}

// Two neighbours of a row.
struct alignas(16) Piece {
  Pair y;
  float highest, sum;
};

DEVICE Piece piece_of(const Record& record, int row, int column) {
  return {{record.y[row][column], record.y[row][column + 1]}, record.highest[row], record.sum[row]};
}

// Of so many pieces, `from` their numbers, in their order; the loads of TOGETHER wait together.
template <unsigned TOGETHER, class From> DEVICE Piece met(const From& from, unsigned count) {
  constexpr float UNIT = SCALED_LATE ? SCALE : 1.0f;
  const Piece none = {{}, lowest(), 0.0f};
  Piece all = none;
  for (unsigned first = 0; first < count; first += TOGETHER) {
    Piece found[TOGETHER + 1];
    UNROLLED for (unsigned i = 0; i < TOGETHER; ++i) found[i] = first + i < count ? from(first + i) : none;
    found[TOGETHER] = all;
    float highest = lowest();
    UNROLLED for (unsigned i = 0; i <= TOGETHER; ++i) highest = greater(highest, found[i].highest);
    const float base = highest == lowest() ? 0.0f : highest * UNIT;
    all = {{}, highest, 0.0f};
    UNROLLED for (unsigned i = 0; i <= TOGETHER; ++i) {
      const float share = power(found[i].highest, base);
      all.sum += found[i].sum * share;
      UNROLLED for (int e = 0; e < 2; ++e) all.y.at[e] += found[i].y.at[e] * share;
    }
  }
  return all;
}
template <unsigned TOGETHER> DEVICE Piece met(const Record* from, unsigned count, int row, int column) {
  return met<TOGETHER>([&](unsigned i) { return piece_of(from[i], row, column); }, count);
}

// What `work` does with each piece of so many rows, or with a block's share of them.
template <class Work> DEVICE void for_pieces(int rows, Work work, int share = 0, int shares = 1) {
  const int all = rows * (SIZE / 2), each = (all + shares - 1) / shares;
  const int end = (share + 1) * each < all ? (share + 1) * each : all;
  for (int i = share * each + thread_index(); i < end; i += THREADS) work(i / (SIZE / 2), i % (SIZE / 2) * 2);
}

// The rows of a block, and which of the parts that share their keys it has; `record`: among those of all blocks.
struct Part {
  int rows;
  unsigned number, parts, record;
};

// What all warps have found of a block's rows, and all blocks of a cluster, or those that leave it in `scratch` behind so
// many words of counters (SPLIT): `give` takes each piece. `found`: room for a Record of each warp.
template <class Give>
DEVICE void meet(const Rows& rows, Record* found, const Part& at, unsigned* scratch, long long counters, Give give) {
  leave(found[thread_index() / 32], rows);
  wait_for_block();
  if constexpr (CLUSTER > 1) {
    SHARED Shared<Piece, 16 * (SIZE / 2)> pieces;
    for_pieces(at.rows, [&](int row, int column) {
      pieces.mine()[row * (SIZE / 2) + column / 2] = met<WARPS>(found, WARPS, row, column);
    });
    cluster_sync();
    const auto gather = [&](int row, int column) {
      const auto of = [&](unsigned block) { return pieces.of(block, row * (SIZE / 2) + column / 2); };
      give(met<CLUSTER>(of, CLUSTER), row, column);
    };
    for_pieces(at.rows, gather, (int)at.number, CLUSTER);
    cluster_sync();  // no block leaves while others read what it has
  } else if constexpr (SPLIT) {
    Record* const all = (Record*)(scratch + counters) + at.record * (long long)at.parts;
    for_pieces(at.rows, [&](int row, int column) {
      const Piece piece = met<WARPS>(found, WARPS, row, column);
      Record& mine = all[at.number];
      UNROLLED for (int e = 0; e < 2; ++e) mine.y[row][column + e] = piece.y.at[e];
      if (column == 0) mine.highest[row] = piece.highest, mine.sum[row] = piece.sum;
    });
    if (last_to_come(scratch + at.record, at.parts))
      for_pieces(at.rows, [&](int row, int column) { give(met<16>(all, at.parts, row, column), row, column); });
  } else {
    for_pieces(at.rows, [&](int row, int column) { give(met<WARPS>(found, WARPS, row, column), row, column); });
  }
}
