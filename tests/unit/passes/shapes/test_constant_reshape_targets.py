"""Targets that the types tell are constants, as well where a 0 in the exporter's own would not have been a copy."""

import numpy as np
import onnxruntime
import pytest

from onnxfuse.passes import pipeline
from tests.support.small import parse

HEADS = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,S,8] x) => (float[N,S,2,4] y) <int64[2] heads = {2,4}> {
  n = Shape <start = 0, end = 2> (x)  d = Concat <axis = 0> (n, heads)  a = Relu (x)
  r = Reshape <allowzero = ALLOW> (a, d)  y = Neg (r) }"""


@pytest.mark.parametrize("allow", [0, 1])
def test_a_target_that_the_types_tell_is_a_constant(allow: int) -> None:
    """Also of no rows: their 0 is copied."""
    model, made = (parse(HEADS.replace("ALLOW", str(allow))) for _ in range(2))
    pipeline.run(made, rules=())
    assert pipeline.count_ops(made) == {"Relu": 1, "Reshape": 1, "Neg": 1}
    for rows in (0, 3):
        x = np.arange(rows * 40, dtype=np.float32).reshape(rows, 5, 8) - 50
        mine, theirs = (
            onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
            for m in (made, model)
        )
        np.testing.assert_array_equal(mine[0], theirs[0])
        assert mine[0].shape == (rows, 5, 2, 4)


TURNED = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,2,3,4] x) => (float[N,2,4,3] y) <int64[3] merge = {-1,3,4}, int64[4] apart = {-1,2,4,3}> {
  a = Relu (x)  m = Reshape <allowzero = 1> (a, merge)  t = Transpose <perm = [0,2,1]> (m)
  h = Reshape <allowzero = 1> (t, apart)  y = Neg (h) }"""


def test_a_constant_target_without_a_zero_is_the_same_with_allowzero() -> None:
    """Torch's exporter of today writes allowzero on every Reshape: what moves layouts reads past it."""
    model, made = parse(TURNED), parse(TURNED)
    pipeline.run(made, rules=())
    assert pipeline.count_ops(made) == {"Relu": 1, "Transpose": 1, "Neg": 1}
    x = np.arange(48, dtype=np.float32).reshape(2, 2, 3, 4) - 20
    mine, theirs = (
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
        for m in (made, model)
    )
    np.testing.assert_array_equal(mine[0], theirs[0])


EMPTY = """<ir_version: 8, opset_import: ["" : 18]>
g (float[2,0,4] x) => (float[0,3] y) <int64[2] none = {0,3}> { y = Reshape <allowzero = 1> (x, none) }"""


def test_an_extent_of_no_elements_keeps_its_allowzero() -> None:
    """Without it the 0 would copy the 2 of the operand."""
    made = parse(EMPTY)
    pipeline.run(made)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.zeros((2, 0, 4), np.float32)})[0].shape == (0, 3)


PARTED = """<ir_version: 8, opset_import: ["" : 18]>
g (float[N,6,10] x) => (float[N,2,6,5] y, float[N,2,3,10] z) <int64[4] heads = {0,6,2,5}, int64[4] image = {0,2,3,10}> {
  h = Reshape (x, heads)  y = OTHER (h)  r = Reshape (h, image)  z = Neg (r) }"""


@pytest.mark.parametrize("other", ["Transpose <perm = [0,2,1,3]>", "Reshape"])
def test_a_reshape_beside_another_operator_reads_past_the_one_before(other: str) -> None:
    """What an attention makes its heads of is read by it alone; chains of Reshapes are as they were."""
    text = PARTED.replace("OTHER (h)", f"{other} (h)" if "Transpose" in other else "Reshape (h, turned)")
    text = text.replace("<int64[4] heads", "<int64[4] turned = {0,2,6,5}, int64[4] heads")
    model, made = parse(text), parse(text)
    pipeline.run(made, rules=())
    reads = {n.output[0]: n.input[0] for n in made.graph.node}
    assert reads["r"] == ("x" if "Transpose" in other else "h")
    x = np.arange(180, dtype=np.float32).reshape(3, 6, 10) - 90
    sessions = [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]) for m in (made, model)
    ]
    for mine, theirs in zip(*(s.run(None, {"x": x}) for s in sessions), strict=True):
        np.testing.assert_array_equal(mine, theirs)
