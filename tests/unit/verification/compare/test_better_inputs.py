"""An original whose own error is percents is blunt: better inputs are sought, and no case widens another."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx
import pytest

from onnxfuse.reporting.checks import checks, word
from onnxfuse.verification import verify
from onnxfuse.verification.compare import better_inputs
from onnxfuse.verification.compare.better_inputs import DATA, changes
from onnxfuse.verification.compare.case_comparison import Comparison
from onnxfuse.verification.inputs.input_roles import InputRole
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import cases
from onnxfuse.verification.report.rows import CaseRow
from onnxfuse.verification.run.sessions import ort_session
from tests.support.verification.small_models import text_model

CPU = ["CPUExecutionProvider"]
RNG = np.random.default_rng(0)
TABLE, HEAD = RNG.standard_normal((257, 64)), RNG.standard_normal((64, 10)) / 8
TABLE[:2] = 0  # of these rows alone the means of squares and of numbers cancel

NORM = (
    "  m = MatMul(hot, table)  x = Add(m, bias)  mu = ReduceMean <axes = [-1]> (x)  x2 = Mul(x, x)"
    "  e = ReduceMean <axes = [-1]> (x2)  mu2 = Mul(mu, mu)  v0 = Sub(e, mu2)  v = Max(v0, zero)  w = Add(v, eps)"
    "  s = Sqrt(w)  d = Sub(x, mu)  n = Div(d, s)  y = MatMul(n, head)"
)
HOT = {
    "Equal with a constant": "u = Unsqueeze(ids, last)  q = Equal(u, numbers)  hot = Cast <to = 1> (q)",
    "Equal the other way": "u = Unsqueeze(ids, last)  q = Equal(numbers, u)  hot = Cast <to = 1> (q)",
    "Equal with a Range": "r = Range(start, limit, delta)  u = Unsqueeze(ids, last)  q = Equal(u, r)"
    "  hot = Cast <to = 1> (q)",
    "Equal of floats": "f = Cast <to = 1> (ids)  u = Unsqueeze(f, last)  r = Cast <to = 1> (numbers)"
    "  q = Equal(u, r)  hot = Cast <to = 1> (q)",
    "Equal with a table of numbers": "u = Unsqueeze(ids, last)  q = Equal(u, many)  hot = Cast <to = 1> (q)",
    "OneHot": "i = Cast <to = 7> (ids)  hot = OneHot <axis = -1> (i, depth, values)",
}


def classifier(form: str, bias: np.ndarray, rows: float = 1.0, head: float = 1.0) -> onnx.ModelProto:
    """Return a classifier of bytes: one-hot by `form`, a table, a norm by E[x^2] - E[x]^2, and a linear layer."""
    table = np.where(np.arange(257)[:, None] > 1, rows, 1) * TABLE
    one = np.int32
    return text_model(
        f"g (int32[batch, 64] ids) => (float[batch, 64, 10] y) {{ {HOT[form]}{NORM} }}",
        opset=13, table=table.astype("f"), head=(HEAD * head).astype("f"), bias=bias.astype("f"),
        zero=np.array(0, "f"), eps=np.array(1e-12, "f"), last=np.array([2]), numbers=np.arange(257, dtype=one),
        many=np.broadcast_to(np.arange(257, dtype=one), (1, 64, 257)).copy(), start=np.array(0, one),
        limit=np.array(257, one), delta=np.array(1, one), depth=np.array(257), values=np.array([0, 1], "f"),
    )  # fmt: skip


@pytest.mark.parametrize("form", HOT)
def test_every_row_of_a_one_hot_table_is_looked_at(form: str) -> None:
    """Ids that are compared with 0, 1, 2, ... are ids: a fault in rows behind the second is seen."""
    small = np.random.default_rng(1).standard_normal(64)
    original = classifier(form, small)
    assert verify(original, original, providers=CPU).ok
    assert verify(original, classifier(form, small, rows=1.5), providers=CPU).verdict == "mismatch"


@pytest.mark.parametrize("factor", [1.01, 1.03, 1.05])
def test_a_blunt_case_widens_no_other(factor: float) -> None:
    """Rows 0 and 1 cancel, and the original is off by percents in a case of them; ids of other rows show the weight."""
    rng = np.random.default_rng(0)  # its own: of some biases all cases are blunt, and nothing is decided
    bias = 30 + 1.5e-2 * rng.standard_normal(64)
    form = "Equal with a constant"
    report = verify(classifier(form, bias), classifier(form, bias, head=factor), providers=CPU)
    assert report.verdict == "mismatch", report.summary
    zeros, others = ({"ids": ids.astype(np.int32)} for ids in (np.zeros((1, 64)), rng.integers(0, 257, (1, 64))))
    given = verify(classifier(form, bias), classifier(form, bias, head=factor), inputs=[zeros, others], providers=CPU)
    assert given.verdict == "mismatch", given.summary


CANCELS = "g (float[n, 64] x) => (float[n, 8] y) { s = Add(x, c)  d = Sub(s, c)  t = Tanh(d)  y = MatMul(t, w) }"

BOUNDED = CANCELS.replace("Add(x, c)", "Add(b, c)").replace("{ s", "{ b = Sin(x)  s")


def cancels(by: float, factor: float, text: str = CANCELS) -> onnx.ModelProto:
    """Return a model that loses digits of its input beside a constant."""
    w = np.random.default_rng(3).standard_normal((64, 8)).astype("f") * factor
    return text_model(text, c=np.array(by, "f"), w=w.astype("f"))


@pytest.mark.parametrize("factor", [1.01, 1.03, 1.05])
def test_better_inputs_are_sought(factor: float) -> None:
    """Normal numbers lose their digits, larger ones do not: these are found, and the wrong weight is seen."""
    report = verify(cancels(3e5, 1.0), cancels(3e5, factor), providers=CPU)
    assert report.verdict == "mismatch", report.summary


def test_a_search_that_the_time_ends_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report names the outputs for which no more inputs were tried, and the option that allows more."""
    monkeypatch.setattr(better_inputs, "SEARCHING", 0.0)
    late = verify(cancels(1.2e6, 1.0, BOUNDED), cancels(1.2e6, 1.002, BOUNDED), providers=CPU)
    assert late.not_run[-1] == "no further inputs for y: searching them may take 0% of the time (--time)"


