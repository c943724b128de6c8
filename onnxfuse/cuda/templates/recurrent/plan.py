"""Launch plans of the recurrent template: the products of the whole input, then the layer, position after position.

The first launch is the gemm template's, into scratch memory. In the second, persistent clusters iterate over the
positions; the partition of a direction's cells depends on the layer alone, so that one source serves all inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from onnx import TensorProto

from onnxfuse.codegen.emit import access
from onnxfuse.codegen.emit.entry import entry_point
from onnxfuse.codegen.emit.source import (
    CLUSTER,
    DEVICE,
    MMA_SYNC,
    KernelSource,
    constants,
    generated,
    identifier,
    template,
)
from onnxfuse.codegen.program.builder import Builder
from onnxfuse.codegen.program.program import BodyProgram, Input, Output
from onnxfuse.cuda.isa.isa import FRAGMENT
from onnxfuse.cuda.isa.sm_90 import SM_90
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import SUPPORTED, Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.gemm import sm80
from onnxfuse.cuda.templates.gemm.body import Anatomy, Epilogue, Product
from onnxfuse.cuda.templates.gemm.problem import GemmProblem
from onnxfuse.cuda.templates.gemm.work import GemmSource
from onnxfuse.cuda.templates.recurrent.body import Layer, parse_op
from onnxfuse.cuda.templates.recurrent.costs import RecurrentCosts, costs_of
from onnxfuse.model.fused import FusedOp
from onnxfuse.ops import scalar
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic.branching import larger, least
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

IN_TILE = FRAGMENT // 4
"""Cells per tile of weight rows: four gates each."""


@dataclass(frozen=True)
class CellPartition:
    """Partition of a direction's cells among the blocks of a cluster, their warps and registers."""

    cluster: int
    warps: int
    tiles: int
    """Tiles per warp, of four cells each; an even number."""
    slices: int
    """Slices of 16 terms each."""
    resident: int
    """Slices with register-resident weights."""

    @property
    def cells(self) -> int:
        """Cells per block."""
        return self.warps * self.tiles * IN_TILE

    @property
    def width(self) -> int:
        """Elements of h that a block stores per sequence."""
        return max(self.slices * 16, self.cluster * self.cells)

    def shared_bytes(self, sequences: int) -> int:
        """Return the bytes of h for the current and the next position, and of the weights in shared memory."""
        stored = self.warps * self.tiles * (self.slices - self.resident) * 32 * 16
        return 2 * sequences * self.width * 2 + stored


