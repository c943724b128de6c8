// A warp finishes its share of a tile in chunks of 16 rows by 64 columns, from left to right, then from top to bottom. Of a
// SPLIT tile each block finishes some of them, for which the others send it their sums through distributed shared memory.

// Where a chunk begins in the tile. Of 160 columns the third one computes half of the second one's again: TMA stores
// 64 at a time.
DEVICE constexpr int first_column(int number) {
  const int column = number % CHUNKS * CHUNK;
  return column + CHUNK > TILE_N && TILE_N > CHUNK ? TILE_N - CHUNK : column;
}

// Until every block of the cluster has come here; each of its threads must, once. A split block has one tile.
DEVICE void wait_for_all() {
  wait_for_warp();
  cluster_sync();
}

// Of a split tile each block finishes a share of the chunks; those of a cluster that share a factor finish all of their own.
DEVICE constexpr bool is_mine(int number, unsigned rank) { return SPLIT == 1 || number % SPLIT == (int)rank; }
DEVICE constexpr int number_of_mine(unsigned rank) {
  return SPLIT == 1 ? CHUNK_NUMBER : (CHUNK_NUMBER + SPLIT - 1 - (int)rank) / SPLIT;
}

// Where a warp's sums of a chunk lie in the block that finishes it, for each of the others, in the order of their ranks.
DEVICE unsigned part_of(const SharedMemory& shared, int number, int other) {
  const unsigned lane = thread_index() % 32, warp = thread_index() / 32;
  return shared.parts + (other * PART_WARPS + warp) * PART_BYTES + number / SPLIT * CHUNK_SUMS_BYTES + lane * 16;
}

// The first of a thread's four sums of a group of eight columns of a chunk, those of all products of a gate.
DEVICE constexpr int first_sum(int number, int group) {
  constexpr int GROUPS = CHUNK / 8;
  return group / GROUPS * (TILE_N / 2) + first_column(number) / 2 + group % GROUPS * 4;
}

DEVICE void send(const Accumulators& sums, const SharedMemory& shared, unsigned rank) {
  UNROLLED for (int number = 0; number < CHUNK_NUMBER; ++number) {
    const unsigned owner = number % SPLIT;
    if (owner == rank) continue;
    const unsigned to = remote_address(part_of(shared, number, rank - (rank > owner)), owner);
    UNROLLED for (int group = 0; group < ACCUMULATED * CHUNK / 8; ++group)
        store_remote(to + group * 512, &sums.of[number / CHUNKS][first_sum(number, group)]);
  }
}

DEVICE void gather(Accumulators& sums, const SharedMemory& shared, int number) {
  for (int other = 0; other < SPLIT - 1; ++other) {
    const unsigned from = part_of(shared, number, other);
    UNROLLED for (int group = 0; group < ACCUMULATED * CHUNK / 8; ++group) {
      float part[4];
      load_from_shared(part, from + group * 512);
      float* const sum = &sums.of[number / CHUNKS][first_sum(number, group)];
      UNROLLED for (int i = 0; i < 4; ++i) sum[i] = add_sums(sum[i], part[i], (Factor*)nullptr);
    }
  }
}
