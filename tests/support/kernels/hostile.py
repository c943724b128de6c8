"""Fused bodies as no tool of ours writes them: numbers, types, names, nodes and shapes changed at random.

`python -m tests.support.kernels.hostile --cases 5000 --seed 1` judges as many and counts what became of them.
"""

import argparse
import random
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace

import onnx
from onnx import AttributeProto, NodeProto, TensorProto, helper

from bench.cases import attentions, images, moved, ops, products, rows
from bench.cases.ops import FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.files import io
from onnxfuse.model.fused import FusedOp, fused_ops, write
from onnxfuse.support.errors import OnnxfuseError
from tests.support.arches import on
from tests.support.kernels import joined, resized

ARCHS = (Arch("sm_90a", 132), Arch("sm_80", 108), Arch("sm_120a", 170))
NUMBERS = (0, -1, 1, 2, 3, 7, 64, 65, -64, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
REALS = (0.0, -1.0, 1e-38, 3e38, float("inf"), float("-inf"), float("nan"))
EXTENTS = (0, 1, 2, 3, 5, 8, 17, 64, 1000, 2**31, 2**40)
SECONDS = 5
"""That one body may take on a busy machine: the slowest of the corpus, unchanged, takes a tenth."""

Case = tuple[FusedOp, list[tuple[int, ...]]]


def corpus() -> list[Case]:
    """Return bodies of every template with shapes that they have plans for."""
    found: list[Case] = [(op, list(shapes)) for op, shapes in moved.small(HALF).values()]
    found += [products.table(name, HALF) for name in products.TABLE]
    found += [products.prologue(name, HALF, 64, 64, 64) for name in products.PROLOGUES]
    found += [products.window(HALF, (2, 9, 9, 16), 16, (3, 3), "strides = [2, 2], pads = [1, 1, 1, 1]")]
    for family in rows.TEMPLATES.values():
        found.append((family.op(FLOAT), list(family.small)))
    for last in (True, False):
        case = images.Case(images.SILU, HALF, last, 2, 8, (9, 7), (3, 3), (2, 1), (1, 1), (1, 1, 1, 1))
        found.append((case.op(), case.shapes()))
    for centre in ("half_pixel", "align_corners"):
        one = resized.Resize(HALF, centre, (2.0, 1.5), (5, 7), 8)
        found.append((one.op(), list(one.shapes())))
    pool = """(x, b) => (y) { i = Transpose <perm = [0,3,1,2]> (x)
      p = MaxPool <kernel_shape = [3, 3], strides = [2, 2], pads = [1, 1, 1, 1], ceil_mode = 1> (i)
      t = Transpose <perm = [0,2,3,1]> (p) a = Add(t, b) y = Relu(a) }"""
    found.append((ops.op(pool, (HALF,) * 2, (HALF,), "depthwise"), [(2, 9, 9, 8), (8,)]))
    op, shapes = joined.case(HALF)
    found.append((op, list(shapes)))
    attention = attentions.Case(2, 3, 5, 7, 32)
    found.append((attention.op(), list(attention.shapes())))
    return found


def mutant(case: Case, draw: random.Random) -> Case:
    """Return the case with one to three things changed."""
    op, shapes = case
    body = onnx.FunctionProto()
    body.CopyFrom(op.body)
    made, extents = replace(op, body=body), [list(s) for s in shapes]
    for _ in range(draw.choice((1, 1, 2, 3))):
        choice = draw.random()
        if choice < 0.45:
            _change_attribute(draw.choice(body.node), draw)
        elif choice < 0.8:
            _change_shape(extents, draw)
        else:
            made = _change_structure(made, draw)
    return made, [tuple(s) for s in extents]


ATTRIBUTES = ("axis", "axes", "group", "dilations", "strides", "pads", "to", "num_outputs", "alpha", "perm")
TEMPLATES = ("pointwise", "row", "gemm", "depthwise", "direct", "concat", "attention")


def _change_attribute(node: NodeProto, draw: random.Random) -> None:
    if not node.attribute or draw.random() < 0.1:
        name = draw.choice(
            ("axis", "axes", "group", "dilations", "strides", "pads", "to", "num_outputs", "alpha", "perm")
        )
        del node.attribute[:]
        node.attribute.append(helper.make_attribute(name, draw.choice((draw.choice(NUMBERS), [1, 0], 0.5, "text"))))
        return
    attribute = draw.choice(node.attribute)
    match attribute.type:
        case AttributeProto.INT if draw.random() < 0.9:
            attribute.i = draw.choice(NUMBERS)
        case AttributeProto.FLOAT if draw.random() < 0.9:
            attribute.f = draw.choice(REALS)
        case AttributeProto.STRING if draw.random() < 0.9:
            attribute.s = draw.choice((b"", b"SAME_UPPER", b"linear", b"\xff\xfe", b'") { } //', b"tanh"))
        case AttributeProto.INTS if draw.random() < 0.9:
            numbers = list(attribute.ints)
            how = draw.randint(0, 3)
            if how == 0 and numbers:
                numbers[draw.randrange(len(numbers))] = draw.choice(NUMBERS)
            elif how == 1:
                numbers.append(draw.choice(NUMBERS))
            elif how == 2 and numbers:
                numbers.pop()
            else:
                numbers = []
            del attribute.ints[:]
            attribute.ints.extend(numbers)
        case AttributeProto.TENSOR:
            _change_tensor(attribute.t, draw)
        case _:
            name = attribute.name
            attribute.Clear()
            attribute.CopyFrom(helper.make_attribute(name, draw.choice((3, 0.5, "text", [1, 2], [0.5]))))


def _change_tensor(tensor: TensorProto, draw: random.Random) -> None:
    how = draw.randint(0, 4)
    if how == 0:
        tensor.data_type = draw.choice((0, 1, 6, 7, 8, 9, 10, 11, 16, 17, 99))
    elif how == 1:
        tensor.dims.append(draw.choice((0, -1, 3, 2**40)))
    elif how == 2:
        tensor.raw_data = b"\xff" * draw.choice((0, 3, 8, 64))
    elif how == 3:
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="/etc/passwd")
    else:
        array = draw.choice((REALS, NUMBERS))
        kind = TensorProto.FLOAT if array is REALS else TensorProto.INT64
        count = draw.randint(0, 4)
        tensor.CopyFrom(helper.make_tensor("", kind, [count], [draw.choice(array) for _ in range(count)]))