@lru_cache(maxsize=256)
def partition(hidden: int, cost: RecurrentCosts) -> CellPartition:
    """Return the partition of so many cells."""
    slices = -(-hidden // 32) * 2
    for cluster in cost.clusters:
        tiles = -(-hidden // (IN_TILE * cluster))
        if tiles * slices <= cost.fragments:
            break
    of_warp = -(-tiles // (2 * cost.most_warps)) * 2
    resident = min(slices, cost.most_resident // of_warp // 2 * 2)
    return CellPartition(cluster, -(-tiles // of_warp), of_warp, slices, resident)


def check(op: FusedOp) -> Layer:
    """Return the parsed body of `op`; raises `UnsupportedError` with the reason if no kernel supports it."""
    layer = parse_op(op)
    if _least_bytes(layer, costs_of()) > max(arch.shared_bytes for arch in SUPPORTED):
        raise UnsupportedError(f"{layer.hidden} cells do not fit the shared memory of eight blocks")
    return layer


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the body is preferred on this GPU."""
    cost = costs_of(arch)
    if arch.isa.cluster < cost.clusters[-1]:
        return f"the kernel needs {SM_90.name}, this is {arch.name}"
    needed = _least_bytes(parse_op(op), cost)
    if needed > arch.shared_bytes:
        return f"the weights of a block take {needed} bytes of shared memory, {arch.name} has {arch.shared_bytes}"
    return None


def _least_bytes(layer: Layer, cost: RecurrentCosts) -> int:
    """Return the shared memory of a block with the fewest sequences."""
    return partition(layer.hidden, cost).shared_bytes(cost.sequences[0])


@dataclass(frozen=True)
class Size:
    """Sizes derived from input shapes."""

    steps: int
    batch: int
    terms: int
    """Input elements per position."""


def _size(layer: Layer, input_shapes: tuple[Shape, ...]) -> Size:
    """Return the sizes of the inputs; raises if they do not match the layer."""
    x = input_shapes[layer.x]
    if len(x) != 3:
        raise UnsupportedError(f"an input of rank {len(x)}, expected 3")
    steps, batch, terms = x
    expected: dict[int, Shape] = {
        layer.w: (layer.ways, layer.rows, terms),
        layer.r: (layer.ways, layer.rows, layer.hidden),
    }
    if layer.bias is not None:
        expected[layer.bias] = (layer.ways, 2 * layer.rows)
    expected |= {i: (layer.ways, batch, layer.hidden) for i in layer.states if i is not None}
    for i, shape in expected.items():
        if tuple(input_shapes[i]) != shape:
            raise UnsupportedError(f"an input of shape {list(input_shapes[i])}, expected {list(shape)}")
    return Size(steps, batch, terms)


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output."""
    if len(input_shapes) != len(op.inputs):
        raise UnsupportedError(f"{plural(input_shapes, 'input shape')}, expected {len(op.inputs)}")
    layer = parse_op(op)
    size = _size(layer, input_shapes)
    state = (layer.ways, size.batch, layer.hidden)
    every = (size.steps, layer.ways, size.batch, layer.hidden)
    shapes = {o: every if n == 0 else state for n, o in enumerate(layer.outputs) if o is not None}
    return tuple(shapes[o] for o in range(len(op.outputs)))


def general(op: FusedOp, input_shapes: tuple[Shape, ...], arch: Arch) -> LaunchPlan:
    """Return the plan of `op` for inputs of any extents and alignment: the source depends on the layer alone."""
    return plan(op, input_shapes, False, arch)


def plan(
    op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, variant: Variant | None = None
) -> LaunchPlan:
    """Return the launch plan of `op` for inputs of these shapes."""
    outputs, layer = output_shapes(op, input_shapes), parse_op(op)
    size = _size(layer, input_shapes)
    scratch = larger(size.steps * size.batch * layer.ways * layer.rows * 4, 1)  # the kernels have its pointer
    launches = [_products(op, layer, size, aligned, arch)] if size.steps != 0 else []
    launches.append(_layer(op, layer, size, aligned, arch))
    return launch_plan.in_sequence((replace(p, scratch_bytes=scratch) for p in launches), outputs)


def _products(op: FusedOp, layer: Layer, size: Size, aligned: bool, arch: Arch) -> LaunchPlan:
    """Return the launch of the input's products with the weights of all directions, in float32."""
    columns = layer.ways * layer.rows
    # The scratch memory is passed after the outputs, as an additional one.
    whole = replace(op, outputs=(*op.outputs, int(TensorProto.FLOAT)))
    parts = Anatomy(
        (Product(layer.x, layer.w, transposed=True),),
        (Epilogue((0,), (), (len(op.outputs),), _as_float(layer.factors.left)),),
        layer.factors,
    )
    full = (size.steps, size.batch, columns)
    problem = GemmProblem(size.steps * size.batch, columns, size.terms, full)
    return sm80.plan(GemmSource(whole, parts, problem, (), (full,)), aligned, None, arch)


@lru_cache(maxsize=8)
def _as_float(dtype: int) -> BodyProgram:
    """Return the program that stores a product unrounded, in float32."""
    builder = Builder()
    cast = builder.apply(scalar.cast, builder.term(Input(0, dtype)), dtype=int(TensorProto.FLOAT))
    return BodyProgram(tuple(builder.values), (Output(cast.index, cast.dtype),), (dtype,))


def _layer(op: FusedOp, layer: Layer, size: Size, aligned: bool, arch: Arch) -> LaunchPlan:
    """Return the launch that iterates over the positions."""
    cost = costs_of(arch)
    shared = partition(layer.hidden, cost)

    def rounds(sequences: int) -> int:
        """Return the relative time: each further eight sequences take half as long as the first.

        An LSTM of 256 cells, both directions, 128 positions, with 8, 16 and 32 sequences a cluster: 101, 151 and 243 us
        (H200, 2026-11-24).
        """
        clusters = layer.ways * -(-size.batch // sequences)
        return -(-clusters * shared.cluster // arch.sm_count) * (1 + sequences // 8)

    most = cost.sequences[-1] if shared.resident == shared.slices else cost.most_sequences
    fitting = [n for n in cost.sequences if n <= most and shared.shared_bytes(n) <= arch.shared_bytes]
    sequences = least(fitting, rounds)
    if sequences is None:
        raise UnsupportedError(f"{layer.hidden} cells do not fit the shared memory of {arch.name}")
    facts = {
        "THREADS": shared.warps * 32, "CLUSTER": shared.cluster, "WARPS": shared.warps, "TILES": shared.tiles,
        "SLICES": shared.slices, "HELD": shared.resident, "WIDTH": shared.width, "ROWS": sequences,
        "SHARED_BYTES": shared.shared_bytes(sequences), "HIDDEN": layer.hidden, "GATES": layer.cell.gates,
        "WAYS": layer.ways, "REVERSE": layer.reverse, "PAIRED": aligned and layer.hidden % 2 == 0,
    }  # fmt: skip
    stored, entry, fields = layer.factors.stored, identifier(op.name), _pointers(layer)
    text = f"using Factor = {stored};\n" + constants(facts) + access.pointers(fields)
    kernel = KernelSource(
        entry,
        (
            *(template(f) for f in (DEVICE, CLUSTER, "include/math.cuh", "include/memory.cuh", *MMA_SYNC)),
            template("recurrent/cells.cuh"),
            generated(entry, f"{text}using Cell = {layer.operator.capitalize()};\n"),
            template("recurrent/recurrent.cu"),
            generated(entry, entry_point(entry, "recurrent", op, fields, 0, shared.cluster)),
        ),
    )
    clusters = layer.ways * -(-size.batch // sequences)
    grid, block = (clusters * shared.cluster, 1, 1), (shared.warps * 32, 1, 1)
    parameters = launch_plan.packed((size.steps, size.batch), 32)
    return LaunchPlan(kernel, grid, block, shared.shared_bytes(sequences), parameters, ())


def _pointers(layer: Layer) -> tuple[access.Pointer, ...]:
    """Return the fields of the kernel's `Pointers`; tensors absent from the layer are null."""
    stored = layer.factors.stored
    read = {"r": layer.r, "bias": layer.bias, **dict(zip(("h", "c"), (*layer.states, None), strict=False))}
    outputs = dict(zip(("y", "last_h", "last_c"), (*layer.outputs, None), strict=False))
    return (
        access.Pointer("const float", "products", "scratch"),
        *(access.Pointer(f"const {stored}", n, "nullptr" if i is None else f"in{i}") for n, i in read.items()),
        *(access.Pointer(stored, n, "nullptr" if i is None else f"out{i}") for n, i in outputs.items()),
    )
