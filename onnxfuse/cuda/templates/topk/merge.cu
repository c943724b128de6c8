// values, indices [rows, K] = the first K of each of SPLITS parts of a row: the second launch of select.cu, whose
// accuracy it has; nothing is computed.
//
// `candidates` [rows, SPLITS, K] in order: a block takes a row, a warp a part.

template <class T> DEVICE void topk(const Pointers& pointers, T* values, long long* indices,
                                    const Candidate* candidates, const Parameters& p) {
  const Index row = block_index();
  const unsigned warp = thread_index() / 32;
  Candidate mine = nothing();
  if (lane() < K) mine = read(candidates + (row * SPLITS + warp) * K + lane());
  mine = across_warps<SPLITS>(mine);
  if (warp == 0) write_row(pointers, values, indices, mine, row, p);
}
