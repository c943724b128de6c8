// What a general kernel is made of: dense tensors of any extents by their coordinates, all numbers of 64 bits. Element by
// element, each by a thread of its own: right for all extents and alignments, and slow.

// a / b of what is not negative; 0 where nothing is divided. Most numbers are small, and 64 bits take four times as long.
DEVICE Index quotient(Index a, Index b) {
  if (((a | b) >> 32) == 0) return b == 0 ? 0 : (Index)((unsigned)a / (unsigned)b);
  return a / b;
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

template <int RANK> struct Coordinates {
  Index c[RANK];
};

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

// Sums of products. Floats in runs, and the sums of these: of n terms the rounding of 64 + n / 64 additions at most.
template <class T> struct Sum {
  T total = 0;
  DEVICE void add(T a, T b) { total += a * b; }
  DEVICE T get() const { return total; }
};
template <> struct Sum<float> {
  float total = 0.0f, run = 0.0f;
  int terms = 0;
  DEVICE void add(float a, float b) {
    run += a * b;
    if (++terms == 64) {
      total += run;
      run = 0.0f;
      terms = 0;
    }
  }
  DEVICE float get() const { return total + run; }
};

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
