// What the row kernels share: where a row lies in each operand, and reductions across the threads of a row.
//
// The outer dimensions are collapsed to OUTER_RANK, the dimensions of the row to ROW_RANK (1, unless an operand is
// broadcast along part of a row). `columns` = elements of a row.

// A table of which each row of the op reads one row, by a number in another operand.
struct Lookup {
  Index rows;    // of the table
  Index length;  // elements of each of them
};

struct Parameters {
  Index rows;
  Index columns;
  Divisor<Index> outer_extent[OUTER_RANK];      // outermost first
  Index outer_stride[OUTER_SLOTS][OUTER_RANK];  // of operands broadcast along some outer dimension; 0 = broadcast
  Divisor<Index> row_extent[ROW_RANK];
  Index row_stride[ROW_SLOTS][ROW_RANK];  // of operands broadcast along part of a row
  Lookup lookup[LOOKUPS];
};

struct OuterPlace : Coordinates<OUTER_RANK> {
  Index row;
  Index shift;  // SHIFTED: elements of the row's first vector that belong to the rows before it

  DEVICE OuterPlace(Index index, const Parameters& p)
      : Coordinates<OUTER_RANK>(index, p.outer_extent), row(index), shift(SHIFTED ? index * p.columns % WIDTH : 0) {}
};

// The place, inside a row, of an operand that is broadcast along part of the row.
using RowPlace = Coordinates<ROW_RANK>;

// A vector of a row: WIDTH neighbours.
//
// SHIFTED: the length of the row is no multiple of WIDTH. Vectors then lie on the 16-byte boundaries of memory, not on
// those of rows: a row of 197 halves that begins at element 3 of a vector takes the vectors
//
//     [. . . 0 1 2 3 4] [5 ... 12] ... [189 ... 196]        columns; dots belong to the row before
//
// Lanes of neighbouring rows are read with the vector and computed with, but never reduced and never written: `own`
// says which elements are the row's. So dense operands keep 16-byte accesses in all but the first and last vector stored.
constexpr unsigned ALL_ELEMENTS = (1u << WIDTH) - 1;
// Up to a warp, every lane works on every vector that it may have, and `own` decides: a branch would save nothing.
constexpr bool MASKED = SHIFTED && ROW_THREADS <= 32;

struct Span {
  Index position;  // of its first element, counted from the first one of the row's first vector
  Index offset;    // the same, counted from the thread's first vector: a constant where the row is in registers
  unsigned own;    // bit w: element w of the vector is one of the row
  bool readable;   // a dense operand holds the whole vector: it does not stick out behind the last row

  // The vector that the thread comes to after `step` others; the threads' vectors lie ROW_THREADS apart.
  // `inner`: known to lie inside every row.
  DEVICE Span(int thread, Index step, const OuterPlace& at, const Parameters& p, bool inner = false)
      : position((thread + step * ROW_THREADS) * WIDTH), offset(step * ROW_THREADS * WIDTH) {
    if (EXACT || inner) {
      own = ALL_ELEMENTS;
    } else if constexpr (!SHIFTED) {
      own = position < p.columns ? ALL_ELEMENTS : 0;
    } else {
      const Index end = at.shift + p.columns;
      const Index before = position < at.shift ? at.shift : 0;
      const Index count = position < end ? (end - position < WIDTH ? end - position : WIDTH) : 0;
      own = ALL_ELEMENTS >> (WIDTH - count) & ALL_ELEMENTS << before;
    }
    readable = !SHIFTED || inner || position + WIDTH <= (p.rows - at.row) * p.columns + at.shift;
  }
  DEVICE bool owns(int w) const { return !SHIFTED || (own >> w & 1); }
  // Whether a thread has work here; a constant where it always goes on.
  DEVICE bool present() const { return EXACT || own != 0; }
};

