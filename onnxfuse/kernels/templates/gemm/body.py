"""A body of the gemm template taken apart: its matrix products, and the pointwise rest that reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import onnx
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.kernels.emit import expressions
from onnxfuse.kernels.ir import pointwise_ops, types
from onnxfuse.kernels.ir import program as ir
from onnxfuse.kernels.ir.movement import Reshaped, Transposed
from onnxfuse.kernels.ir.program import Program
from onnxfuse.kernels.ir.strides import Shape
from onnxfuse.kernels.ir.types import UnsupportedError
from onnxfuse.kernels.templates.conv.window import Places, Sliding
from onnxfuse.kernels.templates.gemm.output_layout import Moves, stored
from onnxfuse.model.channels import FIRST, LAST
from onnxfuse.model.fused import FusedOp
from onnxfuse.model.schema import COMMUTATIVE

TYPES: dict[int, str] = {TensorProto.FLOAT16: "f16", TensorProto.BFLOAT16: "bf16", TensorProto.FLOAT: "tf32"}
"""Element types that the tensor cores multiply here, with their names in PTX. Of float32 they read TF32."""
STORED_BYTES = (2, 4)
"""Sizes of an output's elements that the copy engine writes."""
ROW_BYTES = 128


@dataclass(frozen=True)
class Product:
    """A matrix product of two inputs of the op."""

    a: int
    """Position of the left factor among the op's inputs; the number of them where the prologue computes it."""
    b: int
    """Position of the right one."""
    transposed: bool
    """Whether the right factor is [n, k]."""
    turned: bool = False
    """Whether the left one is [k, m]."""
    sliding: Sliding | None = None
    """Where the left factor is what a window sees: images [batch, height, width, channels], filters [n, height, width,
    channels]."""


@dataclass(frozen=True)
class Prologue:
    """What computes the left factor: the pointwise part of the body before the products, as an op of its own."""

    inputs: tuple[int, ...]
    """Positions of its inputs among the op's inputs."""
    program: Program
    kinds: tuple[str, ...] = ()
    """How each of them lies beside the left factor, as `operand_kind` says; empty where no shapes are known yet."""
    group: int = 0
    """Of those that hold a vector of terms for each group of rows: how many rows a group has."""
    in_place: int | None = None
    """The one of the op's inputs that is fetched to where the left factor will lie."""

    @property
    def cells(self) -> tuple[int, ...]:
        """The op's inputs of the left factor's shape that it reads, the one in place first."""
        live = expressions.live_inputs(self.program)
        cells = (self.inputs[i] for i in live if self.kinds[i] == "cell")
        return tuple(sorted(cells, key=lambda i: i != self.in_place))

    @property
    def cell_types(self) -> tuple[int, ...]:
        """Their element types."""
        return tuple(self.program.inputs[self.inputs.index(i)] for i in self.cells)

    @property
    def bytes_beside(self) -> int:
        """The bytes of theirs for an element of the left factor that do not lie in its place."""
        read = zip(self.cells, self.cell_types, strict=True)
        return sum(types.TYPES[t].size for i, t in read if i != self.in_place)

    def shape(self, input_shapes: tuple[Shape, ...]) -> Shape:
        """Return the shape of the left factor for these shapes of the op's inputs."""
        shapes = self.program.shapes(tuple(input_shapes[i] for i in self.inputs))
        return shapes[self.program.outputs[0].value]


@dataclass(frozen=True)
class Lane:
    """What is computed from some of the products: the pointwise rest of the body, as an op of its own."""

    products: tuple[int, ...]
    """Numbers of the products that it reads; they are its first inputs."""
    operands: tuple[int, ...]
    """Positions of its other inputs among the op's inputs."""
    outputs: tuple[int, ...]
    """Positions of its outputs among the op's outputs."""
    program: Program
    moves: Moves = ()
    """How its only output is reshaped and transposed as it is written."""


@dataclass(frozen=True)
class Anatomy:
    """A body taken apart: its products, which share the left factor, and what is made of them."""

    products: tuple[Product, ...]
    lanes: tuple[Lane, ...]
    """One that reads every product, or one for each product: equal but for their operands."""
    dtype: int
    """Element type of the factors."""
    prologue: Prologue | None = None
    """What computes the left factor where it is no input of the op."""

    @property
    def to_tf32(self) -> bool:
        """Whether the factors are rounded on their way to the tensor cores."""
        return self.dtype == TensorProto.FLOAT

    @property
    def terms(self) -> int:
        """Terms in a row of a factor's tile, which is what the copy engine swizzles."""
        return ROW_BYTES // types.TYPES[self.dtype].size


