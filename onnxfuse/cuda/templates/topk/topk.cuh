// What the kernels of TopK share: an order of all values, and a warp that keeps the first ones of those that it sees.
//
// Of two elements of a row the one with the greater value (the lesser one unless LARGEST) is ahead, at equal values the
// one with the lower index. NaN is above all numbers and equal to itself, and -0 equals 0, as numpy sorts and onnx's
// reference does. The standard says nothing of NaN; in ONNX Runtime's CUDA kernels its place depends on its sign, or on
// the number of columns.
//
// A warp sorts 32 elements, and merges them with the 32 first ones so far, by bitonic networks (Batcher, "Sorting
// networks and their applications", 1968). What is not ahead of the K-th so far is dropped at once; what is ahead of it
// waits in a queue until there are 32, as in WarpSelect (Johnson, Douze and Jegou, "Billion-scale similarity search with
// GPUs", 2017). So no order of the input costs more than a merge for each 32 elements.

// Unsigned numbers in the order of the values, and back.
DEVICE unsigned order_of(unsigned x) { return x; }
DEVICE unsigned order_of(int x) { return (unsigned)x ^ 1u << 31; }
DEVICE unsigned long long order_of(unsigned long long x) { return x; }
DEVICE unsigned long long order_of(long long x) { return (unsigned long long)x ^ 1ull << 63; }
DEVICE unsigned order_of(float x) {
  const unsigned bits = bits_of_float(x + 0.0f);  // -0 + 0 is 0
  return x != x ? ~0u : bits ^ (bits >> 31 ? ~0u : 1u << 31);
}
DEVICE unsigned long long order_of(double x) {
  const unsigned long long bits = bits_of_double(x + 0.0);
  return x != x ? ~0ull : bits ^ (bits >> 63 ? ~0ull : 1ull << 63);
}
using Order = decltype(order_of(Compared()));

template <class T> DEVICE T value_of(Order order, T) {
  return T(order ^ (T(-1) < T(0) ? Order(1) << (8 * sizeof(Order) - 1) : Order(0)));
}
DEVICE float value_of(Order order, float) { return float_of_bits((unsigned)order ^ (order >> 31 ? 1u << 31 : ~0u)); }
DEVICE double value_of(Order order, double) {
  return double_of_bits((unsigned long long)order ^ ((unsigned long long)order >> 63 ? 1ull << 63 : ~0ull));
}

// Of both numbers the higher is further ahead.
struct Candidate {
  Order order;
  Index place;  // counted from behind: the complement of the column
  DEVICE Index column() const { return ~place; }
};
DEVICE Candidate candidate(Compared value, Index column) {
  const Order order = order_of(value);
  return {LARGEST ? order : (Order)~order, ~column};
}
// What every element is ahead of.
DEVICE Candidate nothing() { return {0, 0}; }
DEVICE bool is_ahead(const Candidate& a, const Candidate& b) {
  if constexpr (sizeof(Candidate) == 8)  // one comparison of a pair of registers
    return ((unsigned long long)a.order << 32 | a.place) > ((unsigned long long)b.order << 32 | b.place);
  else return a.order > b.order || (a.order == b.order && a.place > b.place);
}

