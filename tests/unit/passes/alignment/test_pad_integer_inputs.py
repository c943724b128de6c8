"""Whole numbers that are padded by computed amounts are put beside the padding; other Pads stay."""

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.passes.alignment.pad_integer_inputs import pad_integer_inputs
from onnxfuse.shapes.inference import infer
from tests.support.small import parse

LENGTH = "size = Shape (x) length = Gather (size, p1) left = Mod (length, w) "
TO_EIGHT = f"{LENGTH} gap = Sub (w, left) more = Mod (gap, w) some = Unsqueeze (more, zero) "
NUMBERS = """<int64 p1 = {1}, int64 w = {8}, int64[1] zero = {0}, int64[1] one = {1}, int64[2] two = {0, 0},
  int64[2] pairs = {-1, 2}, int64[1] flat = {-1}, int64[1] last = {-1}, int64[1] first = {-9223372036854775807},
  int64 fill = {5}, int64[1] minus = {-1}>"""
TURNED = """pair = Concat <axis = 0> (zero, some) all = Concat <axis = 0> (pair, two) rows = Reshape (all, pairs)
  back = Slice (rows, last, first, zero, minus) columns = Transpose <perm = [1, 0]> (back)
  amounts = Reshape (columns, flat) """
"""From the last axis on, each with what is put before and behind it, as torch has it."""
BOTH = "amounts = Concat <axis = 0> (one, some, zero, some) "
PAD = "y = Pad (x, amounts, fill)"


def rewritten(nodes: str, kind: str = "int64", opset: int = 17) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """Return the model of these nodes, and what the step makes of it."""
    model = parse(f"g ({kind}[N, L] x) => ({kind}[P, Q] y) {NUMBERS} {{ {nodes} }}", opset)
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = Graph(made.graph, infer(made).graph, opset)
    changed = pad_integer_inputs(graph)
    graph.commit()
    assert changed == (made.graph.node != model.graph.node)
    return model, made


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("amounts", [TURNED, BOTH])
def test_they_are_put_beside_the_padding(amounts: str, opset: int) -> None:
    """Behind the last axis, or before and behind both: the same numbers, of any length."""
    nodes = TO_EIGHT.replace("Unsqueeze (more, zero)", "Reshape (more, one)") if opset < 13 else TO_EIGHT
    model, made = rewritten(f"{nodes} {amounts} {PAD}", opset=opset)
    assert "Pad" not in {n.op_type for n in made.graph.node}
    onnx.checker.check_model(made, full_check=True)
    sessions = [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]) for m in (model, made)
    ]
    for shape in ((2, 5), (1, 8), (3, 1), (2, 0)):
        given = {"x": np.arange(np.prod(shape)).reshape(shape)}
        theirs, ours = (s.run(None, given)[0] for s in sessions)
        assert np.array_equal(theirs, ours)


@pytest.mark.parametrize(
    ("nodes", "kind"),
    [
        (f"{TO_EIGHT} {TURNED} {PAD.replace(', fill', '')}", "float"),
        (f"{LENGTH} gap = Sub (w, left) some = Unsqueeze (gap, zero) {TURNED} {PAD}", "int64"),
        (f"amounts = Concat <axis = 0> (zero, zero, zero, one) {PAD}", "int64"),
        (f"{TO_EIGHT} {TURNED} y = Pad <mode = \"edge\"> (x, amounts)", "int64"),
        (f"{TO_EIGHT} amounts = Concat <axis = 0> (minus, zero, zero, some) {PAD}", "int64"),
        (f"{LENGTH} gap = Sub (w, left) more = Mod (gap, p1) some = Unsqueeze (more, zero) n = Neg (w) "
         f"less = Mod (gap, n) few = Unsqueeze (less, zero) amounts = Concat <axis = 0> (zero, few, zero, some) {PAD}",
         "int64"),
        (f"{TO_EIGHT} {TURNED.replace('perm = [1, 0]', 'perm = [0, 1, 2]')} {PAD}", "int64"),
    ],
    ids=["floats have a kernel", "a difference may cut", "numbers alone", "another mode", "cuts", "a computed divisor",
         "no model"],
)  # fmt: skip
def test_other_pads_stay(nodes: str, kind: str) -> None:
    model, made = rewritten(nodes, kind)
    assert made.graph.node == model.graph.node