def anatomy(op: FusedOp) -> Anatomy:
    """Return the body of `op` taken apart; raises `UnsupportedError` with the reason where no kernel fits it."""
    return _anatomy(op.inputs, op.outputs, op.body.SerializeToString(deterministic=True))


@lru_cache(maxsize=1024)
def _anatomy(inputs: tuple[int, ...], outputs: tuple[int, ...], text: bytes) -> Anatomy:
    function = _spelled_out(FunctionProto.FromString(text), inputs)
    heads = _heads(function)
    products = tuple(h.product for h in heads)
    if not products:
        raise UnsupportedError("no matrix product in the body")
    if len({p.a for p in products}) > 1:
        raise UnsupportedError("products with different left factors")
    if len({p.transposed for p in products}) > 1:
        raise UnsupportedError("products with right factors of both layouts")
    if len({p.turned for p in products}) > 1:
        raise UnsupportedError("products with left factors of both layouts")
    if len({p.sliding for p in products}) > 1:
        raise UnsupportedError("convolutions whose windows slide in different ways")
    prologue = _prologue(function, heads, inputs)
    factors = inputs if prologue is None else (*inputs, prologue.program.outputs[0].dtype)
    kinds = {factors[i] for p in products for i in (p.a, p.b)}
    if len(kinds) > 1 or not kinds <= set(TYPES):
        raise UnsupportedError(f"products of {' and '.join(sorted(types.name(t) for t in kinds))}")
    for dtype in outputs:
        if types.TYPES[dtype].size not in STORED_BYTES or dtype == TensorProto.BOOL:
            raise UnsupportedError(f"a product's output of type {types.name(dtype)}")
    lanes = _lanes(function, heads, factors, outputs)
    if len({(expressions.source(lane.program), lane.program.inputs) for lane in lanes}) > 1:
        raise UnsupportedError("products side by side with different bodies")
    return Anatomy(products, lanes, next(iter(kinds)), prologue)


@dataclass(frozen=True)
class _Head:
    """The nodes of the body that are one product."""

    product: Product
    output: str
    nodes: tuple[NodeProto, ...]
    before: tuple[NodeProto, ...] = ()
    """Those that compute its left factor."""


def _heads(function: FunctionProto) -> tuple[_Head, ...]:
    names = list(function.input)
    producers = {o: n for n in function.node for o in n.output if o}
    heads = []
    for node in function.node:
        match node.op_type if node.domain == "" else "":
            case "MatMul" | "Gemm":
                heads.append(_product(function, node, names, producers))
            case "Conv":
                heads.append(_convolution(node, function, producers))
    return tuple(heads)


def _product(function: FunctionProto, node: NodeProto, names: list[str], producers: dict[str, NodeProto]) -> _Head:
    facts = _facts(node)
    b, turn = node.input[1], producers.get(node.input[1])
    if turn is not None and turn.op_type == "Transpose" and tuple(_facts(turn).get("perm", ())) == (1, 0):
        b = turn.input[0]
    else:
        turn = None
    left = node.input[0]
    if b not in names:
        raise UnsupportedError(f"{node.op_type} whose right factor is computed in the body")
    turned = bool(facts.get("transA", 0))
    if left not in names and turned:
        raise UnsupportedError("a left factor [k, m] that is computed in the body")
    transposed = bool(facts.get("transB", 0)) != (turn is not None)
    product = Product(names.index(left) if left in names else len(names), names.index(b), transposed, turned)
    needed = _ancestors(function, left)
    before = tuple(n for n in function.node if needed & set(n.output))
    return _Head(product, node.output[0], (node,) if turn is None else (turn, node), before)


