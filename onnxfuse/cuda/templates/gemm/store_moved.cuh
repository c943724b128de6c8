// How a warp writes a chunk of its results, 16 rows by 64 columns, from shared memory to where they go in an output that
// is written reshaped and transposed: 16 bytes of a row or of a column at a time where they stay together, else element
// by element.

constexpr int WORD_BYTES = sizeof(Word);
constexpr int PART = 128 / WORD_BYTES;  // columns in a row of 128 bytes; a chunk has WORD_BYTES / 2 such parts

DEVICE void store_pieces(Word* to, const Layout& layout, Index column, Index row, Index m, Index n, unsigned buffer) {
  const int lane = thread_index() % 32, piece = lane % 8;
  UNROLLED for (int part = 0; part < WORD_BYTES / 2; ++part) {
    const Index right = column + part * PART + piece * (16 / WORD_BYTES);
    const Index across = layout.columns.at(right);
    UNROLLED for (int turn = 0; turn < 4; ++turn) {
      const int line = turn * 4 + lane / 8;
      if (row + line < m && right < n) {
        Chunk<16> held;
        load_shared(held, buffer + part * 2048 + swizzled(line, piece));
        write((Chunk<16>*)(to + layout.rows.at(row + line) + across), held);
      }
    }
  }
}

// A word of each row has one column of 4 bytes, or two of 2 bytes.
DEVICE void store_columns(Word* to, const Layout& layout, Index column, Index row, Index m, Index n, unsigned buffer) {
  constexpr int BESIDE = 4 / WORD_BYTES, DOWN = 16 / WORD_BYTES;
  const int lane = thread_index() % 32;
  UNROLLED for (int part = 0; part < WORD_BYTES / 2; ++part) {
    const Index right = column + part * PART + lane * BESIDE;
    UNROLLED for (int line = 0; line < 16; line += DOWN) {
      unsigned held[DOWN];
      UNROLLED for (int i = 0; i < DOWN; ++i) held[i] =
          load_shared(buffer + part * 2048 + swizzled(line + i, lane / 4) + lane % 4 * 4);
      if (row + line < m && right < n) {
        const Index down = layout.rows.at(row + line);
        UNROLLED for (int next = 0; next < BESIDE; ++next) {
          Chunk<16> one;
          UNROLLED for (int i = 0; i < 4; ++i) one.word[i] =
              BESIDE == 1 ? held[i]
              : next == 0 ? (held[i * DOWN / 4] & 0xffffu) | held[i * DOWN / 4 + BESIDE - 1] << 16
                          : held[i * DOWN / 4] >> 16 | (held[i * DOWN / 4 + BESIDE - 1] & 0xffff0000u);
          write((Chunk<16>*)(to + down + layout.columns.at(right + next)), one);
        }
      }
    }
  }
}

DEVICE void store_words(Word* to, const Layout& layout, Index column, Index row, Index m, Index n, unsigned buffer) {
  const int lane = thread_index() % 32, line = lane % 16;
  if (row + line >= m) return;
  to += layout.rows.at(row + line);
  for (int part = 0; part < WORD_BYTES / 2; ++part) {
    for (int turn = 0; turn < 16; ++turn) {
      const int number = turn * 2 + lane / 16;
      const unsigned held = load_shared(buffer + part * 2048 + swizzled(line, number / 4) + number % 4 * 4);
      UNROLLED for (int i = 0; i < 4 / WORD_BYTES; ++i) {
        const Index right = column + part * PART + number * (4 / WORD_BYTES) + i;
        if (right < n) write(to + layout.columns.at(right), (Word)(held >> (i * 8 * WORD_BYTES)));
      }
    }
  }
}

DEVICE void store_moved(const Results& results, const Stores& stores, int sibling, Index column, Index row, Index m,
                        Index n, unsigned buffer) {
  const Layout& layout = stores.layouts[sibling];
  Word* to = output_of(results, sibling);
  if (layout.together == 1) store_pieces(to, layout, column, row, m, n, buffer);
  else if (layout.together == 2) store_columns(to, layout, column, row, m, n, buffer);
  else store_words(to, layout, column, row, m, n, buffer);
}
