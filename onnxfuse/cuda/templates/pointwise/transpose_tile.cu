// y[i] = body(a[map_a(i)], ...) where some input runs across: its neighbours are not those of the output.
//
// A block computes ROWS x COLUMNS elements: COLUMNS along the inner dimension of the output, ROWS along dimension ROW,
// in which the inputs that run across are contiguous. They are read along ROW, 16 bytes at a time where they can be,
// and lie in shared memory by column; everything else is read where it is used. Both sides of memory see whole sectors
// (Ruetsch and Micikevicius, Optimizing matrix transpose in CUDA, 2009).
// Accuracy: computed in the body's types (float for 16-bit floats, double for double), rounded once when stored.
//
// SHIFTED: rows of the output begin and end inside vectors. Vectors then lie on the boundaries of memory, not on those of
// rows: those of a tile begin up to WIDTH - 1 columns to the left of it, so that many columns more are in shared memory,
// and `own` says which elements are the row's. Sources whose runs begin inside vectors are read the same way.
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

constexpr int HELD_COLUMNS = COLUMNS + (SHIFTED ? WIDTH : 0);  // the tile's first column is the last COLUMNS of them
template <class T> constexpr int PITCH = ROWS + (sizeof(T) < 4 ? 4 / int(sizeof(T)) : 1);
template <class T> struct alignas(16) Tile { typename Raw<sizeof(T)>::Word bits[HELD_COLUMNS * PITCH<T>]; };

// G elements along ROW go to shared memory, a word at a time where they fill words.
template <int G, class T> DEVICE void put(Tile<T>& tile, int row, int column, const Pack<T, G>& piece) {
  auto* to = tile.bits + column * PITCH<T> + row;
  if constexpr (G * sizeof(T) >= 4 && sizeof(T) < 4) {
    UNROLLED for (int i = 0; i < G * int(sizeof(T)) / 4; ++i) reinterpret_cast<unsigned*>(to)[i] = piece.word(i);
  } else {
    UNROLLED for (int i = 0; i < G; ++i) to[i] = piece.bits(i);
  }
}

// The neighbours of the element at (row, held column); WRITTEN_FLAT: the next row follows the last column.
template <int W, class T> DEVICE Pack<T, W> pick(const Tile<T>& tile, int row, int column) {
  Pack<T, W> pack = {};
  UNROLLED for (int w = 0; w < W; ++w) {
    const bool over = WRITTEN_FLAT && column + w >= COLUMNS;
    static_assert(!WRITTEN_FLAT || W <= COLUMNS);
    pack.set_bits(w, tile.bits[(column + w - (over ? COLUMNS : 0)) * PITCH<T> + row + (over ? 1 : 0)]);
  }
  return pack;
}

struct Block {
  Index outer, row, column;  // the tile's first element that is held; SHIFTED: wraps around left of the first column

  DEVICE explicit Block(const Parameters& p) {
    const Index rest = tiles_across(p).quotient(block_from_end());
    column = (block_from_end() - rest * tiles_across(p).value) * COLUMNS - (HELD_COLUMNS - COLUMNS);
    outer = tiles_down(p).quotient(rest);
    row = (rest - outer * tiles_down(p).value) * ROWS;
  }
  DEVICE bool holds(int r, int c, const Parameters& p) const {
    return row + r < p.extent[ROW].value && column + c < p.extent[RANK - 1].value;
  }
  DEVICE Place at(int r, int c, const Parameters& p) const { return place_in_tile(outer, row + r, column + c, p); }
};

// All loads of a thread are issued before the first one is waited for.
template <class R, int G, class T>
DEVICE void fill(Tile<T>& tile, const T* from, const Block& block, const Parameters& p) {
  constexpr int PIECES = ROWS / G * HELD_COLUMNS, EACH = (PIECES + THREADS - 1) / THREADS;
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

// The same where runs begin inside vectors: each vector with elements of the tile is fetched whole, but the last one of the
// operand where it has no more than `count` elements.
template <class R, int G, class T>
DEVICE void fill_shifted(Tile<T>& tile, const T* from, Index count, const Block& block, const Parameters& p) {
  constexpr int EACH_COLUMN = (ROWS + 2 * G - 2) / G, PIECES = EACH_COLUMN * HELD_COLUMNS;
  constexpr int EACH = (PIECES + THREADS - 1) / THREADS;
  Pack<T, G> held[EACH];
  int first[EACH];  // row of the piece's first element; ROWS: nothing to fetch
  UNROLLED for (int i = 0; i < EACH; ++i) {
    const int piece = thread_index() + i * THREADS, column = piece / EACH_COLUMN;
    held[i] = {};
    first[i] = ROWS;
    Index position;
    if (piece >= PIECES || !block.holds(0, column, p) || !R::find(block.at(0, column, p), p, position)) continue;
    const int row = piece % EACH_COLUMN * G - int(position % G);
    const Index left = p.extent[ROW].value - block.row, begin = position + row;
    if (row >= ROWS || (row > 0 && row >= left)) continue;
    first[i] = row;
    if (begin + G <= count) {
      held[i] = load<G>(from + begin);
    } else {
      UNROLLED for (int w = 0; w < G; ++w) if (begin + w < count) held[i].set_bits(w, load_bits(from + begin + w));
    }
  }
  UNROLLED for (int i = 0; i < EACH; ++i) {
    const int column = (thread_index() + i * THREADS) / EACH_COLUMN;
    UNROLLED for (int w = 0; w < G; ++w) {
      const int row = first[i] + w;
      if (0 <= row && row < ROWS) tile.bits[column * PITCH<T> + row] = held[i].bits(w);
    }
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
      for (int w = 0; first + w < whole; ++w) held[i].set_bits(w, load_bits(from + start + first + w));
    }
  }
  UNROLLED for (int i = 0; i < EACH; ++i) {
    const int first = (thread_index() + i * THREADS) * G;
    if (first >= ROWS * COLUMNS) continue;
    UNROLLED for (int w = 0; w < G; ++w) tile.bits[(first + w) / ROWS * PITCH<T> + (first + w) % ROWS] =
        held[i].bits(w);
  }
}

// Of a vector of the output, of which only some elements lie in the row.
template <int W, class T> DEVICE Pack<T, W> load_written(const T* from, const Place& at, const Parameters& p) {
  if (at.linear + W <= p.count) return load<W>(from + at.linear);
  Pack<T, W> pack = {};
  UNROLLED for (int w = 0; w < W; ++w) if (at.linear + w < p.count) pack.set_bits(w, load_bits(from + at.linear + w));
  return pack;
}
template <class R, int W, class F> DEVICE auto load_owned(const F& from, Place at, unsigned own, const Parameters& p) {
  Pack<decltype(element_of(input<R>(from, at, p))), W> pack = {};
  UNROLLED for (int w = 0; w < W; ++w) {
    Index position;
    if ((own >> w & 1) && R::find(at, p, position)) pack.set_bits(w, load_bits(input<R>(from, at, p) + position));
    at.template advance<1>(p);
  }
  return pack;
}