def _prologue(function: FunctionProto, heads: Sequence[_Head], inputs: tuple[int, ...]) -> Prologue | None:
    """Return what computes the left factor that the products share, None where it is an input of the op."""
    nodes = heads[0].before
    if not nodes:
        return None
    product = heads[0].nodes[-1]
    if any(h.nodes[-1].input[0] != product.input[0] for h in heads):
        raise UnsupportedError("products with different left factors")
    read = {i for n in nodes for i in n.input}
    positions = tuple(i for i, name in enumerate(function.input) if name in read)
    before = FunctionProto(domain=function.domain, name=function.name, node=nodes, output=[product.input[0]])
    before.input.extend(function.input[i] for i in positions)
    before.opset_import.extend(function.opset_import)
    made = FusedOp(
        "prologue", "", "pointwise", tuple(inputs[i] for i in positions), (inputs[heads[0].product.b],), before,
    )  # fmt: skip
    program = ir.program(made, pointwise_ops.HANDLERS)
    if program.reductions() or program.moves():
        raise UnsupportedError("a reduction, or moved data, before a matrix product")
    return Prologue(positions, program)


def _spelled_out(function: FunctionProto, inputs: tuple[int, ...]) -> FunctionProto:
    """Return the body with each Gemm as its product and, in float32, what its alpha, beta and bias make of it."""
    nodes = list(function.node)
    del function.node[:]
    for node in nodes:
        facts = _facts(node)
        alpha, beta = float(facts.get("alpha", 1.0)), float(facts.get("beta", 1.0))
        bias = node.input[2] if len(node.input) > 2 else ""
        if node.op_type != "Gemm" or node.domain or (alpha == 1.0 and not bias):
            function.node.append(node)
            continue
        turned = (n.input[0] for n in nodes if n.op_type == "Transpose" and n.output[0] == node.input[1])
        given = next((i for i in (*node.input[:2], *turned) if i in function.input), None)
        if given is None:
            raise UnsupportedError("Gemm whose factors are both computed in the body")
        stem, dtype = node.output[0], inputs[list(function.input).index(given)]
        made = [NodeProto.FromString(node.SerializeToString())]
        made[0].input[:], made[0].output[:] = node.input[:2], [f"{stem}.product"]
        value = _scaled(made, f"{stem}.product", alpha, f"{stem}.alpha")
        if bias and beta != 0.0:
            added = _scaled(made, bias, beta, f"{stem}.beta")
            made.append(helper.make_node("Add", [value, added], [f"{stem}.sum"]))
            value = f"{stem}.sum"
        made.append(helper.make_node("Cast", [value], [stem], to=dtype))
        function.node.extend(made)
    return function


def _scaled(nodes: list[NodeProto], value: str, factor: float, stem: str) -> str:
    """Append what gives `value` times `factor` in float32, and return its name."""
    nodes.append(helper.make_node("Cast", [value], [f"{stem}.wide"], to=TensorProto.FLOAT))
    if factor == 1.0:
        return f"{stem}.wide"
    nodes.append(helper.make_node("Constant", [], [stem], value_float=factor))
    nodes.append(helper.make_node("Mul", [f"{stem}.wide", stem], [f"{stem}.scaled"]))
    return f"{stem}.scaled"


def _convolution(node: NodeProto, function: FunctionProto, producers: dict[str, NodeProto]) -> _Head:
    """Return a convolution between transposes, which so runs over images with their channels last."""
    facts, names = _facts(node), list(function.input)
    before = [producers.get(i) for i in node.input]
    after = [n for n in function.node if node.output[0] in n.input]
    around = [*before, *after]
    if len(before) != 2 or len(after) != 1 or node.output[0] in function.output:
        raise UnsupportedError("a convolution with a bias, or of images that do not have their channels last")
    perms = [tuple(_facts(n).get("perm", ())) if n is not None and n.op_type == "Transpose" else () for n in around]
    if perms != [FIRST, FIRST, LAST] or any(n is None or n.input[0] not in names for n in before):
        raise UnsupportedError("a convolution of images that do not have their channels last")
    if facts.get("group", 1) != 1:
        raise UnsupportedError(f"a convolution in {facts['group']} groups")
    auto_pad = facts.get("auto_pad", b"NOTSET").decode()
    strides, dilations = tuple(facts.get("strides", (1, 1))), tuple(facts.get("dilations", (1, 1)))
    pads = tuple(facts.get("pads", (0, 0, 0, 0)))
    if [len(strides), len(dilations), len(pads)] != [2, 2, 4]:
        raise UnsupportedError("a convolution of images that are not two-dimensional")
    sliding = Sliding(strides, dilations, pads, auto_pad)
    nodes = tuple(n for n in (*before, node, *after) if n is not None)
    a, b = (names.index(n.input[0]) for n in nodes[:2])
    return _Head(Product(a, b, True, sliding=sliding), after[0].output[0], nodes)


