"""Times of a profile, by the nodes' names."""

from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.viewing.times import read_times, times_of

TEXT = """<ir_version: 8, opset_import: ["" : 17]> g (float[batch,64] x, float[64,64] w) => (float[batch,64] y)
{ [one] a = Relu (x) [two] b = Sigmoid (a) [three] c = Mul (a, b) [product] s = MatMul (c, w) [last] y = Tanh (s) }"""


def model() -> onnx.ModelProto:
    """Return three nodes that fuse, and two that do not: a product with what is no weight, and what is behind it."""
    return onnx.parser.parse_model(TEXT)


def test_names_that_onnx_runtime_made_of_ours_are_known() -> None:
    """A node in another form has its time; what has no node of ours has none."""
    nodes = [("one", 1.0), ("b_nchwc", 2.0), ("product/MatMulAddFusion_token_7", 4.0), ("ReorderInput", 8.0)]
    side = {"nodes": [{"name": n, "us": us, "device_us": None} for n, us in nodes]}
    times = times_of({"shapes": {}, "before": side, "after": None})
    assert times.named("before", model()) == {"one": {"us": 1.0}, "two": {"us": 2.0}, "product": {"us": 4.0}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "is not what onnxfuse profile --json prints"),
        ("{", "is not what onnxfuse profile --json prints"),
        ('{"command": "profile", "ok": true}', "is not what onnxfuse profile --json prints: KeyError('shapes')"),
        ('{"command": "bench", "ok": true}', "is not what onnxfuse profile --json prints"),
    ],
)
def test_another_file_is_no_profile(tmp_path: Path, text: str, told: str) -> None:
    """Whatever is in it."""
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(onnxfuse.ModelError) as caught:
        read_times(tmp_path / "p.json")
    assert told in str(caught.value)
