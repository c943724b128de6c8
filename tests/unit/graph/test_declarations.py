"""Declared shapes of intermediate values that contradict the operators are corrected where a model is taken in."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxfuse.shapes.types import type_of
from onnxfuse.symbolic.parsing import parsed
from tests.support.small import NO_RULE, optimize, parse

POOL = """agraph (float[1,5,16] x) => (float[1,5,9] y) <float[1,5,9] p, float[1,5,9] q> {
    p = MaxPool <ceil_mode = 1, kernel_shape = [1], strides = [2]> (x)
    q = Neg (p)
    y = Abs (q)
}"""
SLOPE = """agraph (float[2,3] x, float[4,1,3] slope) => (float y) <float[2,3] p, float[2,3] q> {
    p = PRelu (x, slope)
    q = Sin (p)
    y = ReduceSum <keepdims = 0> (q)
}"""


def _declared(graph: onnx.GraphProto) -> dict[str, tuple[object, ...] | None]:
    return {v.name: type_of(v.type).shape for v in graph.value_info}


@pytest.mark.parametrize(("text", "shape"), [(POOL, (1, 5, 8)), (SLOPE, (4, 2, 3))], ids=["pool", "slope"])
def test_a_wrong_declaration_becomes_what_onnx_runtime_computes(text: str, shape: tuple[int, ...]) -> None:
    """ONNX's own inference counts a pool's window behind the image, and broadcasts no PRelu: exporters write that."""
    made, _ = optimize(parse(text), NO_RULE)
    assert set(_declared(made.graph).values()) == {shape}
    rng = np.random.default_rng(0)
    options = ort.SessionOptions()
    options.log_severity_level = 4
    one, other = (ort.InferenceSession(m.SerializeToString(), options) for m in (parse(text), made))
    feeds = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in one.get_inputs()}
    for was, now in zip(one.run(None, feeds), other.run(None, feeds), strict=True):
        assert np.array_equal(was, now)


def test_a_right_declaration_and_an_output_stay_as_they_are() -> None:
    """What contradicts nothing is not rewritten: names of extents are the exporter's."""
    text = """agraph (float[N,3] x) => (float[n1,3] y) <float[M,3] p> { p = Sin (x) y = Cos (p) }"""
    made, _ = optimize(parse(text), NO_RULE)
    assert _declared(made.graph) == {"p": (parsed("M"), 3)}
    assert type_of(made.graph.output[0].type).shape == (parsed("n1"), 3)
