// All rows by one block, which waits for them; outputs in memory are written by the first block.

DEVICE void rows_of_block(const Pointers& pointers, const Parameters& p) {
  constexpr int AT_ONCE = THREADS / ROW_THREADS;
  for (Index first = 0; first < p.rows; first += AT_ONCE) {
    if (ROW_THREADS > 32 && first > 0) wait_for_block();  // the sums of the rows before have been read
    row_at(pointers, first + thread_index() / ROW_THREADS, thread_index() % ROW_THREADS, p);
  }
  wait_for_block();
}
