// Where a product's cells go in an output that is written reshaped and transposed.

// A number of a row or a column has three digits, innermost first; each has its way in the output.
struct Digits {
  Divisor<Index> inner, middle;
  Index step, middle_step, outer_step;

  DEVICE Index at(Index number) const {
    const Index above = inner.quotient(number), outer = middle.quotient(above);
    return (number - above * inner.value) * step + (above - outer * middle.value) * middle_step + outer * outer_step;
  }
};

struct Layout {
  Digits rows, columns;
  Index together;  // of what 16 bytes stay together, on a boundary of as many: 1 = of a row, 2 = of a column

  DEVICE Index at(Index row, Index column) const { return rows.at(row) + columns.at(column); }
};
