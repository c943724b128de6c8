// y = body(A B0, A B1, ..., operands): matrix products on Hopper's tensor cores, and everything pointwise after them.
//
// A [m, k] row-major, or what a window sees that slides over images (implicit GEMM), or what a functor makes of matrices
// [m, k], vectors [k] and [m, 1] and numbers (PROLOGUE). B [k, n] row-major, or [n, k] (B_TRANSPOSED). Operands of the body:
// [m, n], [n], [m, 1], one element. Outputs [m, n]. BATCHED: many such products, each with its own A and B; TMA counts them
// by themselves, so that nothing of one is read or written with another's rows. The body reads ACCUMULATED products at once
// (a gate); SIBLINGS of such bodies are concatenated, as more output tiles with factors, columns, operands and outputs of
// their own. One of ACCUMULATED and SIBLINGS is 1.
//
// Types of A and B: float16, bfloat16, int8 and uint8, float8 e4m3, or float32 with B [n, k], rounded to TF32 as TMA loads it
// unless PRECISE (sm90_precise.cuh). Accuracy: float32 accumulators (int32 of integers), which the body reads unrounded; of
// float8 sums of 128 terms, of 14 bits each, are added up in them (sm90_promoted.cuh). Each output is rounded once.
//
// A persistent, warp-specialized kernel (CUTLASS, sm90 "pingpong" and "cooperative" kernels, 2023; stages: pipeline.cuh).
// Behind the consumers stands a producer, a thread that loads tiles of A and B through STAGES of shared memory, and with a
// PROLOGUE a warpgroup that computes A there (sm90_prologue.cuh). WARPGROUPS of consumers share an output tile, TILE_M x
// TILE_N, by rows; of two TEAMS one runs the body over its accumulators while the other one keeps the tensor cores busy. With a
// ring for each team (RINGS) both also multiply at the same time, where one adds up sums meanwhile (sm90_promoted.cuh).
//
// How wide a tile must be, the L2 cache decides: at the full rate of the tensor cores 128x128 asks it for 64 bytes a cycle
// and multiprocessor, which is its limit, 128x192 for 53, 192x192 for 43. 4096x3072x768 without a body, Nsight Compute,
// H200, 2026-11: 128x128 takes 76% of L2's rate and 64% of the tensor cores', 128x192 65% and 72%.
//
// CLUSTER blocks work on tiles below each other and share each tile of B: every block loads a part of it for all (TMA
// multicast). Or SPLIT blocks share the terms of a tile (split-K), for sizes that have few tiles: sm90_chunks.cuh.
//
// Columns may end within a chunk of 64, which is what TMA stores: the last chunk of a tile then begins in the one before it
// and computes some columns again, to the same bits. Outputs that are written reshaped and transposed (MOVED: head by head)
// leave shared memory by the threads (store_moved.cuh).
//
// An operand [m, n] of the first output's element size is loaded by TMA, before the products, to where that output will be
// stored from (STAGED). 4096x3072x768 with bias and residual, float16, H200, 2026-11: 37.3 us; 48.8 where threads load it,
// 53.4 by cuBLAS and a kernel of its own.
//
// EXTREMES: of an output the smallest and the largest element are left, a part for each warp.
//
// The first BROUGHT right factors are weights, which no kernel writes: they come to the L2 cache while the kernel ahead ends.
//
// A LONG kernel lets the one behind it be launched when its last products are done. Sooner, that one's blocks, where
// several fit a multiprocessor, would all be placed on the few that this kernel leaves free.

// ---- the epilogue

// Loads this warp's share of the staged operand, once what was stored from there has been read.
DEVICE void stage(const TensorMaps& maps, const Tile& tile, unsigned rank, unsigned buffer, unsigned arrived) {
  tma_store_wait_read<0>();
  mbarrier_arrive_expect(arrived, number_of_mine(rank) * STAGED_BYTES);
  UNROLLED for (int number = 0; number < CHUNK_NUMBER; ++number) {
    if (!is_mine(number, rank)) continue;
    load_staged(maps, tile.sibling, tile.column + first_column(number),
                tile.row + number / CHUNKS * 64 + thread_index() / 32 % 4 * CHUNK_ROWS, tile.batch,
                buffer + number * OUTPUT_CHUNK_BYTES, arrived);
  }
}

