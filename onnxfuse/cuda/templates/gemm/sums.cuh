// A product's sums on their way from the fragments of warps to the body: GROUPS of warps that share the terms put theirs
// into shared memory, from where all threads go over them row by row, so that operands and outputs move in 16 bytes.
//
// ROWS and COLUMNS: of a block. A row of the fragments' cells belongs to eight lanes: eight rows on, a lane meets other banks.

DYNAMIC_SHARED(float, shared_floats, SHARED_BYTES / 4);  // a ring of stages before it has the sums

template <int GROUPS, int ROWS, int COLUMNS> struct SharedSums {
  static constexpr int PITCH = COLUMNS + 8;  // floats
  static constexpr int BYTES = GROUPS * ACCUMULATED * ROWS * PITCH * 4;

  static DEVICE float* row(int group, int product, int row) {
    return shared_floats + ((group * ACCUMULATED + product) * ROWS + row) * PITCH;
  }
  // Half of a lane's cells in TILES fragments of 16 by 8 next to each other, which begin at this row and column.
  template <int TILES>
  static DEVICE void store(int group, int product, int first, int column, const float (&sums)[TILES][4], int half) {
    const int lane = thread_index() % 32;
    float* to = row(group, product, first + half * 8 + lane / 4) + column + lane % 4 * 2;
    UNROLLED for (int j = 0; j < TILES; ++j) * reinterpret_cast<Chunk<8>*>(to + j * 8) = {
        bits_of_float(sums[j][half * 2]), bits_of_float(sums[j][half * 2 + 1])};
  }
  // WIDTH neighbours of a row, of all groups together.
  static DEVICE void load(float (&sum)[ACCUMULATED][WIDTH], int first, int column) {
    UNROLLED for (int g = 0; g < ACCUMULATED; ++g) {
      UNROLLED for (int group = 0; group < GROUPS; ++group) {
        using Held = Pack<float, WIDTH>;
        Held held;
        const auto* from = reinterpret_cast<const Chunk<Held::CHUNK>*>(row(group, g, first) + column);
        UNROLLED for (int i = 0; i < Held::CHUNKS; ++i) held.chunk[i] = from[i];
        UNROLLED for (int i = 0; i < WIDTH; ++i) sum[g][i] =
            group == 0 ? held.get(i) : add_sums(sum[g][i], held.get(i), (Factor*)nullptr);
      }
    }
  }
  // The body of WIDTH neighbours, from what it reads beside the products.
  static DEVICE void finish(const Results& to, const Stores& stores, int sibling, const Place& at, int first,
                            int column, const ColumnHeld<WIDTH>& columns, const CellHeld<WIDTH>& cells,
                            const RowHeld& rows) {
    float sum[ACCUMULATED][WIDTH];
    load(sum, first, column);
    Result result[WIDTH];
    UNROLLED for (int i = 0; i < WIDTH; ++i) {
      float cell[ACCUMULATED];
      UNROLLED for (int g = 0; g < ACCUMULATED; ++g) cell[g] = sum[g][i];
      result[i] = apply(element(cell, columns, cells, rows, 0, i));
    }
    store_results<WIDTH>(to, stores, sibling, at, result);
  }
};
