// y[i] = body(a[map_a(i)], ...) where some input runs across: its neighbours are not those of the output.
//
// A block computes ROWS x COLUMNS elements: COLUMNS along the inner dimension of the output, ROWS along dimension ROW,
// in which the inputs that run across are contiguous. They are read along ROW, 16 bytes at a time where they can be,
// and lie in shared memory by column; everything else is read where it is used. Both sides of memory see whole sectors.
// Accuracy: computed in the body's types (float for 16-bit floats, double for double), rounded once when stored.
//
// Shared rows are an odd number of words apart: a warp that writes along ROW, a word a lane, meets 32 banks; one that
// reads 8 columns further with each lane meets each bank twice.

DEVICE Place place_in_tile(Index outer, Index row, Index column, const Parameters& p) {
  Place at(0, p);
  Index rest = outer;
  UNROLLED for (int d = RANK - 2; d >= 0; --d) {
    if (d == ROW) continue;
    const Index further = p.extent[d].quotient(rest);
    at.coordinate[d] = rest - further * p.extent[d].value;
    rest = further;
  }
  at.coordinate[ROW] = row;
  at.coordinate[RANK - 1] = column;
  at.linear = at.coordinate[0];
  UNROLLED for (int d = 1; d < RANK; ++d) at.linear = at.linear * p.extent[d].value + at.coordinate[d];
  return at;
}

template <class T> constexpr int PITCH = ROWS + (sizeof(T) < 4 ? 4 / int(sizeof(T)) : 1);
template <class T> struct alignas(16) Tile {
  typename Raw<sizeof(T)>::Word bits[COLUMNS * PITCH<T>];
};

// G elements along ROW go to shared memory, a word at a time where they fill words.
template <int G, class T> DEVICE void put(Tile<T>& tile, int row, int column, const Pack<T, G>& piece) {
  auto* to = tile.bits + column * PITCH<T> + row;
  if constexpr (G * sizeof(T) >= 4 && sizeof(T) < 4) {
    UNROLLED for (int i = 0; i < G * int(sizeof(T)) / 4; ++i) reinterpret_cast<unsigned*>(to)[i] = piece.word(i);
  } else {
    UNROLLED for (int i = 0; i < G; ++i) to[i] = piece.bits(i);
  }
}

// The neighbours of the element at (row, column); WRITTEN_FLAT: the next row follows the last column.
template <int W, class T> DEVICE Pack<T, W> pick(const Tile<T>& tile, int row, int column) {
  Pack<T, W> pack = {};
  UNROLLED for (int lane = 0; lane < W; ++lane) {
    const bool over = WRITTEN_FLAT && column + lane >= COLUMNS;
    static_assert(!WRITTEN_FLAT || W <= COLUMNS);
    pack.set_bits(lane, tile.bits[(column + lane - (over ? COLUMNS : 0)) * PITCH<T> + row + (over ? 1 : 0)]);
  }
  return pack;
}

struct Block {
  Index outer, row, column;  // the tile's first element

  DEVICE explicit Block(const Parameters& p) {
    const Index rest = tiles_across(p).quotient(block_index());
    column = (block_index() - rest * tiles_across(p).value) * COLUMNS;
    outer = tiles_down(p).quotient(rest);
    row = (rest - outer * tiles_down(p).value) * ROWS;
  }
  DEVICE bool holds(int r, int c, const Parameters& p) const {
    return row + r < p.extent[ROW].value && column + c < p.extent[RANK - 1].value;
  }
  DEVICE Place at(int r, int c, const Parameters& p) const { return place_in_tile(outer, row + r, column + c, p); }
};

// All loads of a thread are issued before the first one is waited for.
template <class R, int G, class T> DEVICE void fill(Tile<T>& tile, const T* from, const Block& block, const Parameters& p) {
  constexpr int PIECES = ROWS / G * COLUMNS, EACH = (PIECES + THREADS - 1) / THREADS;
  Pack<T, G> held[EACH];
  UNROLLED for (int i = 0; i < EACH; ++i) {
    const int piece = thread_index() + i * THREADS, row = piece % (ROWS / G) * G, column = piece / (ROWS / G);
    held[i] = {};
    if (piece < PIECES && block.holds(row, column, p)) {
      Index position;
      if (R::find(block.at(row, column, p), p, position)) held[i] = load<G>(from + position);
    }
  }
  UNROLLED for (int i = 0; i < EACH; ++i) {
    const int piece = thread_index() + i * THREADS, row = piece % (ROWS / G) * G, column = piece / (ROWS / G);
    if (piece < PIECES) put<G>(tile, row, column, held[i]);
  }
}

// The same where the tile is one run in memory, column after column: ROWS is the whole extent, an access runs on into
// the next column. What lies beyond the last column is not read.
template <class R, int G, class T>
DEVICE void fill_flat(Tile<T>& tile, const T* from, const Block& block, const Parameters& p) {
  constexpr int PIECES = ROWS * COLUMNS / G, EACH = (PIECES + THREADS - 1) / THREADS;
  const Index left = p.extent[RANK - 1].value - block.column;
  const int whole = left < COLUMNS ? (int)left * ROWS : ROWS * COLUMNS;
  Index start;
  const bool there = R::find(block.at(0, 0, p), p, start);
  Pack<T, G> held[EACH];
  UNROLLED for (int i = 0; i < EACH; ++i) {
    const int first = (thread_index() + i * THREADS) * G;
    held[i] = {};
    if (!there || first >= whole) continue;
    if (first + G <= whole) {
      held[i] = load<G>(from + start + first);
    } else {
      for (int lane = 0; first + lane < whole; ++lane) held[i].set_bits(lane, load_bits(from + start + first + lane));
    }
  }
  UNROLLED for (int i = 0; i < EACH; ++i) {
    const int first = (thread_index() + i * THREADS) * G;
    if (first >= ROWS * COLUMNS) continue;
    UNROLLED for (int lane = 0; lane < G; ++lane)
      tile.bits[(first + lane) / ROWS * PITCH<T> + (first + lane) % ROWS] = held[i].bits(lane);
  }
}
