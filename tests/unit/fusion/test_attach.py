"""Bodies as functions of the model."""

from onnxfuse.model.fused import DOMAIN
from tests.support.small import optimize, parse


def test_a_file_imports_version_1_of_the_domain_of_fused_ops() -> None:
    """The version that the engine registers: files of all releases name the same one, and each function its own."""
    made, _ = optimize(parse("g (float[N,8] x, float[8] b) => (float[N,8] y) { s = Add (x, b) y = Relu (s) }"))
    assert [(o.domain, o.version) for o in made.opset_import if o.domain == DOMAIN] == [(DOMAIN, 1)]
    (function,) = made.functions
    assert (function.domain, [o.domain for o in function.opset_import]) == (DOMAIN, [""])
