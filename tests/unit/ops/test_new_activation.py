"""A new activation with a scalar function of its own is two files: its entry, and the function in `math.cuh`.

The recipe of docs/dev/ADDING.md, carried out in a copy of the package that does not know ScaledSiLU of ONNX Runtime.
"""

from pathlib import Path

from tests.support.package_copy import copy_package, run_in_copy

BEFORE = 'ScaledSiLU = pointwise("ScaledSiLU", _scaled_silu, Trait.KEEPS_TYPE, flops=6, domain=MICROSOFT)\n'
ENTRY = """
_silu = Function("silu", lambda x: x * scalar.sigmoid(x), half=True)
ScaledSiLU = pointwise(
    "ScaledSiLU", lambda node: _silu(node.real(0) * node.number("alpha", 1.0)), Trait.KEEPS_TYPE, flops=6,
    domain=MICROSOFT,
)
"""
IMPORT = "from onnxfuse.ops.scalar import "
DEVICE = "template <class T> DEVICE T silu(T x) { return x * sigmoid(x); }\n"

SCRIPT = '''
import dataclasses

import numpy as np
import onnx

import onnxfuse
from onnxfuse import cuda
from onnxfuse.codegen.emit import expressions
from onnxfuse.cuda.templates.memory_bound import schedule
from onnxfuse.model.fused import fused_ops
from onnxfuse.measure.profile.traffic import count
from onnxfuse.verification.reference.float64_reference import reference_for
from bench.cases import ops
from tests.emulator.test_functor import assert_close, compiled

MODEL = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[3,2] x) => (float[3,2] y) <float[2,2] w = {1, -2, 3, 4}, float[2] b = {0.5, -1}> {
  c = com.microsoft.ScaledSiLU (b) m = MatMul (x, w) h = Add (m, c) y = com.microsoft.ScaledSiLU (h)
}""")

def silu(x):
    return x / (1 + np.exp(-x))

# fused, after a product; of weights only it is a weight
made = onnxfuse.optimize(MODEL)
fused = list(fused_ops(made).values())
assert [[n.op_type for n in one.body.node] for one in fused] == [["Add", "ScaledSiLU"]], fused
weights = [onnx.numpy_helper.to_array(t) for t in made.graph.initializer]
folded = silu(np.array([0.5, -1.0])).astype(np.float32)
assert any(np.array_equal(w, folded) for w in weights), weights

# profiled: a sum and six steps for each element
assert [n.work.flops for n in count(made, {}).nodes] == [2 * 3 * 2 * 2, 7 * 6]

# verified in float64
x = np.linspace(-3, 3, 6, dtype=np.float32).reshape(3, 2)
expected = silu(x.astype(np.float64) @ np.array([[1, -2], [3, 4]]) + folded)
found = reference_for(MODEL, "float64", []).evaluate({"x": x})["y"]
np.testing.assert_allclose(found, expected, rtol=1e-6)

# converted: the fused op reads and writes float16
half = onnxfuse.optimize(MODEL, precision="float16")
assert {t for one in fused_ops(half).values() for t in one.inputs} == {onnx.TensorProto.FLOAT16}
assert onnxfuse.verify(MODEL, half).ok

# its kernel calls the function, the shorter one for 16 bits
one, function = compiled("(x) => (y) { y = com.microsoft.ScaledSiLU(x) }", (ops.FLOAT,), (ops.FLOAT,))
values = np.linspace(-9, 9, 181).astype(np.float32)
exact = silu(values.astype(np.float64))
assert_close(function(values)[0], exact, silu(values), 4)
sixteen = dataclasses.replace(one, inputs=(ops.HALF,), outputs=(ops.HALF,))
assert "math16::silu" in expressions.source(schedule.program(sixteen))
assert cuda.is_pointwise("ScaledSiLU", "com.microsoft")
'''


def test_a_new_activation_is_two_files(tmp_path: Path) -> None:
    """It is fused, folded, counted, computed in float64, converted, and called by its kernel; nothing else changes."""
    copy_package(tmp_path)
    entries, math = (tmp_path / "onnxfuse" / name for name in ("ops/contrib.py", "cuda/include/math.cuh"))
    before = entries.read_text()
    assert BEFORE in before
    entries.write_text(before.replace(BEFORE, "").replace(IMPORT, f"{IMPORT}Function, ", 1) + ENTRY)
    for space in ("math", "math16"):
        text = math.read_text()
        assert f"}}  // namespace {space}\n" in text
        math.write_text(text.replace(f"}}  // namespace {space}\n", f"{DEVICE}}}  // namespace {space}\n"))
    run_in_copy(tmp_path, SCRIPT)