def _change_shape(extents: list[list[int]], draw: random.Random) -> None:
    shape = draw.choice(extents)
    how = draw.randint(0, 3)
    if how < 2 and shape:
        shape[draw.randrange(len(shape))] = draw.choice(EXTENTS)
    elif how == 2:
        shape.insert(draw.randint(0, len(shape)), draw.choice(EXTENTS))
    elif shape:
        shape.pop(draw.randrange(len(shape)))


OPERATORS = (
    "Add", "Mul", "Neg", "Softmax", "Transpose", "Reshape", "Concat", "Split", "MatMul", "Conv", "MaxPool", "Resize",
    "LayerNormalization", "ReduceMean", "Gather", "Slice", "Pad", "Cast", "Upsample", "NoSuchOp", "If",
)  # fmt: skip


def _change_structure(op: FusedOp, draw: random.Random) -> FusedOp:
    body = op.body
    node = draw.choice(body.node)
    names = [*body.input, *(o for n in body.node for o in n.output), "", "nobody"]
    match draw.randint(0, 9):
        case 0:
            node.op_type = draw.choice(OPERATORS)
        case 1 if node.input:
            node.input[draw.randrange(len(node.input))] = draw.choice(names)
        case 2:
            node.input.append(draw.choice(names))
        case 3 if node.input:
            node.input.pop()
        case 4:
            node.output.append(draw.choice((*names, "fresh")))
        case 5:
            body.node.remove(node)
            if not body.node:
                body.node.add(op_type="Identity", input=body.input[:1], output=body.output[:1])
        case 6:
            body.opset_import[0].version = draw.choice((0, 1, 6, 7, 9, 13, 17, 24, 99, -1))
        case 7:
            return replace(op, inputs=(draw.choice((1, 7, 8, 9, 10, 14, 16)), *op.inputs[1:]))
        case 8:
            return replace(
                op, template=draw.choice(("pointwise", "row", "gemm", "depthwise", "direct", "concat", "attention"))
            )
        case _:
            node.domain = draw.choice(("com.microsoft", "nowhere", "ai.onnx", "onnxfuse"))
    return op


def judge(case: Case) -> str:
    """Return what became of it: `planned`, `refused`, `invalid`, or a class of failure that begins with `!`."""
    op, shapes = case
    began = time.perf_counter()
    try:
        model = helper.make_model(helper.make_graph([], "g", [], []), functions=[write(op)])
        (read,) = fused_ops(io.parse(model.SerializeToString(), "a file")).values()
        refused = 0
        for arch in ARCHS:
            try:
                cuda.inplace(read) if cuda.supports(read, on(arch)) is None else None
                cuda.plan(read, tuple(shapes), True, arch)
                cuda.plan(read, tuple(shapes), False, arch)
            except OnnxfuseError:
                refused += 1
        word = "planned" if refused < len(ARCHS) else "refused"
    except OnnxfuseError:
        word = "invalid"
    except Exception as error:  # the class of a failure is what is counted
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"!{type(error).__name__} in {place.filename.rsplit('/', 1)[-1]}:{place.name}"
    return word if time.perf_counter() - began < SECONDS else "!slow"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="judge this one alone, and let its error through")
    arguments = parser.parse_args()
    cases, counts = corpus(), Counter[str]()
    for number in range(arguments.cases) if arguments.only is None else [arguments.only]:
        draw = random.Random(f"{arguments.seed} {number}")
        print(number, end="\r", file=sys.stderr, flush=True)  # a crash leaves its number
        case = mutant(draw.choice(cases), draw)
        if arguments.only is not None:
            print(onnx.printer.to_text(case[0].body), case[0].template, case[0].inputs, case[1])
        word = judge(case)
        counts[word] += 1
        if word.startswith("!"):
            print(f"seed {arguments.seed} case {number}: {word}")
    print(", ".join(f"{n} {word}" for word, n in counts.most_common()))
    return int(any(word.startswith("!") for word in counts))


if __name__ == "__main__":
    sys.exit(main())
