// What the row kernels share: where a row lies in each operand, and reductions across the threads of a row.
//
// The outer dimensions are collapsed to OUTER_RANK, the dimensions of the row to ROW_RANK (1, unless an operand is
// broadcast along part of a row). `columns` = elements of a row.

struct Parameters {
  Index rows;
  Index columns;
  Divisor<Index> outer_extent[OUTER_RANK];          // outermost first
  Index outer_stride[OUTER_SLOTS][OUTER_RANK];      // of operands broadcast along some outer dimension; 0 = broadcast
  Divisor<Index> row_extent[ROW_RANK];
  Index row_stride[ROW_SLOTS][ROW_RANK];            // of operands broadcast along part of a row
};

struct OuterPlace {
  Index row;
  Index coordinate[OUTER_RANK];

  DEVICE OuterPlace(Index index, const Parameters& p) : row(index) {
    Index rest = index;
    UNROLLED for (int d = OUTER_RANK - 1; d > 0; --d) {
      const Index outer = p.outer_extent[d].quotient(rest);
      coordinate[d] = rest - outer * p.outer_extent[d].value;
      rest = outer;
    }
    coordinate[0] = rest;
  }
  DEVICE Index offset(const Index* stride) const {
    Index sum = 0;
    UNROLLED for (int d = 0; d < OUTER_RANK; ++d) sum += coordinate[d] * stride[d];
    return sum;
  }
  // An output that is broadcast along an outer dimension is written by the rows at its coordinate 0.
  DEVICE bool first(const Index* stride) const {
    bool first = true;
    UNROLLED for (int d = 0; d < OUTER_RANK; ++d) first = first && (stride[d] != 0 || coordinate[d] == 0);
    return first;
  }
};

// The offset, inside a row, of an operand that is broadcast along part of the row.
struct RowPlace {
  Index coordinate[ROW_RANK];

  DEVICE RowPlace(Index column, const Parameters& p) {
    Index rest = column;
    UNROLLED for (int d = ROW_RANK - 1; d > 0; --d) {
      const Index outer = p.row_extent[d].quotient(rest);
      coordinate[d] = rest - outer * p.row_extent[d].value;
      rest = outer;
    }
    coordinate[0] = rest;
  }
  DEVICE Index offset(const Index* stride) const {
    Index sum = 0;
    UNROLLED for (int d = 0; d < ROW_RANK; ++d) sum += coordinate[d] * stride[d];
    return sum;
  }
  DEVICE bool first(const Index* stride) const {
    bool first = true;
    UNROLLED for (int d = 0; d < ROW_RANK; ++d) first = first && (stride[d] != 0 || coordinate[d] == 0);
    return first;
  }
};

template <int W, class T> DEVICE Pack<T, W> load_columns(const T* row, Index column) { return load<W>(row + column); }
template <int W, class T>
DEVICE Pack<T, W> load_gather(const T* row, Index column, const Index* stride, const Parameters& p) {
  Pack<T, W> pack = {};
  UNROLLED for (int lane = 0; lane < W; ++lane)
    pack.set_bits(lane, load_bits(row + RowPlace(column + lane, p).offset(stride)));
  return pack;
}
template <int W, class T>
DEVICE void store_columns(T* row, const typename Stored<T>::Value (&value)[W], Index column) {
  store_values<W>(row + column, value);
}
template <int W, class T>
DEVICE void store_first(T* row, const typename Stored<T>::Value (&value)[W], Index column, const Index* stride,
                        const Parameters& p) {
  UNROLLED for (int lane = 0; lane < W; ++lane) {
    const RowPlace at(column + lane, p);
    const typename Stored<T>::Value one[1] = {value[lane]};
    if (at.first(stride)) store_values<1>(row + at.offset(stride), one);
  }
}
template <class T> DEVICE void store_scalar(T* row, typename Stored<T>::Value value) {
  const typename Stored<T>::Value one[1] = {value};
  store_values<1>(row, one);
}

// The same accumulator of the thread `distance` away (exclusive or).
template <class Partial> DEVICE Partial exchange_partial(const Partial& mine, int distance) {
  constexpr int WORDS = sizeof(Partial) / sizeof(unsigned);
  union Words {
    Partial partial;
    unsigned word[WORDS];
    DEVICE Words() {}
  } words;
  words.partial = mine;
  UNROLLED for (int i = 0; i < WORDS; ++i) words.word[i] = exchange(words.word[i], distance);
  return words.partial;
}

// Combine over aligned groups of `threads` neighbours (at most a warp): every thread gets the total.
template <int threads, class Partial> DEVICE Partial across_lanes(Partial partial) {
  UNROLLED for (int distance = threads / 2; distance > 0; distance /= 2)
    partial.combine(exchange_partial(partial, distance));
  return partial;
}

// Combine over the threads of a row: shuffles in each warp, then one exchange through shared memory.
// Every phase has its own shared memory, so one barrier each is enough.
template <int threads, class Partial> DEVICE Partial across_row(Partial partial) {
  if constexpr (threads <= 32) {
    return across_lanes<threads>(partial);
  } else {
    constexpr int WARPS = threads / 32;
    SHARED Partial of_warp[WARPS];
    partial = across_lanes<32>(partial);
    if (thread_index() % 32 == 0) of_warp[thread_index() / 32] = partial;
    wait_for_block();
    return across_lanes<WARPS>(of_warp[thread_index() % WARPS]);
  }
}
