// How the threads of a block lie over an image, and what each reads: a patch of ROWS x COLUMNS outputs of CHANNELS
// neighbouring channels.

constexpr int INPUT_ROWS = (ROWS - 1) * STRIDE_H + (KERNEL_H - 1) * DILATION_H + 1;
constexpr int INPUT_COLUMNS = (COLUMNS - 1) * STRIDE_W + (KERNEL_W - 1) * DILATION_W + 1;
constexpr int READS = CHANNELS_LAST ? INPUT_COLUMNS : (SHIFT + INPUT_COLUMNS + READ - 1) / READ;
constexpr int VECTORS = CHANNELS_LAST ? COLUMNS : 1, BESIDE = CHANNELS_LAST ? CHANNELS : COLUMNS;

// The innermost dimension of memory is the block's innermost, too, so that the threads of a warp read neighbours.
DEVICE Place place(const Parameters& p) {
  const int thread = thread_index();
  const int inner = thread % (CHANNELS_LAST ? BLOCK_CHANNELS : BLOCK_COLUMNS);
  const int rest = thread / (CHANNELS_LAST ? BLOCK_CHANNELS : BLOCK_COLUMNS);
  const int middle = rest % (CHANNELS_LAST ? BLOCK_COLUMNS : BLOCK_ROWS);
  const int outer = rest / (CHANNELS_LAST ? BLOCK_COLUMNS : BLOCK_ROWS);
  const Index block = block_from_end(), above = p.across.quotient(block), further = p.around.quotient(above);
  const Index image = p.down.quotient(further);
  const Index channels = (block - above * p.across.value) * BLOCK_CHANNELS + (CHANNELS_LAST ? inner : outer);
  const Index columns = (above - further * p.around.value) * BLOCK_COLUMNS + (CHANNELS_LAST ? middle : inner);
  const Index rows = (further - image * p.down.value) * BLOCK_ROWS + (CHANNELS_LAST ? outer : middle);
  return {image, channels * CHANNELS, rows * ROWS, columns * COLUMNS};
}

struct Sums {
  Sum of[ROWS][VECTORS][BESIDE];
  DEVICE Sum& at(int row, int column, int channel) {
    if constexpr (CHANNELS_LAST) return of[row][column][channel];
    else return of[row][0][column];
  }
};

// The tap that output `place` puts on input `position`, -1 where it puts none; known at compile time.
DEVICE constexpr int weight_at(int position, int place, int stride, int dilation, int size) {
  const int distance = position - place * stride;
  return distance >= 0 && distance % dilation == 0 && distance / dilation < size ? distance / dilation : -1;
}

// What a thread needs of a row of x: READS vectors, of channels, or of columns from SHIFT before the first one needed.
struct Line {
  Pack<X, READ> vector[READS];
  DEVICE Sum get(int column, int channel) const {
    if constexpr (CHANNELS_LAST) return vector[column].get(channel);
    else return vector[(SHIFT + column) / READ].get((SHIFT + column) % READ);
  }
};

DEVICE Line load_line(const X* row, bool row_inside, int left, const Parameters& p) {
  Line line = {};
  UNROLLED for (int v = 0; v < READS; ++v) {
    const int column = left - SHIFT + v * (CHANNELS_LAST ? 1 : READ);
    if (row_inside && (unsigned)column < (unsigned)p.width)
      line.vector[v] = load<READ>(row + (Offset)column * X_COLUMN);
  }
  return line;
}