def _facts(node: NodeProto) -> dict[str, Any]:
    return {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}


def _lanes(
    function: FunctionProto, heads: Sequence[_Head], inputs: tuple[int, ...], outputs: tuple[int, ...]
) -> tuple[Lane, ...]:
    """Return what is computed from the products: apart where each output reads one, together where it reads several."""
    needed = [_ancestors(function, name) for name in function.output]
    read = [tuple(k for k, h in enumerate(heads) if h.output in names) for names in needed]
    if any(not r for r in read):
        raise UnsupportedError("an output that reads no product")
    together = any(len(r) > 1 for r in read)
    groups = [tuple(range(len(heads)))] if together else [(k,) for k in range(len(heads))]
    lanes = []
    for group in groups:
        mine = tuple(i for i, r in enumerate(read) if set(r) <= set(group))
        if not mine:
            raise UnsupportedError("a product that no output reads")
        lanes.append(_lane(function, heads, group, mine, inputs, outputs))
    return tuple(lanes)


def _ancestors(function: FunctionProto, output: str) -> set[str]:
    producers = {o: n for n in function.node for o in n.output if o}
    seen: set[str] = set()
    waiting = [output]
    while waiting:
        name = waiting.pop()
        if name and name not in seen:
            seen.add(name)
            waiting.extend(producers[name].input if name in producers else ())
    return seen


def _lane(
    function: FunctionProto,
    heads: Sequence[_Head],
    group: tuple[int, ...],
    mine: tuple[int, ...],
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
) -> Lane:
    written = [_written(function, heads, function.output[i]) for i in mine]
    if len(mine) > 1 and any(moves for _, moves in written):
        raise UnsupportedError("several outputs of a product, one of them transposed")
    names = set().union(*(_ancestors(function, name) for name, _ in written))
    rest = FunctionProto(domain=function.domain, name=function.name)
    before = [n for h in heads for n in (*h.nodes, *(b for b in h.before if b.op_type != "Constant"))]
    rest.node.extend(n for n in function.node if n not in before and names & set(n.output))
    read = {i for n in rest.node for i in n.input} | {name for name, _ in written}
    if read & {o for n in before for o in n.output} - {h.output for h in heads}:
        raise UnsupportedError("a value before a matrix product that is read after it, too")
    operands = tuple(i for i, name in enumerate(function.input) if name in read)
    for node in rest.node:
        if node.op_type in COMMUTATIVE and len(node.input) == 2:
            # Add(b, m) -> Add(m, b): bodies that differ in the order alone are one body.
            node.input[:] = sorted(node.input, key=lambda name: name in function.input)
    rest.input.extend(heads[k].output for k in group)
    rest.input.extend(function.input[i] for i in operands)
    rest.output.extend(name for name, _ in written)
    rest.opset_import.extend(function.opset_import)
    product_type = inputs[heads[0].product.a]
    made = FusedOp(
        "lane", "", "pointwise", (*(product_type for _ in group), *(inputs[i] for i in operands)),
        tuple(outputs[i] for i in mine), rest,
    )  # fmt: skip
    program = ir.program(made, pointwise_ops.HANDLERS)
    if program.reductions():
        raise UnsupportedError("a reduction after a matrix product")
    return Lane(group, operands, mine, program, written[0][1])


def _written(function: FunctionProto, heads: Sequence[_Head], output: str) -> tuple[str, Moves]:
    """Return the value that the kernel computes for an output, and how it is reshaped and transposed after that."""
    products = [n for h in heads for n in h.nodes]
    producers = {o: n for n in function.node if n not in products for o in n.output if o}
    moves: list[Reshaped | Transposed] = []
    while (node := producers.get(output)) is not None and node.op_type in ("Reshape", "Transpose") and not node.domain:
        moves.insert(0, _move(node, producers))
        output = node.input[0]
    return output, tuple(moves)


