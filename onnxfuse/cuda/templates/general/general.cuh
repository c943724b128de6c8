// What a general kernel is made of: dense tensors of any extents by their coordinates, all numbers of 64 bits. Element by
// element, each by a thread of its own: right for all extents and alignments, and slow.

// a / b of what is not negative; 0 where nothing is divided. Most numbers are small, and 64 bits take four times as long.
DEVICE Index quotient(Index a, Index b) {
  if (((a | b) >> 32) == 0) return b == 0 ? 0 : (Index)((unsigned)a / (unsigned)b);
  return a / b;
}
// The element of an axis that stands at an index before or behind it: mirrored, the nearest one, or counted on from the
// other end.
DEVICE Index around_reflect(Index n, Index extent) {
  const Index distance = n < 0 ? -n : n;
  return distance < extent ? distance : 2 * (extent - 1) - distance;
}
DEVICE Index around_edge(Index n, Index extent) { return n < 0 ? 0 : n < extent ? n : extent - 1; }
DEVICE Index around_wrap(Index n, Index extent) {
  const Index rest = n % extent;
  return rest < 0 ? rest + extent : rest;
}
template <int RANK> DEVICE Index elements(const Index* extents) {
  Index found = 1;
  UNROLLED for (int d = 0; d < RANK; ++d) found *= extents[d];
  return found;
}
// The coordinates of element n of a dense tensor, and back. Along an axis of one element all coordinates are that one.
template <int RANK> DEVICE void coordinates(Index n, const Index* extents, Index* c) {
  UNROLLED for (int d = RANK - 1; d >= 0; --d) {
    const Index rest = quotient(n, extents[d]);
    c[d] = n - rest * extents[d];
    n = rest;
  }
}
template <int RANK> DEVICE Index position(const Index* c, const Index* extents) {
  Index found = 0;
  UNROLLED for (int d = 0; d < RANK; ++d) found = found * extents[d] + (extents[d] == 1 ? 0 : c[d]);
  return found;
}

template <int RANK> struct Coordinates { Index c[RANK]; };

DEVICE Index first() { return (Index)block_index() * THREADS + thread_index(); }
DEVICE Index stride() { return (Index)(last_block() + 1) * THREADS; }

template <class T> DEVICE typename Stored<T>::Value get(const T* from, Index at) {
  return decode(load_bits(from + at), (T*)nullptr);
}
template <class T> DEVICE void put(T* to, Index at, typename Stored<T>::Value value) {
  write((typename Raw<sizeof(T)>::Word*)to + at, encode(value, (T*)nullptr));
}
// The same in scratch memory.
template <class T> DEVICE void keep(T* to, Index at, typename Stored<T>::Value value) {
  ((typename Raw<sizeof(T)>::Word*)to)[at] = encode(value, (T*)nullptr);
}

DYNAMIC_SHARED(float, shared_floats, SHARED_FLOATS);

// What the threads of a block have found, put together in the order of a tree; for all of them.
template <class T, class Combine> DEVICE T together(const T& mine, Combine combine) {
  static_assert(sizeof(T) * THREADS <= 4 * SHARED_FLOATS, "one of each thread");
  T* const found = (T*)shared_floats;
  const unsigned thread = thread_index();
  found[thread] = mine;
  for (unsigned left = THREADS / 2; left > 0; left /= 2) {
    wait_for_block();
    if (thread < left) found[thread] = combine(found[thread], found[thread + left]);
  }
  wait_for_block();
  const T all = found[0];
  wait_for_block();
  return all;
}

// Sums of products, in runs, and the sums of these: of n terms the rounding of 64 + n / 64 additions at most.
constexpr int RUN = 64;
struct Sum {
  float total = 0.0f, run = 0.0f;
  int terms = 0;
  DEVICE void add(float a, float b) {
    run += a * b;
    if (++terms == RUN) {
      total += run;
      run = 0.0f;
      terms = 0;
    }
  }
  DEVICE float get() const { return total + run; }
};

