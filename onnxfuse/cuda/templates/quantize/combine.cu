// parts[p.count + block] = the extremes of p.count parts, those that a block reads: so many parts would take each block of
// the launch that quantizes longer than its elements. Accuracy: exact. For quantize.cu.

struct Parameters { Index count; };

DEVICE void combine(Extremes* parts, const Parameters& p) {
  Extremes mine = no_extremes();
  for (Index i = (Index)block_index() * THREADS + thread_index(); i < p.count; i += (Index)(last_block() + 1) * THREADS)
    mine.combine(read(parts + i));
  mine = extremes_of_block<WARPS>(mine);
  if (thread_index() == 0) write(parts + p.count + block_index(), mine);
}
