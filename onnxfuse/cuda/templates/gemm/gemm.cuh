// The operands of a product's body, W neighbouring columns at a time, where they lie in the output.

struct Place {
  Index row, column;  // of the thread's first cell; rows are counted through all products of a batch, columns of groups
  Index m, n;         // of the output: where the rows and the columns of the thread's product end
  Index lines;        // rows of the innermost matrix of the output
  Index pitch;        // columns of the output
};

// Which matrices a product multiplies, by its number in a batch.
struct Matrices { Index a, b; };
struct OneProduct {
  DEVICE Index products() const { return 1; }
  DEVICE Matrices matrices(Index) const { return {0, 0}; }
};
struct Batch {
  Index outer, middle, inner;                                    // products along each dimension
  Index a_outer, a_middle, a_inner, b_outer, b_middle, b_inner;  // matrices from one to the next

  DEVICE Index products() const { return outer * middle * inner; }
  DEVICE Matrices matrices(Index product) const {
    const Index above = product / inner, x = product % inner, y = above % middle, z = above / middle;
    return {z * a_outer + y * a_middle + x * a_inner, z * b_outer + y * b_middle + x * b_inner};
  }
};

// The first COUNT right factors, weights, on their way to the L2 cache while the kernel ahead ends. BERT-base of
// quantize_dynamic, 1x128, H200, 2026-11: 429 us, without 563, together with other changes worth about 25.
template <int COUNT, int SIBLINGS, int NUMBER = 0, class Operands, class Parameters>
DEVICE void bring_factors(const Operands& operands, const Parameters& p) {
  if constexpr (NUMBER < COUNT) {
    const auto* factor = operands.template b<NUMBER>();
    bring_near(factor, p.sides.columns_of(SIBLINGS > 1 ? NUMBER : 0) * p.k * (unsigned)sizeof(*factor));
    bring_factors<COUNT, SIBLINGS, NUMBER + 1>(operands, p);
  }
}

// The sum of two sums that warps or blocks have of their terms; those of integers are no floats (include/integers.cuh).
template <class Factor> DEVICE float add_sums(float a, float b, Factor*) { return a + b; }

// The zero points of a right factor in few bits (packed.cuh).
enum class Zeros { MIDDLE, PACKED, REAL };

// Elements on from the first matrix of a batch.
template <class T> DEVICE const T* matrix_at(const T* first, unsigned long long elements) { return first + elements; }

// The columns of each of the NUMBER bodies side by side, EVEN where all have as many, and where its tiles end among those
// of all, from left to right.
template <int NUMBER, bool EVEN> struct Sides {
  Index columns[NUMBER], ends[NUMBER];

  DEVICE Index across() const { return ends[NUMBER - 1]; }
  // Which body a tile is of.
  DEVICE int sibling(Index tile) const {
    int found = 0;
    UNROLLED for (int i = 0; i < NUMBER - 1; ++i) found += tile >= ends[i];
    return found;
  }
  DEVICE Index columns_of(int sibling) const { return columns[EVEN ? 0 : sibling]; }
  // Which of its own tiles.
  DEVICE Index own(Index tile, int sibling) const { return sibling == 0 ? tile : tile - ends[sibling - 1]; }
};
// Groups of channels: of each the next channels of the images and filters, and the next columns of the output.
struct ChannelGroups {
  Index groups;

  DEVICE Index products() const { return groups; }
  DEVICE Matrices matrices(Index group) const { return {group, group}; }
};

// W neighbours of a matrix [m, n], `down` rows and `right` columns from the thread's first cell; zeros outside.
template <int W, class T> DEVICE Pack<T, W> load_cell(const T* from, const Place& at, int down, int right) {
  const Index row = at.row + down, column = at.column + right;
  if (row < at.m && column < at.n) return load<W>(from + (unsigned long long)row * at.pitch + column);
  return {};
}
// W neighbours of a vector [n].
template <int W, class T> DEVICE Pack<T, W> load_column(const T* from, const Place& at, int right) {
  if (at.column + right < at.n) return load<W>(from + at.column + right);
  return {};
}
// One element of a vector [m, 1].
template <class T> DEVICE Splat<T> load_row(const T* from, const Place& at, int down) {
  if (at.row + down < at.m) return load_splat(from + at.row + down);
  return {};
}
// The same of a vector [lines, 1] that is there once for all matrices of the output.
template <class T> DEVICE Splat<T> load_inner(const T* from, const Place& at, int down) {
  if (at.row + down < at.m) return load_splat(from + (at.row + down) % at.lines);
  return {};
}