// Batches of [rows, terms] by [terms, columns] of floats: a block for each tile of the result, whose factors lie in shared
// memory, DEPTH terms at a time; sums as above. LEFT_ALONG: neighbours in memory are neighbouring terms, else rows; and
// RIGHT_ALONG, else columns. A thread for each result would read two elements for each product.
constexpr int SIDE = 64, DEPTH = 16, TALL = 8, WIDE = 4, BESIDE = SIDE / WIDE, PITCH = SIDE + 1;
static_assert(BESIDE * (SIDE / TALL) == THREADS, "a thread for each TALL x WIDE results of a tile");
static_assert(SHARED_FLOATS == 2 * DEPTH * PITCH, "the plan counts as the kernel does");

template <bool LEFT_ALONG, bool RIGHT_ALONG, class Left, class Right, class Keep>
DEVICE void multiply(Index batches, Index rows, Index columns, Index terms, Left left, Right right, Keep keep) {
  float *const a = shared_floats, *const b = shared_floats + DEPTH * PITCH;
  const int thread = (int)thread_index(), x = thread % BESIDE, y = thread / BESIDE;
  const Index down = quotient(rows + SIDE - 1, SIDE), across = quotient(columns + SIDE - 1, SIDE);
  for (Index tile = block_index(), all = batches * down * across; tile < all; tile += last_block() + 1) {
    const Index above = quotient(tile, across), batch = quotient(above, down);
    const Index row = (above - batch * down) * SIDE, column = (tile - above * across) * SIDE;
    float total[TALL][WIDE] = {}, run[TALL][WIDE] = {};
    for (Index begin = 0; begin < terms; begin += DEPTH) {
      for (int i = thread; i < SIDE * DEPTH; i += THREADS) {
        const int k = LEFT_ALONG ? i % DEPTH : i / SIDE, m = LEFT_ALONG ? i / DEPTH : i % SIDE;
        a[k * PITCH + m] = row + m < rows && begin + k < terms ? left(batch, row + m, begin + k) : 0.0f;
        const int j = RIGHT_ALONG ? i % DEPTH : i / SIDE, n = RIGHT_ALONG ? i / DEPTH : i % SIDE;
        b[j * PITCH + n] = column + n < columns && begin + j < terms ? right(batch, begin + j, column + n) : 0.0f;
      }
      wait_for_block();
      // Unrolled as a whole it takes 168 registers in place of 120, and NVRTC a fifth more time.
      _Pragma("unroll 4") for (int k = 0; k < DEPTH; ++k) {
        UNROLLED for (int m = 0; m < TALL; ++m) {
          const float one = a[k * PITCH + y + m * (SIDE / TALL)];
          UNROLLED for (int n = 0; n < WIDE; ++n) run[m][n] += one * b[k * PITCH + x + n * BESIDE];
        }
      }
      wait_for_block();
      if ((begin + DEPTH) % RUN != 0 && begin + DEPTH < terms) continue;
      UNROLLED for (int m = 0; m < TALL; ++m) {
        UNROLLED for (int n = 0; n < WIDE; ++n) {
          total[m][n] += run[m][n];
          run[m][n] = 0.0f;
        }
      }
    }
    UNROLLED for (int m = 0; m < TALL; ++m) {
      UNROLLED for (int n = 0; n < WIDE; ++n) {
        const Index p = row + y + m * (SIDE / TALL), q = column + x + n * BESIDE;
        if (p < rows && q < columns) keep(batch, p, q, total[m][n]);
      }
    }
  }
}

// The pixels on both sides of a place along an axis, and the share of the second one.
struct Between {
  Index first, second;
  float share;
};
DEVICE Between between(Index out, double step, double start, Index size) {
  const double place = math::min(math::max((double)out * step + start, 0.0), (double)(size - 1));
  const Index first = (Index)place;
  return {first, first + 1 < size ? first + 1 : first, (float)(place - first)};
}
