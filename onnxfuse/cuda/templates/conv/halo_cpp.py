"""The generated text of the direct template's kernel for slices of channels: constants, inputs side by side."""

from __future__ import annotations

from dataclasses import dataclass

from onnx import TensorProto

from onnxfuse.codegen.emit import warpgroup
from onnxfuse.codegen.emit.source import AMPERE, HOPPER, KernelSource, constants
from onnxfuse.cuda.planning.launch_plan import Halo
from onnxfuse.cuda.templates.conv import stencil_cpp
from onnxfuse.cuda.templates.conv.stencil_cpp import Surroundings
from onnxfuse.symbolic import element_types

LINE = 64
"""Bytes of a pixel's channels that are in shared memory at a time."""


@dataclass(frozen=True)
class Slices:
    """How the tensor cores take a convolution slice by slice, whatever its tile."""

    kernel: tuple[int, int]
    out: tuple[int, int]
    images: int
    channels: tuple[int, ...]
    """Of each of the inputs side by side."""
    filters: int
    size: int
    """Bytes of an element."""
    vector: int
    """Neighbouring filters that a lane writes at once."""
    piece: int
    """Bytes that are copied at once."""

    @property
    def count(self) -> int:
        """Slices of all channels."""
        return -(-sum(self.channels) * self.size // LINE)


@dataclass(frozen=True)
class Tiling:
    """What a block does with a halo: a tile of outputs, through all slices."""

    halo: Halo
    tiles: int
    """Columns of products of 8 filters of a warp."""
    warps: int
    blocks: tuple[int, int, int]
    """Blocks beside each other for the filters, then tiles of an image along columns and rows."""
    patch_bytes: int
    """Of what a tile's windows see of a slice."""
    weight_bytes: int
    stages: int
    kernel_height: int

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        return self.stages * (-(-(self.patch_bytes + self.weight_bytes) // 512) * 512)


@dataclass(frozen=True)
class Work(Surroundings):
    """What the text is generated from."""

    slices: Slices
    tiling: Tiling


def kernel(work: Work, min_blocks: int) -> KernelSource:
    """Return the kernel; `min_blocks`: blocks of a multiprocessor that it must leave registers for."""
    together = bool(work.tiling.halo.together)
    warpgroups = (HOPPER, "conv/halo_warpgroup.cuh")
    files = (AMPERE, "conv/halo.cuh", *(warpgroups if together else ("conv/halo_warp.cuh",)), "conv/halo.cu")
    more = _runs(work) + (_warpgroup_product(work) if together else "")
    given = stencil_cpp.pointers(work)
    ahead = f"  bring_near(in{work.parts.w}, FILTERS * TAPS * X_CHANNELS * (int)sizeof(X));\n"
    return stencil_cpp.kernel_of(work, _constants(work), files, "halo", given, min_blocks, more, ahead)


def _constants(work: Work) -> str:
    slices, tiling = work.slices, work.tiling
    facts = {
        "KERNEL_H": slices.kernel[0], "KERNEL_W": slices.kernel[1],
        "X_CHANNELS": sum(slices.channels), "FILTERS": slices.filters, "BLOCK_FILTERS": tiling.halo.filters,
        "TILE_ROWS": tiling.halo.rows, "TILE_COLUMNS": tiling.halo.columns, "STACK": tiling.halo.stack,
        "TILES_N": tiling.tiles, "PARTS": tiling.halo.parts, "VECTOR": slices.vector, "CHANNELS": slices.vector,
        "PIECE": slices.piece, "STAGES": max(tiling.stages, 2), "SHARED_WORDS": tiling.shared_bytes // 4,
        "STRIDED_SLOTS": max(len(work.slots), 1), "THREADS": tiling.warps * 32,
        "FILLS": 4 if tiling.halo.together else 1,
    }  # fmt: skip
    return f"using X = {element_types.TYPES[work.op.inputs[work.parts.x]].stored};\n" + constants(facts)


def _warpgroup_product(work: Work) -> str:
    """Return the function around `wgmma` of pixels in registers and the filters of a block."""
    kind = _KINDS[work.op.inputs[work.parts.x]]
    return warpgroup.product("warpgroup_product", 8 * work.tiling.tiles, kind, right_rows=False, held=True, fours=True)


_KINDS: dict[int, str] = {TensorProto.FLOAT16: "f16", TensorProto.BFLOAT16: "bf16"}


def _runs(work: Work) -> str:
    """Return the function that tells where a channel, counted over all inputs side by side, lies."""
    text, end = "", sum(work.slices.channels)
    for number, channels in reversed(list(enumerate(work.slices.channels))):
        end -= channels
        found = f"{{from.{stencil_cpp.image(number)} + (channel - {end}), {channels}}}"
        text += f"  if (channel >= {end}) return {found};\n" if end else f"  return {found};\n"
    return (
        "// Where a channel of the first pixel lies, and elements from pixel to pixel.\n"
        "template <class T> struct Run {\n  const T* from;\n  Index step;\n};\n"
        f"DEVICE Run<X> run_of(const Pointers& from, int channel) {{\n{text}}}\n"
    )