// `row` points to the thread's first vector of the row. DENSE: as big as the whole op, so vectors are aligned.
template <bool DENSE, class T> DEVICE Pack<T, WIDTH> load_columns(const T* row, const Span& span) {
  if (!SHIFTED || (DENSE && span.readable)) return load<WIDTH>(row + span.offset);
  Pack<T, WIDTH> pack = {};
  UNROLLED for (int w = 0; w < WIDTH; ++w) {
    if (span.owns(w)) pack.set_bits(w, load_bits(row + span.offset + w));
  }
  return pack;
}
// The row of a table that `number` names, from the end where it is negative; null where the table has no such row.
template <class T, class N> DEVICE const T* looked_up(const T* in_first_row, const N* number, const Lookup& table) {
  const long long given = load_splat(number).get(0);
  const long long row = given < 0 ? given + table.rows : given;
  return 0 <= row && row < table.rows ? in_first_row + row * table.length : nullptr;
}
// Zeros where there is no row, as ONNX Runtime's Gather gives on CUDA.
template <class T> DEVICE Pack<T, WIDTH> load_row(const T* row, const Span& span) {
  if (row == nullptr) return {};
  return load_columns<false>(row, span);
}
// The vector lies inside one run of neighbours in memory.
template <class T>
DEVICE Pack<T, WIDTH> load_run(const T* row, const Span& span, const Index* stride, const Parameters& p) {
  return load<WIDTH>(row + RowPlace(span.position, p.row_extent).offset(stride));
}
// The same element for the whole vector.
template <class T>
DEVICE Splat<T> load_spread(const T* row, const Span& span, const Index* stride, const Parameters& p) {
  return load_splat(row + RowPlace(span.position, p.row_extent).offset(stride));
}
template <class T> DEVICE void store_run(T* row, const typename Stored<T>::Value (&value)[WIDTH], const Span& span,
                                         const Index* stride, const Parameters& p) {
  store_values<WIDTH>(row + RowPlace(span.position, p.row_extent).offset(stride), value);
}
template <class T> DEVICE Pack<T, WIDTH> load_gather(const T* row, const Span& span, const OuterPlace& at,
                                                     const Index* stride, const Parameters& p) {
  Pack<T, WIDTH> pack = {};
  UNROLLED for (int w = 0; w < WIDTH; ++w) {
    // Lanes of other rows read the first column, not nothing: so operands share what finds a column's place.
    const Index column = span.owns(w) ? span.position + w - at.shift : 0;
    pack.set_bits(w, load_bits(row + RowPlace(column, p.row_extent).offset(stride)));
  }
  return pack;
}
template <bool DENSE, class T>
DEVICE void store_columns(T* row, const typename Stored<T>::Value (&value)[WIDTH], const Span& span) {
  if (!SHIFTED || (DENSE && span.own == ALL_ELEMENTS)) {
    store_values<WIDTH>(row + span.offset, value);
    return;
  }
  UNROLLED for (int w = 0; w < WIDTH; ++w) {
    const typename Stored<T>::Value one[1] = {value[w]};
    if (span.owns(w)) store_values<1>(row + span.offset + w, one);
  }
}
template <class T> DEVICE void store_first(T* row, const typename Stored<T>::Value (&value)[WIDTH], const Span& span,
                                           const OuterPlace& at, const Index* stride, const Parameters& p) {
  UNROLLED for (int w = 0; w < WIDTH; ++w) {
    const RowPlace place(span.position + w - at.shift, p.row_extent);
    const typename Stored<T>::Value one[1] = {value[w]};
    if (span.owns(w) && place.first(stride)) store_values<1>(row + place.offset(stride), one);
  }
}
template <class T> DEVICE void store_scalar(T* row, typename Stored<T>::Value value) {
  const typename Stored<T>::Value one[1] = {value};
  store_values<1>(row, one);
}

// Reduce what the row owns of a vector. Lanes of other rows are computed with and dropped: a select is cheaper than a
// branch, and what is computed here serves the outputs again.
template <class Partial, class Held, class RowHeld> DEVICE void accumulate(Partial& partial, const Held& held,
                                                                           const RowHeld& scalars, const Span& span,
                                                                           const Reduced& done, const OuterPlace& at) {
  UNROLLED for (int w = 0; w < WIDTH; ++w) {
    Partial with = partial;
    with.accumulate(element(held, scalars, w), done, span.position + w - at.shift);
    if (span.owns(w)) partial = with;
  }
}

// Combine over the threads of a row: shuffles in each warp, then one exchange through shared memory, then one between
// the blocks of a cluster. Every phase has its own shared memory, so one barrier each is enough.
template <int threads, class Partial> DEVICE Partial across_row(Partial partial) {
  if constexpr (threads <= 32) {
    return across_lanes<threads>(partial);
  } else {
    constexpr int WARPS = threads / 32;
    SHARED Shared<Partial, THREADS / 32> of_warp;
    partial = across_lanes<32>(partial);
    if (thread_index() % 32 == 0) of_warp.mine()[thread_index() / 32] = partial;
    wait_for_block();
    const int first = threads < THREADS ? thread_index() / threads * WARPS : 0;  // of the row's warps
    partial = across_lanes<WARPS>(of_warp.mine()[first + thread_index() % WARPS]);
    if constexpr (CLUSTER > 1) {
      SHARED Shared<Partial, 1> of_block;
      if (thread_index() == 0) of_block.mine()[0] = partial;
      wait_for_peers();
      partial = across_lanes<CLUSTER>(of_block.of(thread_index() % CLUSTER, 0));
    }
    return partial;
  }
}
