// The first of two launches for many new tokens (prompt.cu): their keys and values in the caches, and, where queries
// are normalized or rotated, the queries [batch, queries, HEADS * SIZE] in scratch memory. A warp takes a row at a
// time. Operands as in cached.cu. Accuracy: what is only moved is exact; a norm and a rotation in float, each result
// rounded once.

DEVICE void put(const Pointers& pointers, const Parameters& p) {
  const bool moves = has_buffers_of_its_own(pointers);
  const long long of_queries = TURNS ? p.queries * HEADS : 0, tokens = moves ? p.present : p.queries;
  const long long each = of_queries + tokens * MANY, all = p.batch * each;
  const long long workers = (last_block() + 1LL) * WARPS;
  for (long long item = block_index() * (long long)WARPS + thread_index() / 32; item < all; item += workers) {
    const long long batch = item / each, row = item % each - of_queries;
    const int before = before_of(pointers.lengths + batch, p);
    if (row >= 0) {
      put_token(pointers, batch, row % MANY, before, (int)(row / MANY) + (moves ? 0 : before), p);
    } else {
      const long long query = (row + of_queries) / HEADS, head = (row + of_queries) % HEADS;
      const E* const from = pointers.q + (batch * p.queries + query) * Q_ROW_ELEMENTS + head * SIZE;
      E* const to = (E*)(pointers.scratch + p.counters) + ((batch * p.queries + query) * HEADS + head) * SIZE;
      turn(
          before + (int)query, pointers.q_norm, {pointers.cos, pointers.sin}, [&](int i) { return load_1(from + i); },
          [&](int i, Word bits) { write((Word*)(to + i), bits); });
    }
  }
}
