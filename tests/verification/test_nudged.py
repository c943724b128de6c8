"""The original with weights one rounding step away: tables that ids look up, and what outweighs its inputs."""

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfuse
from onnxfuse.verification.nudged import with_nudged_tables, with_nudged_weights

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


def outweighed(shift: np.ndarray) -> onnx.ModelProto:
    """Return a model in which a shift outweighs what comes of the input: exp((x v) + shift), the shift a Constant."""
    made: onnx.ModelProto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[N,8] x) => (float[N,256] y) '
        "{ s = Constant () m = MatMul (x, v) a = Add (m, s) y = Exp (a) }"
    )
    made.graph.initializer.append(numpy_helper.from_array(np.full((8, 256), 1e-12, np.float32), "v"))
    made.graph.node[0].attribute.append(onnx.helper.make_attribute("value", numpy_helper.from_array(shift)))
    return made


SHIFT = np.full((1, 256), 60.3, np.float32)


@pytest.mark.parametrize(
    ("shift", "right"), [(np.nextafter(SHIFT, np.float32(61)), True), (SHIFT * np.float32(1.01), False)]
)
def test_where_a_weight_outweighs_the_input_its_rounding_is_the_originals_own(shift: np.ndarray, right: bool) -> None:
    """One step of the shift moves every element by thirty, and no step of the input moves any."""
    report = onnxfuse.verify(outweighed(SHIFT), outweighed(shift), providers=["CPUExecutionProvider"], isolate=False)
    assert report.ok == right, report.summary


def test_scales_and_halves_stay_as_they_are() -> None:
    """Only matrices and filters are moved, each time otherwise."""
    model = outweighed(SHIFT)
    model.graph.initializer.append(numpy_helper.from_array(np.float32([1.5, 2.5]), "scales"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2), np.float16), "half"))
    one, other = with_nudged_weights(model, 0), with_nudged_weights(model, 1)
    assert one is not None
    assert other is not None
    v, scales, half = (numpy_helper.to_array(t) for t in one.graph.initializer)
    assert (scales == [1.5, 2.5]).all()
    assert (half == 1).all()
    assert (v != np.float32(1e-12)).any()
    assert (v != numpy_helper.to_array(other.graph.initializer[0])).any()
    moved = numpy_helper.to_array(one.graph.node[0].attribute[0].t)
    assert 0 < np.abs(moved - SHIFT).max() <= np.spacing(SHIFT).max()
    half_alone = onnx.ModelProto()
    half_alone.CopyFrom(looking_up(WHOLE, WEIGHT))
    for tensor in half_alone.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    assert with_nudged_weights(half_alone, 0) is None
