// The operands of a product's body, W neighbouring columns at a time, where they lie in the output.

struct Place {
  Index row, column;  // of the thread's first cell
  Index m, n;         // of the output
};

// W neighbours of a matrix [m, n], `down` rows and `right` columns from the thread's first cell; zeros outside.
template <int W, class T> DEVICE Pack<T, W> load_cell(const T* from, const Place& at, int down, int right) {
  const Index row = at.row + down, column = at.column + right;
  if (row < at.m && column < at.n) return load<W>(from + (unsigned long long)row * at.n + column);
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
