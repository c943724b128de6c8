"""GroupQueryAttention in the reference agrees with ONNX Runtime's on the CPU, and so does the kernel's body."""

from dataclasses import replace

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper

from bench.cases import ops
from bench.cases.ops import FLOAT
from tests.support.kernels.cached_attentions import Case

ROTATED = Case((5, 0, 12), half=16, dtype=FLOAT)
CASES = [
    Case((5,), dtype=FLOAT), Case((5, 0, 12), dtype=FLOAT), Case((5, 0, 12), packed=True, dtype=FLOAT), ROTATED,
    replace(ROTATED, packed=True), replace(ROTATED, interleaved=True), replace(ROTATED, half=8, packed=True),
    replace(ROTATED, window=4), replace(ROTATED, softcap=1.5), replace(ROTATED, sink=True),
    replace(ROTATED, smooth=True), replace(ROTATED, before=(0, 0), queries=9), replace(ROTATED, before=(5,), queries=6),
    replace(ROTATED, before=(5,), queries=6, window=4), replace(ROTATED, capacity=12),
    replace(ROTATED, before=(0,), queries=20, capacity=0, window=7),
    replace(ROTATED, before=(0,), queries=20, capacity=32),
    Case((0, 0), 6, 16, dtype=FLOAT, padding=(0, 3)), replace(ROTATED, before=(0, 0), queries=9, padding=(8, 2)),
    replace(ROTATED, before=(0, 0), queries=9, capacity=0, window=4, padding=(8, 2)),
    replace(ROTATED, before=(0, 0), queries=9, sink=True, padding=(8, 2)),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_reference_agrees_with_onnx_runtime(case: Case) -> None:
    """Over first prompts, continued ones and single tokens; the caches to the last bit where nothing rotates."""
    op, inputs = case.op(), case.inputs(np.random.default_rng(0))
    inputs = [np.nan_to_num(x, nan=0.0) if x.dtype.kind == "f" else x for x in inputs]
    values = [
        helper.make_tensor_value_info(n, t, x.shape) for n, t, x in zip(op.body.input, op.inputs, inputs, strict=True)
    ]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in op.body.output]
    graph = helper.make_graph([*op.body.node], "g", values, results)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    theirs = session.run(None, dict(zip(op.body.input, inputs, strict=True)))
    ours = ops.truth(op, inputs)
    np.testing.assert_allclose(ours[0], theirs[0], atol=2e-6)
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert mine.shape == other.shape
        np.testing.assert_allclose(mine, other, atol=0 if not case.half else 1e-6)


@pytest.mark.parametrize(("name", "value"), [("local_window_size", 0), ("softcap", -1.0), ("causal", 0)])
def test_other_forms_are_refused(name: str, value: float) -> None:
    """ONNX Runtime itself is the reference then."""
    case = Case((5,), dtype=FLOAT)
    op, inputs = case.op(), case.inputs(np.random.default_rng(0))
    op.body.node[0].attribute.append(helper.make_attribute(name, value))
    with pytest.raises(NotImplementedError, match="another form"):
        ops.truth(op, inputs)
