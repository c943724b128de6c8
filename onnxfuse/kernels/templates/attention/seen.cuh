// What 64 queries see of a step of keys, by a bias by query and key.
struct alignas(16) Seen {
  unsigned rows[2];  // bit i: query i sees one of the keys
  unsigned plain;    // whether nothing is added to any score
  unsigned rest;
};

// What is added to a score that leaves nothing of it to the exponential, beside any key that is seen: what lower precision
// makes of a mask is -30720.
constexpr float HIDDEN = -30000.0f;
