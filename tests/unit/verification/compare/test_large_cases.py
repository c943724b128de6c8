"""Large sizes and large values are run once each, within the time, and what was run and what was not is told."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxfuse.verification import VerifyReport, verify
from onnxfuse.verification.compare import large_cases
from onnxfuse.verification.compare.case_comparison import Comparison
from onnxfuse.verification.inputs.input_roles import InputRole, roles
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import Case, cases, large_case, large_tops
from onnxfuse.verification.reference.float64_reference import reference_for
from onnxfuse.verification.reference.reference import OutOfRange
from tests.support.verification.small_models import text_model

CPU = ["CPUExecutionProvider"]
ROWS = "(float[batch, length, 4] x) => (float[batch, length, 4] y)"
IMAGES = "(float[batch, 3, height, width] x) => (float[batch, 3, height, width] y)"


def beyond(axis: int, size: int) -> str:
    """Return a body that is wrong from position `size` of an axis on."""
    return f"a = Abs(x)  g = Gather <axis = {axis}> (a, first)  y = Add(x, bad) "


@pytest.mark.parametrize(
    ("head", "axis", "size"), [(ROWS, 0, 8), (ROWS, 1, 16), (IMAGES, 0, 8), (IMAGES, 2, 96), (IMAGES, 3, 96)]
)
def test_a_fault_that_large_sizes_alone_show_is_found(head: str, axis: int, size: int) -> None:
    """A batch above 8, a length above 16, an image above 96: wrong from there on, and right in all small cases."""
    original = text_model(f"g {head} {{ y = Relu(x) }}")
    cut = np.array([size])
    wrong = text_model(
        f"g {head} {{ r = Relu(x)  h = Slice(r, zero, cut, axis)  t = Slice(r, cut, end, axis)  u = Mul(t, low)"
        f"  y = Concat <axis = {axis}> (h, u) }}",
        zero=np.array([0]), cut=cut, end=np.array([1 << 40]), axis=np.array([axis]), low=np.array(0.99, "f"),
    )  # fmt: skip
    assert verify(original, original, providers=CPU).ok
    assert verify(original, wrong, providers=CPU).verdict == "mismatch"


def test_the_sizes_that_were_run_are_told() -> None:
    """By the name of the dimension; those that were asked for are all there are of theirs."""
    original = text_model(f"g {ROWS} {{ y = Relu(x) }}")
    report = verify(original, original, providers=CPU)
    assert report.sizes == {"batch": (1, 3, 8, 65), "length": (1, 7, 16, 1024)}
    assert report.as_dict()["sizes"]["batch"] == [1, 3, 8, 65]
    asked = verify(original, original, providers=CPU, shapes={"batch": (2, 5)})
    assert asked.sizes["batch"] == (2, 5)
    assert max(asked.sizes["length"]) == 1024


def test_what_the_original_refuses_or_costs_too_much_is_told() -> None:
    """A table of positions ends at 40: 33 is the largest of the ladder below; one of 16 takes none."""
    text = "g (float[batch, length, 4] x) => (float[batch, length, 4] y) {{ s = Shape <start = 1, end = 2> (x)" \
        "  t = Slice(table, zero, s, zero)  y = Add(x, t) }}"  # fmt: skip
    models = [
        text_model(text.replace("{{", "{").replace("}}", "}"), table=np.ones((n, 4), "f"), zero=np.array([0]))
        for n in (40, 16)
    ]
    report = verify(models[0], models[0], providers=CPU)
    assert max(report.sizes["length"]) == 33
    assert not report.not_run
    report = verify(models[1], models[1], providers=CPU)
    (line,) = report.not_run
    assert line.startswith("no sequence above 16 (length): the original refuses it")


def test_a_size_that_the_original_refuses_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other dimension has to have the same size, so that there is nothing else to try."""
    text = "g (float[length, 4] x) => (float[length, 4] y) { s = Shape <end = 1> (x)" \
        "  t = Slice(table, zero, s, zero)  y = Add(x, t) }"  # fmt: skip
    model = text_model(text, table=np.ones((16, 4), "f"), zero=np.array([0]))
    run, ran = Comparison.run, list[int]()

    def noted(self: Comparison, case: Case) -> None:
        ran.append(case.shapes["x"][0])
        run(self, case)

    monkeypatch.setattr(Comparison, "run", noted)
    assert max(verify(model, model, providers=CPU).sizes["length"]) == 9
    refused = [n for n in ran if n > 16]
    assert refused == sorted({*refused}, reverse=True) != []


