// values[r, j], indices[r, j] = the j-th of the row x[r, :] by its values, for j < K; x = body(...), element by element
// (order and algorithm: topk.cuh).
//
// x [rows, columns] in any element type, of operands that are broadcast over it; values, indices (int64) [rows, K], and
// what else the body computes of that shape. Accuracy: the choice is exact for values as they are computed: 16-bit floats
// in float, not rounded before they are compared.
//
// ROW_THREADS threads take a row, or a part of it: of SPLITS blocks of a row each writes the first K of its part to
// `candidates` [rows, SPLITS, K], which merge.cu merges. Each element is read once, the next vector while one is compared.

constexpr int ROW_WARPS = ROW_THREADS / 32, ROWS = THREADS / ROW_THREADS, STEP = ROW_THREADS * WIDTH;
// What is left of the last 32, and a vector of each lane.
constexpr int QUEUE = 31 + 32 * WIDTH;

template <class T>
DEVICE void topk(const Pointers& pointers, T* values, long long* indices, Candidate* candidates, const Parameters& p) {
  const Index columns = p.extent[RANK - 1].value, rows = p.count / columns;
  const unsigned thread = thread_index() % ROW_THREADS, warp = thread_index() / 32;
  const Index part = (Index)block_index() * ROWS + thread_index() / ROW_THREADS, row = part / SPLITS;
  const Index length = SPLITS > 1 ? (columns + SPLITS * STEP - 1) / (SPLITS * STEP) * STEP : columns;
  const Index begin = part % SPLITS * length, behind = begin + length < columns ? begin + length : columns;
  const Index end = row < rows ? behind : 0;

  SHARED Candidate queue[THREADS / 32][QUEUE], bound[THREADS / 32];
  Chosen chosen{queue[warp], &bound[warp]};
  Held<WIDTH> held = {};
  Index column = begin + thread * WIDTH;
  if (column < end) load_all<WIDTH>(held, pointers, Place(row * columns + column, p), p);
  for (Index start = begin; start < end; start += STEP, column += STEP) {
    Held<WIDTH> ahead = {};
    const Index next = column + STEP;
    if (next < end) load_all<WIDTH>(ahead, pointers, Place(row * columns + next, p), p);
    Result result[WIDTH];
    UNROLLED for (int w = 0; w < WIDTH; ++w) result[w] = apply(element(held, w));
    if (column < end) store_all<WIDTH>(pointers, result, Place(row * columns + column, p), p);
    chosen.offer(result, column, column < end);
    held = ahead;
  }
  const Candidate mine = across_warps<ROW_WARPS>(chosen.finish());
  if (row >= rows || thread >= 32) return;
  if constexpr (SPLITS > 1) {
    if (lane() < K) write(candidates + part * K + lane(), mine);
  } else {
    write_row(pointers, values, indices, mine, row, p);
  }
}
