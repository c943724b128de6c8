"""What the blocks of a cluster of Hopper's kernel send, announce and fetch, by the kernel's own text on the host."""

import ctypes
import math
import re
from collections.abc import Iterable

from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.symbolic import element_types
from tests.emulator import emulate

MEMORY = """
#include <cstring>
#define DEVICE inline
#define UNROLLED
struct SharedMemory { unsigned parts; };
void wait_for_warp() {}
void cluster_sync() {}
static unsigned thread, self;
static unsigned char memory[8][1 << 18];
static bool taken[8][1 << 18];
static int wrong;
unsigned thread_index() { return thread; }
unsigned remote_address(unsigned address, unsigned rank) { return address | rank << 24; }
void store_remote(unsigned address, const float* value) {
  const unsigned to = address & 0xffffff, rank = address >> 24;
  wrong += to + 16 > PARTS_BYTES || taken[rank][to];
  taken[rank][to] = true;
  std::memcpy(memory[rank] + to, value, 16);
}
void load_from_shared(float (&value)[4], unsigned address) {
  wrong += !taken[self][address];
  std::memcpy(value, memory[self] + address, 16);
}
using Factor = float;
float add_sums(float a, float b, Factor*) { return a + b; }
"""
EXCHANGE = """
float sum_of(unsigned rank, unsigned thread, int block, int i) {
  return (float)(((rank * 384 + thread) * BLOCKS_M + block) * (WIDTH / 2) + i);
}
void fill(Accumulators& sums, unsigned rank) {
  for (int block = 0; block < BLOCKS_M; ++block)
    for (int i = 0; i < WIDTH / 2; ++i) sums.of[block][i] = sum_of(rank, thread, block, i);
}
// What is missing, sent twice, or not where it is taken from; and cells that no block finishes, or differently.
extern "C" int exchange() {
  wrong = 0;
  std::memset(taken, 0, sizeof taken);
  const SharedMemory shared{0};
  Accumulators sums;
  for (unsigned rank = 0; rank < SPLIT; ++rank)
    for (thread = 0; thread < PART_WARPS * 32; ++thread) {
      fill(sums, rank);
      send(sums, shared, rank);
    }
  bool finished[BLOCKS_M][TILE_N] = {};
  for (self = 0; self < SPLIT; ++self)
    for (int number = 0; number < CHUNK_NUMBER; ++number) {
      if (!is_mine(number, self)) continue;
      for (thread = 0; thread < PART_WARPS * 32; ++thread) {
        fill(sums, self);
        gather(sums, shared, number);
        for (int group = 0; group < ACCUMULATED * CHUNK / 8; ++group)
          for (int i = first_sum(number, group); i < first_sum(number, group) + 4; ++i) {
            float all = 0;
            for (unsigned rank = 0; rank < SPLIT; ++rank) all += sum_of(rank, thread, number / CHUNKS, i);
            wrong += sums.of[number / CHUNKS][i] != all;
          }
      }
      for (int i = 0; i < CHUNK; ++i) finished[number / CHUNKS][first_column(number) + i] = true;
    }
  for (auto& row : finished)
    for (bool cell : row) wrong += !cell;
  return wrong;
}
"""
STAGING = """
#define DEVICE inline
void wait_for_warp() {}
void cluster_sync() {}
#define UNROLLED
using Index = unsigned;
struct TensorMap {};
struct TensorMaps { TensorMap staged[8]; };
struct Tile { Index row, column; int sibling; Index batch; };
static int announced, fetched;
unsigned thread_index() { return 0; }
template <int> void tma_store_wait_read() {}
void mbarrier_arrive_expect(unsigned, unsigned bytes) { announced += bytes; }
template <bool> void tma_load(unsigned, const TensorMap*, int, int, unsigned, unsigned) { ++fetched; }
"""
STAGE = """
extern "C" void stage_once(unsigned rank, int* to) {
  announced = fetched = 0;
  stage({}, {}, rank, 0, 0);
  to[0] = announced, to[1] = fetched;
}
"""
CONSTANTS = ("TILE_M", "TILE_N", "WARPGROUPS", "SPLIT", "PART_WARPS", "ACCUMULATED", "CHUNK", "CHUNK_ROWS")
COUNTED = ("BLOCKS_M", "WIDTH", "CHUNKS", "CHUNK_NUMBER", "CHUNK_SUMS_BYTES", "PART_BYTES")


def errors(plan: LaunchPlan) -> int:
    """Return how many sums of the plan's tiles are lost, sent twice, or added where they do not belong."""
    files = {s.file: s.text for s in plan.kernel.sections}
    text = _constants(plan, (*CONSTANTS, *COUNTED))
    text += "constexpr unsigned PARTS_BYTES = (SPLIT - 1) * PART_WARPS * PART_BYTES;\n" + MEMORY
    text += "struct Accumulators { float of[BLOCKS_M][WIDTH / 2]; };\n"
    text += files["gemm/sm90_chunks.cuh"]
    return int(emulate.library(text + EXCHANGE).exchange())


def staged_bytes(plan: LaunchPlan) -> list[tuple[int, int]]:
    """Return what a warp of each block of a cluster announces of the staged operand, and what it fetches, in bytes."""
    files = {s.file: s.text for s in plan.kernel.sections}
    chunks, finish = files["gemm/sm90_chunks.cuh"], files["gemm/sm90.cu"]
    fetch = plan.kernel.text[plan.kernel.text.index("DEVICE void load_staged") :]
    names = (*CONSTANTS, "OUTPUT_BYTES", "STAGED_BYTES", "BLOCKS_M", "CHUNKS", "CHUNK_NUMBER", "OUTPUT_CHUNK_BYTES")
    text = STAGING + _constants(plan, names)
    text += fetch[: fetch.index("DEVICE void read_staged")]
    text += chunks[: chunks.index("// Where a warp's sums of a chunk lie")]
    text += finish[finish.index("DEVICE void stage(") : finish.index("// A thread's share of a warpgroup product")]
    library, box = emulate.library(text + STAGE), plan.tensor_maps[-1]
    found = []
    for rank in range(int(_told(plan)["TOGETHER"])):
        numbers = (ctypes.c_int * 2)()
        library.stage_once(rank, numbers)
        found.append((numbers[0], numbers[1] * math.prod(box.box) * element_types.TYPES[box.dtype].size))
    return found


def _told(plan: LaunchPlan) -> dict[str, str]:
    return dict(re.findall(r"constexpr int (\w+) =\s+([^;]+);", plan.kernel.text))


def _constants(plan: LaunchPlan, names: Iterable[str]) -> str:
    """Return the kernel's own text of some constants, in this order."""
    told = _told(plan)
    return "".join(f"constexpr int {name} = {told[name]};\n" for name in names)