def test_what_is_blunt_everywhere_is_not_ok() -> None:
    """No inputs show more: the verdict says blunt, in every report, and exit 1; the same file needs no judge."""
    original = cancels(1.2e6, 1.0, BOUNDED)
    report = verify(original, cancels(1.2e6, 1.002, BOUNDED), providers=CPU)
    assert (report.verdict, report.ok, report.blunt) == ("blunt", False, ("y",)), report.summary
    assert report.summary.startswith("not shown to be the same: y blunt; blunt in ")
    facts = report.as_dict()
    assert facts["verdict"] == facts["outputs"][0]["verdict"] == word(facts) == "blunt"
    (check,) = checks("verify", facts)
    assert (check.ok, check.text.startswith("blunt: ")) == (False, True)
    assert verify(original, original, providers=CPU).ok


RESIZED = text_model("g (float[1, 2, 16, 16] x, float[4] scales) => (float[a, b, c, d] y) { y = Resize (x, , scales) }")


def test_what_steers_takes_settings_of_its_own_beside_other_data() -> None:
    """Among them one that leaves batch and channels as they are, as the scales of an image do."""
    specs = input_specs(RESIZED)
    base = cases(specs, (0,), {})[0]
    usual = base.make()["x"]
    made = [change(base).make() for change in changes(RESIZED, specs, base)]
    images = [one for one in made if one["scales"].tolist() == [1, 1, 2, 2]]
    assert any(np.array_equal(one["x"], usual) for one in images)
    assert any(not np.array_equal(one["x"], usual) for one in images)
    settings = {tuple(one["scales"]) for one in made if np.array_equal(one["x"], usual)}
    assert {tuple(one["scales"]) for one in made[len(DATA) :]} <= settings