VALUES = {
    "clipped": ("float", "c = Clip(x, low, high)  y = Mul(c, two)", {"low": -1e3, "high": 1e3}),
    "clipped far out": ("float", "c = Clip(x, low, high)  y = Mul(c, two)", {"low": -1e12, "high": 1e12}),
    "through float16": ("float", "h = Cast <to = 10> (x)  f = Cast <to = 1> (h)  m = Max(f, x)  c = Min(m, f)"
                        "  b = Abs(x)  g = Less(b, small)  d = Where(g, x, c)  y = Mul(d, two)", {"small": 1e3}),
    "through int32": ("int64", "h = Cast <to = 6> (x)  f = Cast <to = 7> (h)  y = Mul(f, two)", {}),
    "through float": ("int64", "h = Cast <to = 1> (x)  f = Cast <to = 7> (h)  y = Mul(f, two)", {}),
}  # fmt: skip


@pytest.mark.parametrize("form", VALUES)
def test_a_fault_that_large_values_alone_show_is_found(form: str) -> None:
    """Numbers beyond 1e3, and whole ones beyond 2^31 and 2^24."""
    type_, wrong, constants = VALUES[form]
    head = f"g ({type_}[n, 32] x) => ({type_}[n, 32] y)"
    dtype = np.float32 if type_ == "float" else np.int64
    weights: dict[str, Any] = {n: np.array(v, dtype) for n, v in {"two": 2, **constants}.items()}
    original = text_model(f"{head} {{ y = Mul(x, two) }}", **weights)
    assert verify(original, original, providers=CPU).ok
    assert verify(original, text_model(f"{head} {{ {wrong} }}", **weights), providers=CPU).verdict == "mismatch"


def test_values_are_as_large_as_the_original_takes_them() -> None:
    """A square leaves the range beyond 2^63: the original is right up to there, and is not run where it is not."""
    square = text_model("g (float[n, 8] x) => (float[n, 8] y) { q = Mul(x, x)  r = Sqrt(q)  y = Neg(r) }")
    report = verify(square, square, providers=CPU)
    large = [n for n, c in enumerate(report.cases) if c.name == "large"]
    (row,) = [r for r in report.rows if r.case in large]
    assert 1e3 < row.measure.scale < 2.0**63
    exp = text_model("g (float[n, 8] x) => (float[n, 8] y) { q = Mul(x, x)  y = Exp(q) }")
    report = verify(exp, exp, providers=CPU)
    assert report.ok
    assert report.not_run == (next(line for line in report.not_run if line.startswith("no large values: ")),)


@pytest.mark.parametrize("type_", ["float", "float16", "double", "int64", "int32"])
def test_large_values_stay_in_the_range_of_their_type(type_: str) -> None:
    """At every exponent that is tried, of either sign; the first is near the end of the range."""
    model = text_model(f"g ({type_}[64, 32] x) => ({type_}[64, 32] y) {{ y = Neg(x) }}")
    specs = input_specs(model)
    tops = large_tops(specs)
    assert list(tops) == sorted(tops, reverse=True)
    for top in tops:
        x = large_case(specs, 0, {"x": (64, 32)}, top).make()["x"].astype(np.float64)
        assert np.isfinite(x).all()
        assert 2.0**8 <= np.abs(x).max() <= 2.0**top
        assert {-1.0, 1.0} == set(np.sign(x).ravel())
    assert tops[0] >= {"float": 100, "float16": 14, "double": 1000, "int64": 62, "int32": 30}[type_]


@pytest.mark.parametrize(("type_", "top"), [("uint16", 16), ("uint32", 32), ("uint64", 64), ("int64", 62)])
def test_large_integers_have_all_their_bits(type_: str, top: int) -> None:
    """Up to the end of the range, and odd ones: what passes through a narrower type, or a float, is seen."""
    model = text_model(f"g ({type_}[64, 32] x) => ({type_}[64, 32] y) {{ y = Identity(x) }}")
    specs = input_specs(model)
    assert large_tops(specs)[0] == top
    x = large_case(specs, 0, {"x": (64, 32)}, top).make()["x"]
    largest = np.abs(x.astype(np.int64)).max() if type_ == "int64" else x.max()
    assert int(largest) >= 1 << (top - 1)
    odd = x % 2 == 1
    assert odd.mean() > 0.4
    assert np.abs(x[odd].astype(np.float64)).max() >= 2.0 ** (top - 1)