def _move(node: NodeProto, producers: dict[str, NodeProto]) -> Reshaped | Transposed:
    facts = _facts(node)
    if node.op_type == "Transpose":
        return Transposed(tuple(facts["perm"]) if "perm" in facts else None)
    target = producers.get(node.input[1]) if len(node.input) > 1 else None
    if target is None or target.op_type != "Constant" or target.attribute[0].name != "value":
        raise UnsupportedError("a Reshape after a matrix product whose target is not a constant of the body")
    numbers = numpy_helper.to_array(onnx.helper.get_attribute_value(target.attribute[0]))
    return Reshaped(tuple(int(n) for n in numbers.reshape(-1)), not facts.get("allowzero", 0))


# ---- shapes


Three = tuple[int, int, int]


@dataclass(frozen=True)
class Batch:
    """Products side by side, each of matrices of its own. Dimensions are outer, middle, inner."""

    extents: Three
    a: Three
    """Left matrices from one to the next along each dimension; 0 where all have the same."""
    b: Three

    @property
    def count(self) -> int:
        """How many products there are."""
        return math.prod(self.extents)


@dataclass(frozen=True)
class Problem:
    """The size of the products: [m, k] by [k, n]."""

    m: int
    n: int
    k: int
    full: Shape
    """Shape of the outputs: m is all of it but the last dimension."""
    places: Places | None = None
    """Of a convolution: a row for each place, k = height * width * channels of the window."""
    batch: Batch | None = None
    """Of products of several right matrices; then m is the rows of each."""


def problem(parts: Anatomy, input_shapes: tuple[Shape, ...]) -> Problem:
    """Return the size of the products for these shapes of the op's inputs."""
    if parts.prologue is not None:
        input_shapes = (*input_shapes, parts.prologue.shape(input_shapes))
    sizes = {_problem(product, input_shapes[product.a], input_shapes[product.b]) for product in parts.products}
    if len(sizes) > 1:
        columns = ", ".join(map(str, sorted(s.n for s in sizes)))
        raise UnsupportedError(f"products side by side of {columns} columns")
    return sizes.pop()


def _problem(product: Product, a: Shape, b: Shape) -> Problem:
    if product.sliding is not None:
        return _slid(product.sliding, a, b)
    if len(a) < 2 or len(b) < 2:
        raise UnsupportedError(f"a product of ranks {len(a)} and {len(b)}, expected 2 or more")
    k, n = b[:-3:-1] if product.transposed else b[-2:]
    if product.turned:
        a = (*a[:-2], a[-1], a[-2])
    if k != a[-1]:
        raise UnsupportedError(f"a product of {a[-1]} columns and {k} rows")
    if math.prod(b[:-2]) == 1 and len(b) <= len(a):
        return Problem(math.prod(a[:-1]), n, k, (*a[:-1], n))
    around = _broadcast(a[:-2], b[:-2])
    return Problem(a[-2], n, k, (*around, a[-2], n), batch=_batch(around, a[:-2], b[:-2]))


def _broadcast(a: Shape, b: Shape) -> Shape:
    rank = max(len(a), len(b))
    pairs = list(zip((1,) * (rank - len(a)) + a, (1,) * (rank - len(b)) + b, strict=True))
    if any(x != y and 1 not in (x, y) for x, y in pairs):
        raise UnsupportedError(f"batches of {list(a)} and {list(b)} products")
    return tuple(y if x == 1 else x for x, y in pairs)


def _batch(around: Shape, a: Shape, b: Shape) -> Batch:
    """Return the batch with as few dimensions as it has different ways to go on; three at most."""
    merged: list[tuple[int, int, int]] = []
    ways = [_matrices(around, shape) for shape in (a, b)]
    for extent, step_a, step_b in zip(around, *ways, strict=True):
        if extent == 1:
            continue
        if merged and merged[-1][1:] == (step_a * extent, step_b * extent):
            merged[-1] = (merged[-1][0] * extent, step_a, step_b)
        else:
            merged.append((extent, step_a, step_b))
    if len(merged) > 3:
        raise UnsupportedError(f"batches of {list(a)} and {list(b)} products, broadcast in more than three ways")
    padded = [(1, 0, 0)] * (3 - len(merged)) + merged
    extents, steps_a, steps_b = zip(*padded, strict=True)
    return Batch(extents, steps_a, steps_b)


def _matrices(around: Shape, shape: Shape) -> list[int]:
    """Return how many matrices of a batch of this shape lie between neighbours along each dimension of `around`."""
    padded = (1,) * (len(around) - len(shape)) + shape
    return [0 if d == 1 else math.prod(padded[i + 1 :]) for i, d in enumerate(padded)]


