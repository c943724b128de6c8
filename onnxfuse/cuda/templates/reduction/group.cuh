// y[o, r, g, c] = body(x[o, r, g, c], ..., mean and variance of x[o, :, g, :]): group norms of images whose channels stand
// side by side, norms of each channel (groups of one). Two launches: the first one finds what each part of an image adds
// to the moments of its groups, the second one joins the parts and reads the image again, mostly from L2.
//
// Inputs, outputs: dense tensors that broadcast over [outer, places, columns], each of several dimensions; those of
// a block are GROUPS groups of GROUP neighbours.
// Accuracy: float. Squares are of differences from a mean, so nothing cancels however far from 0 the values lie; per thread
// in order of r, then threads, lanes and parts in an order that never changes (moments of parts: Chan, Golub and LeVeque,
// Updating formulae and a pairwise algorithm for computing sample variances, 1979).
//
// A block takes a part of the places of one image, and all columns, HELD: some of them: ACROSS vectors of WIDTH neighbours
// side by side, ROWS threads below each other; the threads behind these only help to join. AHEAD: vectors that a thread
// fetches together.

struct Parameters {
  Index places;                             // of an image
  Index each;                               // places of a part, but the last one
  Divisor<Index> parts;                     // of an image; HELD: of its columns
  Divisor<Index> outer_extent[OUTER_RANK];  // outermost first
  Divisor<Index> place_extent[PLACE_RANK];
  Divisor<Index> column_extent[COLUMN_RANK];
  Index outer_stride[OPERANDS][OUTER_RANK];  // 0 = broadcast
  Index place_stride[OPERANDS][PLACE_RANK];
  Index column_stride[OPERANDS][COLUMN_RANK];
};

using Outer = Coordinates<OUTER_RANK>;
using Place = Coordinates<PLACE_RANK>;

constexpr int COLUMNS = ACROSS * WIDTH;

// Mean and sum of squared differences from it, of values whose number the place of these tells.
struct alignas(8) Moments {
  float mean, squares;

  // One value more; `share` = 1 / how many it makes (Welford, 1962).
  DEVICE void add(float value, float share) {
    const float before = value - mean;
    mean += before * share;
    squares += before * (value - mean);
  }
};

// Moments of several on the way to one: of `count` values sums of differences from a number near their mean.
struct Joined {
  float shift, count, sum, squares;

  DEVICE void add(const Moments& of, float more) {
    const float difference = of.mean - shift;
    count += more;
    sum += more * difference;
    squares += of.squares + more * difference * difference;
  }
  // Of the same shift.
  DEVICE void combine(const Joined& other) {
    count += other.count;
    sum += other.sum;
    squares += other.squares;
  }
  // Of no values: the shift.
  DEVICE float offset() const { return count > 0 ? sum / count : 0; }
  DEVICE Moments moments() const { return {shift + offset(), squares - sum * offset()}; }
  DEVICE Reduced finished() const {
    const Moments of = moments();
    Reduced done = {};
    // What the rounding of the mean has left is as exact as the differences that the sum is of.
    Norm::finish(done, of.mean, (shift - of.mean) + offset(), of.squares / count);
    return done;
  }
};

// LANES lanes of a warp join: `of` gives what they have for a shift. Twice, since the first shift, one of the means, may lie
// far from the others, and what is subtracted from the squares then is most of them.
template <class Of> DEVICE Joined joined(float shift, Of of) {
  const Joined first = across_lanes<LANES>(of(Joined{shift, 0, 0, 0}));
  return across_lanes<LANES>(of(Joined{first.moments().mean, 0, 0, 0}));
}

// Moments of all parts of the groups of an image: [outer, group, part]. Of one launch there are none.
template <class Base> DEVICE Moments* of_group(const Base& base, Index image, int group, const Parameters& p) {
  return reinterpret_cast<Moments*>(base.scratch) + (image * GROUPS + group) * p.parts.value;
}

// What a part of an image has.
DEVICE Index places_of(Index part, const Parameters& p) {
  const Index before = part * p.each;
  const Index left = before < p.places ? p.places - before : 0;
  return left < p.each ? left : p.each;
}
// Of so many places, those that the threads of a row come to.
DEVICE Index places_of_row(Index places, Index row) { return (places + ROWS - 1 - row) / ROWS; }

// Where a thread stands: its places are `first`, `first + ROWS`, ..., `count` of them.
struct Stand {
  Index image, part;
  Index row, column;  // in its block
  Index channel;
  Index first, count;

  DEVICE explicit Stand(const Parameters& p) {
    const Index mine = block_from_end() / CLUSTER;
    image = p.parts.quotient(mine);
    part = HELD ? rank_of_block() : mine - image * p.parts.value;
    row = thread_index() / ACROSS;
    column = thread_index() % ACROSS * WIDTH;
    channel = column + (HELD ? (mine - image * p.parts.value) * COLUMNS : 0);
    first = part * p.each + row;
    count = row < ROWS ? places_of_row(places_of(part, p), row) : 0;
  }
};

template <class T>
DEVICE Pack<T, WIDTH> load_gather(const T* from, Index column, const Index* stride, const Parameters& p) {
  Pack<T, WIDTH> pack = {};
  UNROLLED for (int w = 0; w < WIDTH; ++w)
      pack.set_bits(w, load_bits(from + Coordinates<COLUMN_RANK>(column + w, p.column_extent).offset(stride)));
  return pack;
}
