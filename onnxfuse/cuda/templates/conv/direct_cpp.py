"""The generated text of the direct template: constants, operands, the stores, the entry point and its parameters."""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.codegen.emit.source import KernelSource, constants
from onnxfuse.codegen.program.window import WindowGeometry
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.launch_plan import Area
from onnxfuse.cuda.templates.conv import stencil_cpp
from onnxfuse.cuda.templates.conv.stencil_cpp import Surroundings
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.strides import divisors

THREADS = 256
WARPS = THREADS // 32


@dataclass(frozen=True)
class Group:
    """What is the same for each group of a convolution, and how the tensor cores take it."""

    places: WindowGeometry
    groups: int
    channels: int
    """Of x, of a group."""
    filters: int
    """Of a group."""
    planes: bool
    """Whether x lies [N, C, H, W]."""
    terms: int
    """Elements of x in a word of 4 bytes."""
    vector: int
    """Neighbouring filters that a lane writes at once."""
    read: int
    """Elements of x that are copied at once, at most."""
    precise: bool = False
    """Whether elements are float32 and keep their digits."""

    @property
    def shift(self) -> int:
        """Elements of a plane's row that are copied ahead of what is seen, from a boundary of `read` on."""
        return -self.places.begin[1] % self.read if self.planes else 0

    @property
    def lead(self) -> int:
        """Elements ahead of a run in its first word."""
        return self.shift % self.terms

    @property
    def run(self) -> int:
        """Terms of a product that are neighbours in shared memory."""
        return self.places.kernel[1] if self.planes else self.channels

    @property
    def run_words(self) -> int:
        return -(-(self.lead + self.run) // self.terms)

    @property
    def words(self) -> int:
        """Of all terms."""
        height, width = self.places.kernel
        return (self.channels * height if self.planes else height * width) * self.run_words

    @property
    def steps(self) -> int:
        """Products that add up to an output."""
        return -(-self.words // 8)

    @property
    def masked(self) -> bool:
        """Whether some words count in part, or not at all."""
        return self.words % 8 != 0 or (self.planes and (self.lead != 0 or self.run % self.terms != 0))

    @property
    def bundle(self) -> int:
        """Columns of products whose filters are dealt to the lanes together."""
        return max(self.vector // 2, 1)


@dataclass(frozen=True)
class Slab:
    """What a block does: many tiles of an area, one after the other."""

    area: Area
    tiles: int
    """Columns of products of 8 filters that a warp computes at once."""
    blocks: tuple[int, int, int]
    """Blocks beside each other for the channels, then tiles of an image along columns and rows."""
    weight_words: int
    patch_words: int
    units: int
    """Parts of an area that a warp takes, one after the other."""
    fills: int
    """Loads of a warp that copy what an area's windows see."""
    read: int
    """Elements of x that a thread copies at once."""

    def shared_words(self, group: Group) -> int:
        """Return the words of shared memory: weights, table, patch; that of the next tile too where it can be."""
        return self.weight_words + group.steps * 16 + self.patch_words * (1 if self.read % group.terms else 2)


@dataclass(frozen=True)
class Work(Surroundings):
    """What the text is generated from."""

    group: Group
    slab: Slab | None
    """None: each thread computes an output."""
    packed: bool
    """Whether weights lie [F, R, S, C]; else [F, C, R, S]."""


def kernel(work: Work, min_blocks: int) -> KernelSource:
    """Return the kernel; `min_blocks`: blocks of a multiprocessor that it must leave registers for, 0 = any."""
    files = ("conv/direct_plain.cu",) if work.slab is None else ("cuda/split.cuh", "conv/direct.cu")
    return stencil_cpp.kernel_of(work, _constants(work), files, "direct", stencil_cpp.pointers(work), min_blocks)


def vector(op: FusedOp, filters: int, aligned: bool) -> int:
    """Return how many neighbouring filters, of so many, a lane writes at once: none that leaves more columns idle."""
    widest = max(element_types.TYPES[t].size for t in (*op.inputs, *op.outputs))
    whole = (v for v in (8, 4, 2) if aligned and v * widest <= 16 and filters % v == 0)
    return next((v for v in whole if -(-filters // (4 * v)) * v * 4 == -(-filters // 8) * 8), 1)


def parameters(work: Surroundings, blocks: tuple[int, int, int]) -> bytes:
    """Return the kernel's `Parameters`; `blocks`: beside each other for the channels, along columns and along rows."""
    places, filters = work.size.places, work.size.full[-1]
    (batch, height, width, channels), (rows, columns) = places.shape, places.out
    words = [batch, height, width, rows, columns, *places.begin]
    last = work.parts.images_last
    words += [height * width * channels, 1 if last else height * width, width * channels if last else width]
    words += [rows * columns * filters, 1, columns * filters]
    words += divisors((max(n, 1) for n in blocks), work.bits)
    return launch_plan.packed((*words, *work.stride_words), work.bits)


def _constants(work: Work) -> str:
    places, group = work.size.places, work.group
    facts = {
        "KERNEL_H": places.kernel[0], "KERNEL_W": places.kernel[1],
        "STRIDE_H": places.strides[0], "STRIDE_W": places.strides[1],
        "DILATION_H": places.dilations[0], "DILATION_W": places.dilations[1],
        "GROUPS": group.groups, "GROUP_CHANNELS": group.channels, "FILTERS": group.filters,
        "X_CHANNELS": places.shape[3], "Y_CHANNELS": group.groups * group.filters,
        "STRIDED_SLOTS": max(len(work.slots), 1), "THREADS": THREADS,
        **({"CHANNELS": 1} if work.slab is None else _slab_constants(group, work.slab)),
    }  # fmt: skip
    whole = work.aligned and work.packed and not group.planes and group.channels % group.terms == 0
    return f"using X = {element_types.TYPES[work.op.inputs[work.parts.x]].stored};\n" + constants(
        {**facts, "PLANES": group.planes, "PACKED": work.packed, "WHOLE_WORDS": whole, "PRECISE": group.precise}
    )


def _slab_constants(group: Group, slab: Slab) -> dict[str, int]:
    area = slab.area
    return {
        "TILE_ROWS": area.rows, "TILE_COLUMNS": area.columns, "BLOCK_GROUPS": area.groups,
        "BLOCK_FILTERS": area.filters, "STACK": area.stack, "TILES_N": slab.tiles, "VECTOR": group.vector,
        "CHANNELS": group.vector, "READ": slab.read, "SHIFT": group.shift,
        "SHARED_WORDS": slab.shared_words(group),
    }  # fmt: skip