def _slid(sliding: Sliding, a: Shape, b: Shape) -> Problem:
    if len(a) != 4 or len(b) != 4 or a[3] != b[3]:
        raise UnsupportedError(f"a convolution of images {list(a)} with filters {list(b)}")
    batch, height, width, channels = a
    places = sliding.over((batch, height, width, channels), (b[1], b[2]))
    full = (batch, *places.out, b[0])
    return Problem(math.prod(full[:3]), b[0], math.prod(b[1:]), full, places)


def placed(parts: Anatomy, op: FusedOp, input_shapes: tuple[Shape, ...]) -> Anatomy:
    """Return the body with what these shapes tell of its prologue."""
    if parts.prologue is None:
        return parts
    prologue = parts.prologue
    shape = prologue.shape(input_shapes)
    # Of one row a matrix is a vector, too; what has the factor's shape is fetched ahead.
    given = (input_shapes[i] for i in prologue.inputs)
    kinds = tuple("cell" if s == shape else operand_kind(s, shape) or _group(s, shape) for s in given)
    groups = {math.prod(shape[first:-1]) for first in kinds if isinstance(first, int)}
    if len(groups) > 1:
        raise UnsupportedError(f"vectors of terms for groups of {' and '.join(map(str, sorted(groups)))} rows")
    named = tuple("group" if isinstance(kind, int) else kind for kind in kinds)
    prologue = replace(prologue, kinds=named, group=next(iter(groups), 0))
    if not prologue.cells:
        raise UnsupportedError("a left factor that is computed from vectors alone")
    size = types.TYPES[parts.dtype].size
    in_place = next((i for i in prologue.cells if types.TYPES[op.inputs[i]].size == size), None)
    return replace(parts, prologue=replace(prologue, in_place=in_place))


def _group(shape: Shape, full: Shape) -> int:
    """Return the first dimension of the groups of rows for each of which `shape` has a vector of terms."""
    first = group_kind(shape, full)
    if first is None:
        raise UnsupportedError(f"an operand of shape {list(shape)} before a product of {list(full)}")
    return first


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each output of `op` for these shapes of its inputs."""
    parts = anatomy(op)
    size = problem(parts, input_shapes)
    for lane in parts.lanes:
        shapes = lane.program.shapes((*(size.full for _ in lane.products), *(input_shapes[i] for i in lane.operands)))
        if any(shapes[o.value] != size.full for o in lane.program.outputs):
            raise UnsupportedError("an output of another shape than its product")
    moved = {o: stored(size.full, lane.moves).shape for lane in parts.lanes if lane.moves for o in lane.outputs}
    return tuple(moved.get(o, size.full) for o in range(len(op.outputs)))


def kind_of(shape: Shape, full: Shape) -> str:
    """Return how an operand lies beside a matrix of shape `full`; raises where the kernels do not read it so."""
    kind = operand_kind(shape, full)
    if kind is None:
        raise UnsupportedError(f"an operand of shape {list(shape)} beside a product of shape {list(full)}")
    return kind


def operand_kind(shape: Sequence[object], full: Sequence[object]) -> str | None:
    """Return how an operand lies in the output: `cell`, `column`, `row` or `uniform`; None for any other way.

    Dimensions may be numbers, names (a name means one number everywhere), or None where nothing is known.
    """
    if len(shape) > len(full):
        return None
    padded = (1,) * (len(full) - len(shape)) + tuple(shape)
    if all(d == 1 for d in padded):
        return "uniform"
    if all(d == 1 for d in padded[:-1]) and padded[-1] == full[-1]:
        return "column"
    if None in padded:
        return None
    if padded == tuple(full):
        return "cell"
    if padded == (*full[:-1], 1):
        return "row"
    return None


def group_kind(shape: Sequence[object], full: Sequence[object]) -> int | None:
    """Return from which dimension on `shape` has ones beside `full`, up to the last, in which they agree; else None.

    A gate [batch, 1, 1, channels] beside images [batch, height, width, channels]: 1. Dimensions as for `operand_kind`.
    """
    if len(shape) != len(full) or len(shape) < 3 or shape[-1] != full[-1] or None in shape:
        return None
    first = next((i for i, (d, f) in enumerate(zip(shape, full, strict=True)) if d != f), len(full) - 1)
    return first if first > 0 and all(d == 1 for d in shape[first:-1]) else None
