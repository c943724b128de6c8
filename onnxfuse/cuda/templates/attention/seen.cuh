// What 64 queries see of a step of keys, by a bias by query and key; 16 of them are the work of a warp.
struct alignas(16) Seen {
  unsigned short rows[4];  // bit i: query i of 16 sees one of the keys
  unsigned char plain[4];  // whether nothing is added to any of their scores
  unsigned rest;

  // Of 32 queries.
  DEVICE unsigned rows_of(int half) const { return rows[2 * half] | (unsigned)rows[2 * half + 1] << 16; }
  DEVICE bool is_plain() const { return plain[0] & plain[1] & plain[2] & plain[3]; }
};

// What is added to a score that leaves nothing of it to the exponential, beside any key that is seen: what lower precision
// makes of a mask is -30720.
constexpr float HIDDEN = -30000.0f;