// A thread's share of a warpgroup product: in each group of eight columns two neighbours, in a row and in the one eight
// rows below. A warp finishes a tile in chunks, from left to right, then from top to bottom.
constexpr int GROUPS = (TILE_N < CHUNK ? TILE_N : CHUNK) / 8;

// Of a thread's rows, each of which counts or does not: none of its cells asks. WHOLE_COLUMNS: no tile sticks out.
struct TileExtremes { SeenExtremes<EXTREMES> of[BLOCKS_M][2]; };

struct RowsHeld { RowHeld of[BLOCKS_M]; };
struct ColumnsHeld { ColumnHeld<2> of[GROUPS]; };
struct ChunkHeld { CellHeld<2> cells[GROUPS][2]; };

DEVICE Place place_in(const Tile& tile, const Parameters& p) {
  const int lane = thread_index() % 32, warp = thread_index() / 32 % 4;
  const Index n = tile.columns(p), above = GROUPED ? 0 : tile.batch * p.m, before = GROUPED ? tile.batch * n : 0;
  const Index row = above + tile.row + warp * CHUNK_ROWS + lane / 4, column = before + tile.column + lane % 4 * 2;
  return {row, column, above + p.m, before + n, p.lines, GROUPED ? p.products() * n : n};
}

DEVICE void load_all_rows(RowsHeld& held, const Pointers& operands, const Place& at) {
  UNROLLED for (int block = 0; block < BLOCKS_M; ++block) held.of[block] = load_rows(operands, at, block * 64);
}

// A chunk's columns are loaded while the one before is finished, the first one's before the products.
template <int NUMBER> DEVICE void load_columns(ColumnsHeld& held, const Pointers& operands, const Place& at) {
  UNROLLED for (int group = 0; group < GROUPS; ++group) held.of[group] =
      load_column<2>(operands, at, first_column(NUMBER) + group * 8);
}

template <int NUMBER> DEVICE void load_chunk(ChunkHeld& held, const Pointers& operands, const Place& at) {
  constexpr int DOWN = NUMBER / CHUNKS * 64, RIGHT = first_column(NUMBER);
  UNROLLED for (int group = 0; group < GROUPS; ++group) UNROLLED for (int half = 0; half < 2; ++half)
      held.cells[group][half] = load_cell<2>(operands, at, DOWN + half * 8, RIGHT + group * 8);
}

template <int NUMBER> DEVICE void finish_chunk(const Accumulators& sums, const RowsHeld& rows,
                                               const ColumnsHeld& columns, const ChunkHeld& chunk, const Place& at,
                                               TileExtremes& extremes, unsigned buffer) {
  constexpr int BLOCK = NUMBER / CHUNKS, FIRST = first_column(NUMBER) / 8;
  const int lane = thread_index() % 32;
  UNROLLED for (int group = 0; group < GROUPS; ++group) {
    Result result[2][2];
    UNROLLED for (int half = 0; half < 2; ++half) {
      CellHeld<2> cell = chunk.cells[group][half];
      read_staged(cell, buffer, lane / 4, half, group, lane % 4);
      UNROLLED for (int next = 0; next < 2; ++next) {
        float product[ACCUMULATED];
        UNROLLED for (int g = 0; g < ACCUMULATED; ++g) product[g] =
            sums.of[BLOCK][g * (TILE_N / 2) + (FIRST + group) * 4 + half * 2 + next];
        result[half][next] = apply(element(product, columns.of[group], cell, rows.of[BLOCK], half, next));
      }
      const Index column = at.column + (FIRST + group) * 8;
      UNROLLED for (int next = 0; next < 2; ++next) extremes.of[BLOCK][half].take(
          ranged(result[half][next]), WHOLE_COLUMNS || column + next < at.n);
    }
    UNROLLED for (int half = 0; half < 2; ++half) fill_chunk(buffer, result[half], lane / 4, half, group, lane % 4);
  }
}

