// Return whether this is the last one to come of the blocks that share a counter, which is 0 before and after. One thread
// publishes what the others have written: it is behind a barrier for the block, and does not wait for their outputs.
DEVICE bool last_to_come(unsigned* counter, unsigned parts) {
  SHARED unsigned before;
  wait_for_block();
  if (thread_index() == 0) {
    publish();
    before = count_round(counter, parts);
    publish();
  }
  wait_for_block();
  return before + 1 == parts;
}