DEVICE unsigned lane() { return thread_index() % 32; }
DEVICE unsigned ones(unsigned word) {
  word -= word >> 1 & 0x55555555u;
  word = (word & 0x33333333u) + (word >> 2 & 0x33333333u);
  return ((word + (word >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
}

// Of this lane's candidate and the one `distance` lanes away the one that is ahead, or the one behind.
DEVICE Candidate one_of_pair(const Candidate& mine, int distance, bool ahead) {
  const Candidate other = exchange_partial(mine, distance);
  return is_ahead(other, mine) == ahead ? other : mine;
}
// The candidates of a warp by lanes, the last one first.
DEVICE Candidate sorted_backward(Candidate mine) {
  UNROLLED for (int size = 2; size <= 32; size *= 2) {
    UNROLLED for (int distance = size / 2; distance > 0; distance /= 2) mine =
        one_of_pair(mine, distance, ((lane() & distance) == 0) != ((lane() & size) == 0));
  }
  return mine;
}
// The first 32 of both in order; `sorted` is in order by lanes, `backward` the other way round.
DEVICE Candidate merged(const Candidate& sorted, const Candidate& backward) {
  Candidate mine = is_ahead(backward, sorted) ? backward : sorted;
  UNROLLED for (int distance = 16; distance > 0; distance /= 2) mine =
      one_of_pair(mine, distance, (lane() & distance) == 0);
  return mine;
}

// The first 32 of what a warp is offered.
struct Chosen {
  Candidate* queue;  // shared memory of this warp
  Candidate* bound;
  Candidate mine = nothing();  // lane j has the j-th
  Candidate last = nothing();  // an element must be ahead of it: the K-th, or what is known to be behind the K-th
  Compared value = value_of(LARGEST ? Order(0) : (Order)~Order(0), Compared());  // of the last
  unsigned waiting = 0;
  bool started = false, taken = false;

  // The elements from `column` on, where they are `there`.
  DEVICE void offer(const Result (&x)[WIDTH], Index column, bool there) {
    // By the values alone, which leaves NaN and what is equal: most elements are behind.
    bool any = false;
    UNROLLED for (int w = 0; w < WIDTH; ++w) any |= !(LARGEST ? x[w].b0 < value : x[w].b0 > value);
    if (!any_of_warp(there && any)) return;
    Candidate each[WIDTH];
    UNROLLED for (int w = 0; w < WIDTH; ++w) each[w] = there ? candidate(x[w].b0, column + w) : nothing();
    if (WIDTH > 1 && !started) start(each);
    started = true;
    UNROLLED for (int w = 0; w < WIDTH; ++w) push(each[w], is_ahead(each[w], last));
    wait_for_warp();
    while (waiting >= 32) {
      waiting -= 32;
      take(queue[waiting + lane()]);
      drop_late();
    }
  }
  // The K-th of the lanes' best is a bound: K elements are not behind it.
  DEVICE void start(const Candidate (&each)[WIDTH]) {
    Candidate best = each[0];
    UNROLLED for (int w = 1; w < WIDTH; ++w) best = is_ahead(each[w], best) ? each[w] : best;
    best = sorted_backward(best);
    if (best.place > 0) --best.place;  // it is one of them
    share(best, 32 - K);
  }
  // From here on an element must be ahead of what this lane has.
  DEVICE void share(Candidate from, unsigned of_lane) {
    if (lane() == of_lane) *bound = from;
    wait_for_warp();
    last = *bound;
    value = value_of(LARGEST ? last.order : (Order)~last.order, Compared());
    wait_for_warp();
  }
  DEVICE void push(const Candidate& x, bool enters) {
    const unsigned lanes = lanes_where(enters);
    if (lanes == 0) return;
    if (enters) queue[waiting + ones(lanes & ((1u << lane()) - 1))] = x;
    waiting += ones(lanes);
  }
  // Leaves what is still ahead of the K-th in the queue: at the beginning of a row few of a vector's elements.
  DEVICE void drop_late() {
    const unsigned all = waiting;
    waiting = 0;
    for (unsigned first = 0; first < all; first += 32) {
      const Candidate x = first + lane() < all ? queue[first + lane()] : nothing();
      wait_for_warp();
      push(x, is_ahead(x, last));
    }
    wait_for_warp();
  }
  DEVICE void take(const Candidate& more) {
    const Candidate backward = sorted_backward(more);
    mine = taken ? merged(mine, backward) : exchange_partial(backward, 31);
    taken = true;
    const Candidate behind = last;
    share(is_ahead(mine, behind) ? mine : behind, K - 1);
  }
  DEVICE Candidate finish() {
    if (waiting) take(lane() < waiting ? queue[lane()] : nothing());
    return mine;
  }
};

// The first 32 of WARPS neighbouring warps, in the first one of them.
template <int WARPS> DEVICE Candidate across_warps(Candidate mine) {
  if constexpr (WARPS > 1) {
    SHARED Candidate list[THREADS / 32][32];
    const unsigned warp = thread_index() / 32;
    UNROLLED for (int apart = 1; apart < WARPS; apart *= 2) {
      if (warp % (2 * apart) == apart) list[warp][lane()] = mine;
      wait_for_block();
      if (warp % (2 * apart) == 0) mine = merged(mine, list[warp + apart][31 - lane()]);
    }
  }
  return mine;
}

// Writes a row, by one warp. Values are computed anew from where they were found: exactly as they are in memory.
template <class T> DEVICE void write_row(const Pointers& pointers, T* values, long long* indices, const Candidate& mine,
                                         Index row, const Parameters& p) {
  if (lane() >= K) return;
  Held<1> held = {};
  load_all<1>(held, pointers, Place(row * p.extent[RANK - 1].value + mine.column(), p), p);
  const typename Stored<T>::Value value[1] = {apply(element(held, 0)).b0};
  const long long index[1] = {(long long)mine.column()};
  if (values != nullptr) store_values<1>(values + row * K + lane(), value);
  if (indices != nullptr) store_values<1>(indices + row * K + lane(), index);
}