// Where a warp's results go, and what of the tile is its block's to finish.
struct Finish {
  const Pointers& operands;
  const Results& to;
  const TensorMaps& maps;
  const Tile& tile;
  const Place& at;
  const Parameters& p;
  const SharedMemory& shared;
  TileExtremes& extremes;
  unsigned rank, buffer;
};

template <int NUMBER>
DEVICE void finish_and_store(Accumulators& sums, const RowsHeld& rows, const ColumnsHeld& columns, const Finish& f) {
  const unsigned here = f.buffer + NUMBER % BUFFERS * OUTPUT_CHUNK_BYTES;
  const bool first_lane = thread_index() % 32 == 0;
  ChunkHeld chunk;
  load_chunk<NUMBER>(chunk, f.operands, f.at);
  if constexpr (SPLIT > 1) gather(sums, f.shared, NUMBER);
  // The tile before ended in this very buffer where their number is odd; of a split tile the chunk before may have.
  if (!STAGED && first_lane) tma_store_wait_read<(SPLIT > 1 || (NUMBER == 0 && CHUNK_NUMBER % 2 == 1)) ? 0 : 1>();
  wait_for_warp();
  finish_chunk<NUMBER>(sums, rows, columns, chunk, f.at, f.extremes, here);
  const Index column = f.tile.column + first_column(NUMBER);
  const Index row = f.tile.row + NUMBER / CHUNKS * 64 + thread_index() / 32 % 4 * CHUNK_ROWS;
  if constexpr (MOVED) {
    wait_for_warp();
    const Place& at = f.at;
    const Index before = GROUPED ? at.n - f.tile.columns(f.p) : 0;
    store_moved(f.to, f.p, f.tile.sibling, before + column, at.m - f.p.m + row, at.m, at.n, here);
    if constexpr (STAGED) {  // there TMA loads the next tile's operand
      fence_async_proxy();
      wait_for_warp();
    }
  } else {
    fence_async_proxy();
    wait_for_warp();
    if (first_lane) {
      store_chunk(f.maps, f.tile.sibling, column, row, f.tile.batch, here);
      tma_store_commit();
    }
  }
}

template <int NUMBER>
DEVICE void finish_from(Accumulators& sums, const RowsHeld& rows, const ColumnsHeld& columns, const Finish& f) {
  if constexpr (NUMBER < CHUNK_NUMBER) {
    ColumnsHeld next;
    if constexpr (NUMBER + 1 < CHUNK_NUMBER) load_columns<NUMBER + 1>(next, f.operands, f.at);
    if (is_mine(NUMBER, f.rank)) finish_and_store<NUMBER>(sums, rows, columns, f);
    finish_from<NUMBER + 1>(sums, rows, next, f);
  }
}

