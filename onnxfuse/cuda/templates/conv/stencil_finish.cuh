// What a thread does with its sums: the body, and the outputs.

// The thread's outputs, a vector at a time: the channels of one output, or the columns of one row.
DEVICE void finish_vectors(Sums& sums, const Once& once, const Pointers& pointers, const Place& at, Index first,
                           const Parameters& p) {
  Each<BESIDE> each[ROWS][VECTORS];
  UNROLLED for (int row = 0; row < ROWS; ++row)
      UNROLLED for (int v = 0; v < VECTORS; ++v) if (at.row + row < p.rows && at.column + v < p.columns) each[row][v] =
          load_each<BESIDE>(pointers, {at.image, at.channel, at.row + row, at.column + v}, first + row * p.y_row,
                            v * X_COLUMN, p);
  UNROLLED for (int row = 0; row < ROWS; ++row)
      UNROLLED for (int v = 0; v < VECTORS; ++v) if (at.row + row < p.rows && at.column + v < p.columns)
          store_all(pointers, sums.of[row][v], once, each[row][v], first + row * p.y_row, v * X_COLUMN);
}

// The same, one by one: rows of the image that no vector divides.
DEVICE void finish_singly(Sums& sums, const Once& once, const Pointers& pointers, const Place& at, Index first,
                          const Parameters& p) {
  UNROLLED for (int row = 0; row < ROWS; ++row)
      UNROLLED for (int column = 0; column < COLUMNS;
                    ++column) if (at.row + row < p.rows && at.column + column < p.columns) {
    const Index here = first + row * p.y_row;
    Sum sum[1] = {sums.at(row, column, 0)};
    const Place place = {at.image, at.channel, at.row + row, at.column + column};
    store_all(pointers, sum, once, load_each<1>(pointers, place, here, column, p), here, column);
  }
}

DEVICE void finish(Sums& sums, const Pointers& pointers, const Place& at, const Parameters& p) {
  const Index first = at.image * p.y_image + at.channel * p.y_channel + at.row * p.y_row + at.column * X_COLUMN;
  const Once once = load_once(pointers, at, p);
  if constexpr (CHANNELS_LAST || WHOLE_ROWS) finish_vectors(sums, once, pointers, at, first, p);
  else finish_singly(sums, once, pointers, at, first, p);
}
