// parts[block] = the extremes of x[i], for the elements that a block reads: one pass over x where no kernel that made it
// has left them.
//
// x of p.count float32, in vectors of WIDTH; a part for each block. Accuracy: exact. For
// quantize.cu.

struct Parameters { Index count; };

DEVICE void extremes(const float* x, Extremes* parts, const Parameters& p) {
  const Index vectors = p.count / WIDTH, stride = (Index)(last_block() + 1) * THREADS;
  const Index first = (Index)block_index() * THREADS + thread_index();
  Extremes mine = no_extremes();
  for (Index vector = first; vector < vectors; vector += stride) {
    const auto held = load<WIDTH>(x + vector * WIDTH);
    UNROLLED for (int w = 0; w < WIDTH; ++w) mine.take(held.get(w));
  }
  // What is left after the last whole vector: fewer than WIDTH elements.
  if (first < p.count - vectors * WIDTH) mine.take(load_splat(x + vectors * WIDTH + first).get(0));
  mine = extremes_of_block<WARPS>(mine);
  if (thread_index() == 0) write(parts + block_index(), mine);
}
