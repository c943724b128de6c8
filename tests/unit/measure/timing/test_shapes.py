"""The shapes at which models are timed."""

import onnx

from onnxfuse.measure.timing.shapes import cases_per_shape, unsaid
from onnxfuse.verification.inputs.input_specs import input_specs


def test_one_case_per_shape_and_unsaid_dimensions() -> None:
    """Sizes are taken together, in the order given; an input's shape says something about each of its dimensions."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 20]>
    g (float[n, m] x, float[n, 8] r) => (float[n, m] y) { y = Relu (x) }""")
    specs = input_specs(model)
    assert unsaid(specs, {}) == ("n", "m")
    assert unsaid(specs, {"n": (1, 4)}) == ("m",)
    assert unsaid(specs, {"x": (2, 3)}) == ()
    found = cases_per_shape(specs, {"n": (1, 4, 32), "m": (5,)}, seed=0)
    assert [c.shapes["x"] for c in found] == [(1, 5), (4, 5), (32, 5)]
    assert [c.shapes["x"] for c in cases_per_shape(specs, {"x": (2, 3)}, seed=0)] == [(2, 3)]
