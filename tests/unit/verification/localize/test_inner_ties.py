"""A tie of rounding inside a window explains few elements, and by how much."""

import numpy as np
import pytest
from onnx import helper, numpy_helper

from onnxfuse.verification.localize.bisect import faults
from onnxfuse.verification.localize.inner_ties import reach_of_ties
from tests.support.small import parse

CPU = ["CPUExecutionProvider"]

COARSE = """g (float[1000] x) => (int8[1000] q) <float s = {1}, float t = {0.3}, int8 z = {0}> {
  a = QuantizeLinear (x, s, z)
  b = DequantizeLinear (a, s, z)
  q = QuantizeLinear (b, t, z)
}"""


@pytest.mark.parametrize("opset", [11, 21, 24])
def test_a_tie_inside_a_window_moves_what_comes_out_by_more_than_a_step(opset: int) -> None:
    """A step of 1 is three or four of 0.3; without one inside, nothing is moved."""
    x = {"x": np.linspace(-9, 9, 1000).astype(np.float32)}
    assert reach_of_ties(parse(COARSE, opset), x) == {"q": 4.0}
    alone = COARSE.replace("  a = QuantizeLinear (x, s, z)\n  b = DequantizeLinear (a, s, z)\n", "").replace(
        "(b, t", "(x, t"
    )
    assert reach_of_ties(parse(alone, opset), x) == {}


@pytest.mark.parametrize(("by", "many", "ok"), [(4, 1, True), (4, 2, False), (6, 1, False)])
def test_what_a_tie_inside_explains_is_right_in_few_elements(by: int, many: int, ok: bool) -> None:
    """As many elements as else may be off, by as much as a tie inside moves them."""
    original, wrong = parse(COARSE, 21), parse(COARSE.replace("(a", "(inner").replace(" a =", " inner ="), 21)
    offsets = np.zeros(1000, np.float32)
    offsets[:many] = 0.3 * by
    wrong.graph.initializer.append(numpy_helper.from_array(offsets, "offsets"))
    wrong.graph.node[1].output[0], wrong.graph.node[2].input[0] = "exact", "moved"
    wrong.graph.node.insert(2, helper.make_node("Add", ["exact", "offsets"], ["moved"]))
    found = faults(original, wrong, {"x": np.full(1000, 0.2, np.float32)}, CPU)
    assert all(fault is None for fault, _ in found) == ok


FLOAT8 = """g (float[1000] x) => (float[1000] y) <float s = {0.1}, float8e4m3fn z = {0}> {
  a = QuantizeLinear (x, s, z)
  b = DequantizeLinear (a, s, z)
  y = Neg (b)
}"""


def test_a_tie_of_float8_moves_what_comes_out_by_its_step() -> None:
    """Numbers from 8 on are a scale apart."""
    x = np.linspace(0.81, 1.5, 1000).astype(np.float32)
    reach = reach_of_ties(parse(FLOAT8, 21), {"x": x})
    np.testing.assert_allclose(reach["y"], 0.1, rtol=1e-5)
