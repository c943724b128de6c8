"""Of a model in lower precision that is out of its contract, the node where the numbers are lost is named."""

import numpy as np
import onnx
import pytest

from onnxfuse.model.precision_record import PrecisionRecord
from onnxfuse.verification.localize.first_loss import first_loss
from onnxfuse.verification.run import sessions

HEAD = '<ir_version: 9, opset_import: ["" : 17]> g (float[8] x) => (float[8] y) '
ORIGINAL = "{ r = Relu (x)  m = Add (r, r)  s = Sqrt (m)  y = Neg (s) }"
FEEDS = {"x": np.linspace(0.5, 4, 8, dtype=np.float32)}
CONTRACT = PrecisionRecord("float16", 1e-2, "", "float64", 4)


def fused_with(wrong: str, right: str) -> onnx.ModelProto:
    """Return the model with other nodes; `v_low` is the value v in float16, as a converted file calls it."""
    assert right in ORIGINAL
    made = onnx.parser.parse_model(HEAD + ORIGINAL.replace(right, wrong))
    for node in made.graph.node:
        for names in (node.input, node.output):
            names[:] = [n.replace("_low", ".float16") for n in names]
    return made


@pytest.mark.parametrize(
    ("right", "wrong", "output", "checked"),
    [
        ("m = Add (r, r)", "m = Mul (r, r)", "m", 4),
        ("y = Neg (s)", "z = Neg (s)  y = Abs (z)", "y", 4),  # z is not in the original
        ("s = Sqrt (m)", "m_low = Cast <to = 10> (m)  s_low = Exp (m_low)  s = Cast <to = 1> (s_low)", "s.float16", 6),
    ],
)
def test_the_first_node_out_of_the_tolerance_is_named(right: str, wrong: str, output: str, checked: int) -> None:
    """What it reads is within it; what follows, out of it too, is not to blame."""
    fused = fused_with(wrong, right)
    original = onnx.parser.parse_model(HEAD + ORIGINAL)
    found = first_loss(original, fused, CONTRACT, FEEDS, [sessions.CPU], "the output is off")
    assert found.output == output
    assert found.guilty is not None
    assert "allowed 0.01" in found.fault
    assert found.checked == checked


def test_where_no_value_is_off_the_fault_stands_as_it_is() -> None:
    original = onnx.parser.parse_model(HEAD + ORIGINAL)
    found = first_loss(original, original, CONTRACT, {"x": np.ones(8, np.float32)}, [sessions.CPU], "the output is off")
    assert (found.guilty, found.why) == (None, "no value that both models have says more")
    assert found.fault == "the output is off"