DEVICE void consume(const SharedMemory& shared, const TensorMaps& maps, unsigned rank, const Operands& operands,
                    const Results& to, const Parameters& p) {
  const int warp = thread_index() / 32, member = warp / 4 % WARPGROUPS, team = this_team();
  const unsigned buffer = shared.outputs + warp * BUFFERS * OUTPUT_CHUNK_BYTES, arrived = shared.staged + warp * 8;
  const Steps steps(rank, p);
  unsigned parity = 0;
  State state;
  int whose = 0;
  SeenExtremes<EXTREMES> extremes;
  if (IN_TURNS && team == 1) named_barrier_arrive<CONSUMERS * WARPGROUP>(1);
  for (Index number = first_tile(); number < tiles(p); number += tile_stride(), whose ^= TEAMS - 1) {
    if (whose != team) {
      if constexpr (RINGS == 1) state.advance(steps.count);
      continue;
    }
    Tile tile(number, rank, p);
    tile.row += member * BLOCKS_M * 64;
    if (tile.row >= p.m) {
      skip_steps(shared, state, steps.count);
      if constexpr (SPLIT > 1) wait_for_all();
      continue;
    }
    const Place at = place_in(tile, p);
    const Pointers mine = operands.of(tile.sibling);
    const bool present = tile.row + warp % 4 * CHUNK_ROWS < p.m;
    if (STAGED && present && thread_index() % 32 == 0) stage(maps, tile, rank, buffer, arrived);
    RowsHeld rows;
    ColumnsHeld columns;
    load_all_rows(rows, mine, at);
    load_columns<0>(columns, mine, at);
    Accumulators sums;
    multiply<Prologue>(sums, shared, state, member, steps.count);
    if constexpr (LONG) {
      if (number + tile_stride() >= tiles(p)) launch_next_kernel();
    }
    if constexpr (SPLIT > 1) {
      if (present) send(sums, shared, rank);
      wait_for_all();
    }
    if (!present) continue;
    if constexpr (STAGED) mbarrier_wait(arrived, parity);
    parity ^= 1;
    TileExtremes of_tile;
    finish_from<0>(sums, rows, columns, {mine, to, maps, tile, at, p, shared, of_tile, rank, buffer});
    UNROLLED for (int block = 0; block < BLOCKS_M; ++block) UNROLLED for (int half = 0; half < 2; ++half)
        extremes.combine(of_tile.of[block][half], at.row + block * 64 + half * 8 < at.m);
  }
  extremes.leave_of_warp(to.scratch, block_index() * CONSUMER_WARPS + warp);
  if (thread_index() % 32 == 0) tma_store_wait_read<0>();
}

DEVICE void gemm(const Operands& operands, const Results& to, const TensorMaps& maps, const Parameters& p) {
  const int ring = RINGS == 1 ? 0 : thread_index() < CONSUMERS * WARPGROUP ? this_team() : thread_index() / 32 % RINGS;
  const SharedMemory shared(ring);
  const unsigned rank = TOGETHER > 1 ? cluster_rank() : 0;
  if (thread_index() == 0) {
    shared.pipeline.init(CONSUMER_WARPS / TEAMS * CLUSTER, COMPUTERS * 4);
    if constexpr (RINGS > 1) SharedMemory(1).pipeline.init(CONSUMER_WARPS / TEAMS * CLUSTER, COMPUTERS * 4);
    for (int warp = 0; warp < CONSUMER_WARPS; ++warp) mbarrier_init(shared.staged + warp * 8, 1);
    fence_mbarrier_init();
  }
  if (thread_index() == CONSUMERS * WARPGROUP) prefetch_tensor_maps(maps);
  bring_factors<BROUGHT, SIBLINGS>(operands, p);
  if constexpr (LONG) wait_for_previous_kernel();
  else join_stream();
  if constexpr (TOGETHER > 1) cluster_sync();
  else wait_for_block();

  if (thread_index() < CONSUMERS * WARPGROUP) {
    if constexpr (CONSUMERS > 1) increase_registers<CONSUMER_REGISTERS>();
    consume(shared, maps, rank, operands, to, p);
  } else if (PROLOGUE && thread_index() >= (CONSUMERS + 1) * WARPGROUP) {
    if constexpr (CONSUMERS > 1) decrease_registers<COMPUTER_REGISTERS>();
    compute_factor<Prologue>(shared, operands, rank, p);
  } else {
    if constexpr (CONSUMERS > 1) decrease_registers<PRODUCER_REGISTERS>();
    if (thread_index() == CONSUMERS * WARPGROUP + ring * 32) produce(shared, maps, rank, ring, p);
  }
  // No block leaves while others may still signal its barriers or write into it: those that split a tile have waited.
  if (CLUSTER > 1 || (SPLIT > 1 && thread_index() >= CONSUMERS * WARPGROUP)) wait_for_all();
}
