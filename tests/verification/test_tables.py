"""A float32 truth of a float32 model whose inputs are token ids: its own rounding is told by nudged tables."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfuse
from onnxfuse.verification.tables import with_nudged_tables

RNG = np.random.default_rng(5)
TABLE = RNG.standard_normal((50, 256)).astype(np.float32)
WEIGHT = RNG.standard_normal((256, 96)).astype(np.float32)
WHOLE = "y = MatMul (e, w)"
HALVES = "a, b = Split <axis = -1> (e) c, d = Split <axis = 0> (w) p = MatMul (a, c) q = MatMul (b, d) y = Add (p, q)"


def looking_up(text: str, weight: np.ndarray = WEIGHT) -> onnx.ModelProto:
    """Return a model that looks ids up in a table, and goes on with that."""
    made: onnx.ModelProto = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["" : 17]> g (int64[N,7] x) => (float[N,7,96] y) {{ e = Gather (t, x) {text} }}'
    )
    made.graph.initializer.extend([numpy_helper.from_array(TABLE, "t"), numpy_helper.from_array(weight, "w")])
    return made


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1 + 1e-4, False)])
def test_another_order_of_a_sum_is_right_and_another_weight_is_not(factor: float, right: bool) -> None:
    """Without nudged tables the original would have no error at all: the truth computes as it does."""
    other = looking_up(HALVES, (WEIGHT * np.float32(factor)).astype(np.float32))
    ids = [{"x": np.random.default_rng(seed).integers(0, 50, (2, 7))} for seed in range(2)]
    report = onnxfuse.verify(
        looking_up(WHOLE), other, inputs=ids, truth="float32", providers=["CPUExecutionProvider"], isolate=False
    )
    assert report.ok == right, report.summary
    assert all(row.measure.own for row in report.rows)


def test_tables_alone_are_moved_by_one_step() -> None:
    """Weights stay; a model without tables has nothing to move."""
    moved = with_nudged_tables(looking_up(WHOLE))
    assert moved is not None
    table, weight = (numpy_helper.to_array(t) for t in moved.graph.initializer)
    assert np.array_equal(weight, WEIGHT)
    assert 0 < np.abs(table - TABLE).max() <= np.spacing(np.abs(TABLE)).max()
    plain = looking_up(WHOLE)
    plain.graph.node[0].op_type = "Other"
    assert with_nudged_tables(plain) is None
