"""The original with weights one rounding step away: tables that ids look up, and what outweighs its inputs."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import onnxfuse
from onnxfuse.verification.variants.perturbed import with_perturbed_tables, with_perturbed_weights

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
    moved = with_perturbed_tables(looking_up(WHOLE), 0)
    assert moved is not None
    table, weight = (numpy_helper.to_array(t) for t in moved.graph.initializer)
    assert np.array_equal(weight, WEIGHT)
    assert 0 < np.abs(table - TABLE).max() <= np.spacing(np.abs(TABLE)).max()
    plain = looking_up(WHOLE)
    plain.graph.node[0].op_type = "Other"
    assert with_perturbed_tables(plain, 0) is None


ROWS = 2000


def routed(logits: str, factor: float = 1.0) -> onnx.ModelProto:
    """Return a model that sends each token to the better of two experts; one weighs `factor`.

    ONNX Runtime's CPU provider keeps float32 between the nodes, but for a Gather, which it has for float16, too.
    """
    made: onnx.ModelProto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (int64[N] x) => (float16[N,96] y) { e = Gather (t, x) '
        f"{logits} h = Gather <axis = 1> (g, o) f = Cast <to = 1> (h) c = ArgMax <axis = -1> (f) b = Cast <to = 9> (c) "
        "p0 = MatMul (e, w0) p1 = MatMul (e, w1) y = Where (b, p1, p0) }"
    )
    rng = np.random.default_rng(6)
    other = factor * (WEIGHT + WEIGHT[::-1] / 20)
    table = rng.standard_normal((ROWS, 256))
    router = rng.standard_normal((256, 1)) * (1 + 0.05 * rng.standard_normal((256, 2)))
    weights: dict[str, np.ndarray] = {"t": table, "w0": WEIGHT, "w1": other, "r": router}
    made.graph.initializer.extend(numpy_helper.from_array(w.astype(np.float16), name) for name, w in weights.items())
    made.graph.initializer.append(numpy_helper.from_array(np.array([0, 1]), "o"))
    return made


ROUTED = "g = MatMul (e, r)"
ROUTED_BY_HALVES = (
    "i, j = Split <axis = -1> (e) k, l = Split <axis = 0> (r) m = MatMul (i, k) n = MatMul (j, l) "
    "m1 = Gather <axis = 1> (m, o) n1 = Gather <axis = 1> (n, o) m2 = Cast <to = 1> (m1) n2 = Cast <to = 1> (n1) "
    "s = Add (m2, n2) g = Cast <to = 10> (s)"
)


def choices(model: onnx.ModelProto) -> np.ndarray:
    """Return to which expert each row of the table is sent."""
    model.graph.output.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.INT64, None))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(["c"], {"x": np.arange(ROWS)})[0].ravel()
    return found


def in_float64() -> np.ndarray:
    """Return by how much each row of the table is rather the second expert's, of the rounded weights."""
    held = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in routed(ROUTED).graph.initializer}
    apart: np.ndarray = held["t"] @ (held["r"][:, 1] - held["r"][:, 0])
    return apart


@pytest.mark.parametrize(("factor", "right"), [(1.0, True), (1.05, False)])
def test_an_expert_that_a_rounding_chose_is_right_and_another_weight_is_not(factor: float, right: bool) -> None:
    """The original happens to choose by the truth; that hangs on the last bit of a logit all the same."""
    apart, ours, theirs = in_float64(), choices(routed(ROUTED)), choices(routed(ROUTED_BY_HALVES))
    torn = np.flatnonzero((ours == (apart > 0)) & (ours != theirs))
    assert torn.size, "for no row of the table both all but tie"
    torn, sure = torn[np.abs(apart[torn]).argmin()], np.flatnonzero(np.abs(apart) > 0.1)
    report = onnxfuse.verify(
        routed(ROUTED), routed(ROUTED_BY_HALVES, factor), inputs=[{"x": np.append(sure[:100], torn)}],
        providers=["CPUExecutionProvider"], isolate=False,
    )  # fmt: skip
    assert report.ok == right, report.summary


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
    model.graph.initializer.append(numpy_helper.from_array(np.array([1.5, 2.5], np.float32), "scales"))
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 2), np.float16), "half"))
    one, other = with_perturbed_weights(model, 0), with_perturbed_weights(model, 1)
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
    assert with_perturbed_weights(half_alone, 0) is None
