// What the scans along rows and across them share: sums of prefixes, added up in an order that never changes
// (Blelloch, Prefix sums and their applications, 1990).
//
// y[i] = after(sum of before(x[j]) for j <= i along the axis; j < i where EXCLUSIVE; from the end where REVERSE)
//
// Accuracy: summed in float for 16-bit floats and float, in double for double, in its own type for integers.

using Sum = Phase<0>;

DEVICE Index length_of_axis(const Parameters& p) { return p.extent[AXIS].value; }

// The sums before this lane, and of all lanes, of a group of LANES neighbours; `all` comes with the lane's own.
template <int LANES> DEVICE void scan_lanes(Sum& before, Sum& all, unsigned lane) {
  UNROLLED for (int distance = 1; distance < LANES; distance *= 2) {
    const Sum other = exchange_partial(all, distance);
    if (lane & distance) before.combine(other);
    all.combine(other);
  }
}

// The result at an element, whose place in the running sum is next: `running` takes it in.
DEVICE Result next(Sum& running, const Element& x, Index length) {
  Reduced done = {};
  Sum before = running;
  running.accumulate(x, done, 0);
  (EXCLUSIVE ? before : running).finish(done, length);
  return apply(x, done);
}
