// Warp specialization: of a block's warpgroups the first ones consume, the last ones produce. All threads are launched with
// as many registers; producers hand back what they do not need, which the consumers' accumulators take (setmaxnreg).

constexpr int WARPGROUP = 128;  // threads

// Of a thread of a consumer, where the other warpgroups keep `kept` between them (sum over a thread of each), and so many
// blocks of `threads` share the 65536 registers of a multiprocessor. An instruction takes multiples of 8, and no more than
// 240 are of use beside those of the system.
constexpr int consumer_registers(int threads, int blocks, int consumers, int kept) {
  const int launched = 65536 / (threads * blocks) / 8 * 8;
  const int each = (threads * launched - WARPGROUP * kept) / (consumers * WARPGROUP) / 8 * 8;
  return each < 240 ? each : 240;
}
