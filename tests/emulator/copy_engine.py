"""What Hopper's kernel asks the copy engine for, and what that one brings and takes away, on the host.

The kernel's own text says what is fetched step by step; the engine is numpy, by the words of the CUDA manuals.
"""

import ctypes
import re

import numpy as np

from onnxfuse.cuda.planning.launch_plan import LaunchPlan, TensorMapSpec
from tests.emulator import emulate

ASKED = """
#include <cstring>
#define DEVICE inline
#define UNROLLED
using Index = unsigned;
struct TensorMap {};
struct Matrices { Index a, b; };
template <class T> T load_splat(const T* at) { return *at; }
static int* asked;
template <class... Numbers> void ask(Numbers... numbers) { ((*asked++ = (int)numbers), ...); }
void tma_load_im2col(unsigned, const TensorMap*, int channel, int x, int y, int image, unsigned short right,
                  unsigned short below, unsigned) { ask(channel, x, y, image, right, below); }
void tma_load_im2col(unsigned, const TensorMap*, int channel, int x, int y, int z, int image, unsigned short right,
                  unsigned short below, unsigned short behind, unsigned) {
  ask(channel, x, y, z, image, right, below, behind);
}
template <bool> void tma_load(unsigned, const TensorMap*, int x, int y, int z, unsigned, unsigned short) {
  ask(x, y, z);
}
template <bool> void tma_load(unsigned, const TensorMap*, int x, int y, int z, int w, unsigned, unsigned short) {
  ask(x, y, z, w);
}
"""
PARAMETERS = "struct Parameters { Sides<SIBLINGS, EVEN> sides; Index m, rows; };\n"
LAUNCH = """
extern "C" void place(unsigned number, const Parameters* p, unsigned* to) {
  const Tile tile(number, 0, *p);
  to[0] = tile.row, to[1] = tile.column, to[2] = tile.batch;
}
extern "C" void fetch(const void* words, unsigned row, unsigned group, unsigned column, unsigned first, unsigned steps,
                      int* to) {
  Source source;
  std::memcpy(&source, words, sizeof source);
  asked = to;
  Terms terms(row, first, Matrices{group, group}, source);
  for (unsigned step = 0; step < steps; ++step, terms.next()) {
    terms.load_left(0, nullptr, 0);
    terms.load_right(0, nullptr, column, 0, 0);
  }
}
"""
CONSTANTS = ("TILE_M", "TILE_N", "TILE_K", "CLUSTER", "SLICES", "GROUPED", "VOLUME", "EVERY_BLOCK",
             "SIBLINGS", "EVEN", "BATCHED", "B_TRANSPOSED", "PANEL")  # fmt: skip


def convolved(plan: LaunchPlan, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the sums that Hopper's kernel puts for a convolution, tile by tile, its steps in two halves."""
    told = dict(re.findall(r"constexpr (?:int|bool) (\w+) = (\w+);", plan.kernel.text))
    fixed = {n: int(told[n].replace("true", "1").replace("false", "0")) for n in CONSTANTS}
    files = {s.file: s.text for s in plan.kernel.sections}
    text = "".join(f"constexpr int {n} = {v};\n" for n, v in fixed.items())
    kernel = files["gemm/sm90.cuh"]
    tile = kernel[kernel.index("struct Tile {") : kernel.index("// The steps of a block")]
    head = files["gemm/gemm.cuh"]
    sides = head[head.index("template <int NUMBER, bool EVEN> struct Sides") : head.index("// Groups of channels")]
    text = ASKED + text + sides + PARAMETERS + tile + files["gemm/window.cuh"] + files["gemm/fetch_window.cuh"] + LAUNCH
    library = emulate.library(text)
    ask = library.fetch
    images, filters, put = plan.tensor_maps[:3]
    columns, rows, groups = (*put.extents, 1)[:3]
    terms = fixed["TILE_K"] * fixed["SLICES"] // 4
    count = filters.extents[1] * -(-filters.extents[0] // terms)
    axes = len(images.extents) - 2
    each = (2 + 2 * axes, len(filters.extents))
    found = np.full((rows, columns * groups), np.nan)
    below, beside = -(-rows // fixed["TILE_M"]), -(-columns // fixed["TILE_N"])
    for number in range(below * beside * groups):
        place = (ctypes.c_uint * 3)()
        library.place(number, (ctypes.c_uint * 4)(columns, beside, rows, below), place)
        row, column, group = place
        sums = np.zeros((fixed["TILE_M"], fixed["TILE_N"]))
        for first, steps in ((0, count // 2), (count // 2, count - count // 2)):
            to = (ctypes.c_int * (steps * sum(each)))()
            ask(plan.parameters, row, group, column, first, steps, to)
            for at in np.asarray(to).reshape(steps, sum(each)):
                left = pixels(x, images, at[: 2 + axes], at[2 + axes : each[0]])
                right = box(w, filters, at[each[0] :])[..., :terms].reshape(-1, terms)
                sums[:, : len(right)] += left[:, :terms] @ right.T
        # What lies beyond the rows or the columns of a group is not written.
        high, wide = min(fixed["TILE_M"], rows - row), min(fixed["TILE_N"], columns - column)
        found[row : row + high, group * columns + column :][:, :wide] = sums[:high, :wide]
    return found


def box(array: np.ndarray, told: TensorMapSpec, at: np.ndarray) -> np.ndarray:
    """Return a box of the tensor that a map tells of, outermost axis first; zeros outside of it."""
    flat, size = array.astype(np.float64).reshape(-1), array.itemsize
    inside, offsets = np.ones(told.box[::-1], bool), np.zeros(told.box[::-1], np.int64)
    axes = [int(a) + np.arange(n) for a, n in zip(at, told.box, strict=True)]
    grid = np.meshgrid(*axes[::-1], indexing="ij", sparse=True)[::-1]
    for index, extent, step in zip(grid, told.extents, (size, *told.strides), strict=True):
        inside &= (index >= 0) & (index < extent)
        offsets += index * step
    return np.where(inside, flat[np.where(inside, offsets // size, 0)], 0.0)


def pixels(array: np.ndarray, told: TensorMapSpec, at: np.ndarray, offsets: np.ndarray) -> np.ndarray:
    """Return [pixels, channels]: the same element of as many windows as the map says, from one on; zeros outside."""
    window = told.window
    assert window is not None
    channels, count = told.box
    first, *place, image = (int(a) for a in at)
    space, found = told.extents[1:-1], np.zeros((count, channels))
    for row in range(count):
        index = [p + int(o) for p, o in zip(place, offsets, strict=True)]
        if image < told.extents[-1] and all(0 <= i < n for i, n in zip(index, space, strict=True)):
            seen = array[(image, *index[::-1])][first : first + channels]
            found[row, : len(seen)] = seen
        for side, step in enumerate(window.strides):
            place[side] += step
            if place[side] <= space[side] - 1 + window.upper[side]:
                break
            place[side] = window.lower[side]
        else:
            image += 1
    return found