@pytest.mark.parametrize("operator", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_integers_come_near_what_they_are_compared_with(operator: str) -> None:
    """A threshold that is far beyond the usual numbers decides both ways; compared with 0 or 1 they are a mask."""
    graph = "g (int64[N, 8] x) => (bool[N, 8] y) <int64 t = {THRESHOLD}> { y = OPERATOR(x, t) }"

    def role(threshold: int) -> InputRole:
        return roles(text_model(graph.replace("THRESHOLD", str(threshold)).replace("OPERATOR", operator)))["x"]

    assert role(1 << 35) == InputRole("number", choices=(1 << 35,))
    assert [role(0).kind, role(1).kind] == ["mask", "mask"]
    model = text_model(graph.replace("THRESHOLD", str(1 << 35)).replace("OPERATOR", operator))
    edge = next(c for c in cases(input_specs(model), [0], {"x": (64, 8)}) if c.name == "edge").make()["x"]
    assert {(1 << 35) + d for d in (-1, 0, 1)} <= set(edge.ravel().tolist())


def test_a_bounded_truth_tells_where_a_value_leaves_its_bound() -> None:
    """Inside the block alone; what stands for infinity in masks is none, and bytes have no large values."""
    model = text_model(
        "g (float[4] x) => (float[4] y) { m = Mul(x, mask)  y = Mul(x, x) }", mask=np.array(np.finfo("f").min)
    )
    truth = reference_for(model, "auto", [])
    x = {"x": np.ones(4, np.float32)}
    with truth.within(1e30):
        assert truth.evaluate(x)["y"].tolist() == [1.0] * 4
        with pytest.raises(OutOfRange, match="beyond 1e\\+30 at Mul"):
            truth.evaluate({"x": np.full(4, 1e20, np.float32)})
    assert truth.evaluate({"x": np.full(4, 1e20, np.float32)})["y"].max() > 1e39
    pixels = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 20]> g (uint8[4] x) => (uint8[4] y) { y = Identity(x) }'
    )
    assert pixels.graph.input[0].type.tensor_type.elem_type == TensorProto.UINT8
    assert large_tops(input_specs(pixels)) == ()


def test_the_time_changes_no_size() -> None:
    """A slow or loaded machine leaves cases out and says so with the limit that applies; those that are run are the
    same."""
    deep = " ".join(f"h{n + 1} = MatMul(h{n}, w)" for n in range(6))
    model = text_model(
        f"g (float[batch, length, 256] h0) => (float[batch, length, 256] y) {{ {deep} y = Relu(h6) }}",
        w=(np.eye(256) / 2).astype("f"),
    )

    run = Comparison.run

    def at(delay: float) -> VerifyReport:
        """Return the report of a machine on which each case takes so many seconds more."""

        def slow(self: Comparison, case: Case) -> None:
            run(self, case)
            object.__setattr__(self.limits, "began", self.limits.began - delay)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Comparison, "run", slow)
            return verify(model, model, providers=CPU)

    found = [at(delay) for delay in (0.0, 20.0, 60.0)]
    assert found[0].sizes["batch"] == (1, 3, 8, 65)
    assert found[1].sizes == found[0].sizes
    assert set(found[2].sizes["batch"]) <= {1, 3, 8, 65}
    used_up = "the time of 300 s is used up (--time)"
    assert found[2].not_run
    assert all(line.endswith(used_up) for line in found[2].not_run), found[2].not_run


def test_a_size_that_takes_too_much_work_is_replaced_by_a_smaller_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the estimate alone, and the report names what would run it if none fits."""
    model = text_model(f"g {ROWS} {{ y = Relu(x) }}")
    monkeypatch.setattr(large_cases, "LEAST", 40 * 7 * 4 * 3)
    assert verify(model, model, providers=CPU).sizes["batch"] == (1, 3, 8, 33)
    monkeypatch.setattr(large_cases, "LEAST", 0)
    monkeypatch.setattr(large_cases, "HARDLY", 0.1)
    monkeypatch.setattr(large_cases, "SHARE", 0.0)
    lines = [line for line in verify(model, model, providers=CPU).not_run if line.startswith("no batch above 8")]
    assert len(lines) == 1
    assert "--shape batch=9 runs it" in lines[0]