def test_values_are_those_that_the_model_compares_with_and_their_neighbors() -> None:
    """Drawn for the data, all three and no others; one after the other for what steers."""
    model = text_model(
        "g (float[1000] x, float[1] k) => (bool[1000] y) { s = Add (x, k)  y = Greater (s, limit) }",
        limit=np.array([777.0], np.float32),
    )
    specs = input_specs(model)
    base = cases(specs, (0,), {})[0]
    drawn = [{*change(base).make()["x"].tolist()} for change in changes(model, specs, base)]
    assert {776.0, 777.0, 778.0} in drawn
    assert {776.0, 777.0, 778.0} <= {float(change(base).make()["k"][0]) for change in changes(model, specs, base)}


def test_the_first_candidates_are_other_seeds_of_each_size_that_ran() -> None:
    """The smallest is one with elements; sizes that the original refused are not tried."""
    model = text_model("g (float[n, 4] x) => (float[n, 4] y) { y = Relu (x) }")
    specs, shapes = input_specs(model), {"n": (3, 0, 2, 9, 20)}
    ran = [CaseRow("normal", 0, {"x": (n, 4)}, 0.0) for n in (3, 0, 2, 9)]
    comparison = cast(Comparison, SimpleNamespace(cases=[*ran, CaseRow("normal", 0, {"x": (20, 4)}, 0.0, "refused")]))

    def tried(shapes: Mapping[str, Sequence[int]], count: int) -> list[int]:
        found = itertools.islice(better_inputs._candidates(model, specs, shapes, comparison), count)
        return [case.shapes["x"][0] for case in found]

    assert tried(shapes, 5) == [3, 2, 9, 9, 2]
    assert tried({"n": (3, 2)}, 4) == [3, 2, 3, 2]


def test_masks_keys_and_maps_are_not_set_to_constants() -> None:
    """Entries of a mask are 0 and 1, and the keys of a map are those that are known; other small inputs are set."""
    model = text_model("g (float[1000] x, float[1] k) => (float[1000] y) { y = Add (x, k) }")
    data, small = input_specs(model)
    others = (
        replace(small, role=InputRole("mask")), replace(small, known_keys=(1, 2)),
        replace(small, type_="map(int64,tensor(float))"), small,
    )  # fmt: skip
    for spec, moves in zip(others, (False, False, False, True), strict=True):
        base = cases((data, small), (0,), {})[0]
        found = {change(base).make()["k"].item() for change in itertools.islice(changes(model, (data, spec), base), 40)}
        assert (8.0 in found) == moves


def test_a_count_of_0_is_no_element_and_a_value_of_0_is_one() -> None:
    """Of what a sequence holds only its length says nothing where it is empty."""
    model = text_model("g (float[n] x) => (int64 z, float[n] y) { s = Size (x)  z = Sub (s, s)  y = Relu (x) }")
    session = ort_session(model, CPU)
    comparison = cast(Comparison, SimpleNamespace(original=SimpleNamespace(session=session), outputs=["z", "y"]))
    case = cases(input_specs(model), (0,), {"n": (3,)})[0]
    assert better_inputs._yields_finite(comparison, case, {"z"})
    assert better_inputs._yields_finite(comparison, case, {"y"})
    assert not better_inputs._yields_finite(comparison, case, set())
    sequence = text_model("g (float[n] x) => (seq(float[m]) s) { s = SplitToSequence <keepdims = 1> (x) }")
    comparison = cast(
        Comparison, SimpleNamespace(original=SimpleNamespace(session=ort_session(sequence, CPU)), outputs=["s"])
    )
    for n, some in ((0, False), (3, True)):
        one = cases(input_specs(sequence), (0,), {"n": (n,)})[0]
        assert better_inputs._yields_finite(comparison, one, {"s.length"}) == some
