"""What a verification may cost: seconds and memory, and what is left out is told."""

import itertools
import time
import types
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.support import process_limits
from onnxfuse.verification import verify
from onnxfuse.verification.cases import limits
from onnxfuse.verification.cases.limits import operations, peak
from onnxfuse.verification.compare import case_comparison
from onnxfuse.verification.reference import reference
from onnxfuse.verification.reference.reference import Float64
from tests.support.verification.small_models import text_model

CPU = ["CPUExecutionProvider"]
WIDE = text_model(
    "g (float[n, 1000] x) => (float[n, 1000] y) { a = Relu (x)  b = Exp (a)  c = Add (a, b)  y = Tanh (c) }"
)
"""At most three values at once: a, b and c."""


def test_the_peak_counts_what_is_held_at_once() -> None:
    """In the model's own types, or with every float as wide as the truth's."""
    assert peak(WIDE, {"x": (10, 1000)}) == 3 * 10 * 1000 * 4
    assert peak(WIDE, {"x": (10, 1000)}, float_bytes=8) == 3 * 10 * 1000 * 8
    weighted = "g (float[n, 100] x) => (float[n, 100] y) { a = Add (x, w)  b = Exp (a)  y = Add (a, b) }"
    assert peak(text_model(weighted, w=np.ones(100, np.float32)), {"x": (10, 100)}) == 3 * 10 * 100 * 4


def test_a_dimension_that_nobody_knows_counts_as_one() -> None:
    """A count of what is not zero is known when it runs."""
    model = text_model(
        "g (float[n] x) => (int64[rank, found] y) { z = NonZero (x)  y = Neg (z) }",
    )
    assert peak(model, {"x": (100,)}) == 100 * 4 + 8
    assert peak(WIDE, {}) == 3 * 1000 * 4


def test_values_of_unknown_rank_are_no_work() -> None:
    """How many axes a Squeeze removes is known when it runs; the product of what it leaves counts by its output."""
    model = text_model(
        "g (float[n, 1, 4] x, bool[n] keep) => (float[k, 2] y) {"
        " c = Compress <axis = 0> (x, keep)  s = Squeeze (c)  y = Gemm (s, w) }",
        w=np.ones((4, 2), np.float32),
    )
    assert limits.operations(model, {"x": (3, 1, 4), "keep": (3,)}) > 0


def test_where_nobody_tells_the_free_memory_it_is_four_gigabytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which, as of all that is free, half is taken; a restart takes no other share."""
    monkeypatch.setattr(limits, "memory_left", lambda: 0)
    assert limits.Limits().memory == 2 << 30
    monkeypatch.setattr(limits, "memory_left", lambda: 1000)
    assert limits.Limits().memory == 500
    assert limits.Limits(7, 600).restarted().memory == 600


def test_without_time_one_case_is_run() -> None:
    """The verdict is about that one, and says what is left out."""
    report = verify(WIDE, WIDE, providers=CPU, seconds=1e-9)
    assert report.ok
    assert [bool(c.note) for c in report.cases] == [False, True, True, True, True, True]
    assert report.summary == (
        "same within the error budget: 1 output, 1 case; 5 cases left out: the time of 1e-09 s is used up (--time)"
    )
    assert report.as_dict()["limits"]["seconds"] == 1e-9


@pytest.mark.parametrize(
    ("quick", "truth", "ran"), [(0, "float32", 6), (4, "float64", 1)], ids=["the first case", "a later one"]
)
def test_a_truth_that_takes_the_time_away_is_left(
    monkeypatch: pytest.MonkeyPatch, quick: int, truth: str, ran: int
) -> None:
    """At the first case, for float32, and all cases are run; at a later one that is left out. Both are told.

    A case has four nodes, each of which takes 20 s of the 60 from a certain one on, by a clock that runs ahead.
    """
    ahead, nodes = [0.0], itertools.count()

    def read(evaluator: Float64, operator: str, inputs: list[Any]) -> list[Any]:
        ahead[0] += 20.0 * (next(nodes) >= quick)
        return inputs

    clock = types.SimpleNamespace(perf_counter=lambda: time.perf_counter() + ahead[0], thread_time=time.thread_time)
    for module in (reference, limits, case_comparison):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(Float64, "read", read)
    report = verify(WIDE, WIDE, providers=CPU, seconds=60.0)
    assert (report.ok, report.truth) == (True, truth)
    notes = [c.note for c in report.cases]
    assert notes == [""] * ran + ["left out: the time of 60 s is used up (--time)"] * (6 - ran)
    why = "not possible in float64: the time for it is used up at Exp (--time)"
    assert report.truth_why == (why if truth == "float32" else "")


def test_large_cases_are_left_out_for_their_memory() -> None:
    """Those of 8 rows; the smallest is run in any case, and its truth is that in which it fits."""
    three_rows = 3 * peak(WIDE, {"x": (3, 1000)})
    report = verify(WIDE, WIDE, providers=CPU, memory=three_rows)
    assert {c.shapes["x"][0] for c in report.cases if c.note} == {8}
    assert all("left out: about 0.3 MB, and it may take 0.1 MB (--memory)" in c.note for c in report.cases if c.note)
    assert report.ok
    least = verify(WIDE, WIDE, providers=CPU, memory=1)
    assert {c.shapes["x"][0] for c in least.cases if not c.note} == {1}
    assert (least.truth, least.truth_why) == ("float32", "about 0.0 MB in float64, of 0.0 MB")


def test_a_truth_that_turns_out_too_large_is_computed_in_float32() -> None:
    """No inference sees the rows that a Loop piles up: 40 MB of float64, of the 20 that it may take."""
    grows = text_model(
        "g (float[n, 50] x, int64[1] rows) => (float[m, 50] y) { "
        "shape = Concat <axis = 0> (rows, fifty)  big = Expand (one, shape)  s = Softmax (big)  y = Mul (s, big) }",
        fifty=np.array([50]), one=np.ones((1, 1), np.float32),
    )  # fmt: skip
    inputs = {"x": np.ones((1, 50), np.float32), "rows": np.array([100_000])}
    report = verify(grows, grows, inputs=inputs, providers=CPU, memory=20_000_000)
    assert report.truth == "float32"
    assert "Unable to allocate" in report.truth_why
    assert verify(grows, grows, inputs=inputs, providers=CPU, memory=1 << 30).truth == "float64"


def test_memory_is_limited_inside_the_block_alone() -> None:
    """NumPy raises what it raises where the system has no more."""
    with process_limits.memory(120_000_000):
        assert np.ones(10_000_000).nbytes == 80_000_000
        with pytest.raises(MemoryError):
            np.ones(80_000_000)
    assert np.ones(50_000_000).nbytes == 400_000_000


def test_sizes_are_told_in_the_unit_that_shows_them() -> None:
    """From a tenth of a gigabyte on in gigabytes."""
    assert (limits.gigabytes(99e6), limits.gigabytes(1e8)) == ("99.0 MB", "0.1 GB")


def test_functions_and_bodies_do_not_disturb_the_peak() -> None:
    """What a body reads is held until its node."""
    branch = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]> g (float[n, 100] x, bool c) => (float[n, 100] y) {
        a = Relu (x)  b = Relu (a)
        y = If (c) <then_branch = t () => (float[n, 100] u) { u = Add (a, b) },
                    else_branch = e () => (float[n, 100] v) { v = Identity (b) }> }"""
    )
    assert peak(branch, {"x": (10, 100), "c": ()}) == 3 * 10 * 100 * 4 + 1


def test_what_is_used_up_is_the_time_that_the_user_knows() -> None:
    """A part's own limit is what was left of it, and is not told."""
    whole = limits.Limits(10.0)
    part = whole.at_most(3.0)
    assert (part.seconds, part.at_most(1.0).seconds) == (3.0, 1.0)
    assert whole.used_up == part.used_up == part.at_most(1.0).used_up == "the time of 10 s is used up (--time)"
    assert part.restarted().used_up == whole.used_up
    assert whole.at_most(20.0).seconds <= 10.0
    assert not whole.over
    assert limits.Limits(-1.0).over


def test_the_work_of_a_case_is_its_arithmetic_and_what_it_touches() -> None:
    """An unknown extent counts as 1, an operator of which nothing is known as what it reads and writes."""
    sums = text_model("g (float[n, 8] x) => (float[n, 8] y) { y = Add (x, x) }")
    assert operations(sums, {"x": (5, 8)}) == 40 + 2 * 40
    product = text_model("g (float[n, 8] x) => (float[n, 4] y) { y = MatMul (x, w) }", w=np.ones((8, 4), np.float32))
    assert operations(product, {"x": (5, 8)}) == 2 * 5 * 8 * 4 + (40 + 32 + 20)
    found = text_model("g (float[n] x) => (int64[rank, found] y) { z = NonZero (x)  y = Neg (z) }")
    nonzero = operations(text_model("g (float[n] x) => (int64[rank, found] z) { z = NonZero (x) }"), {"x": (100,)})
    assert operations(found, {"x": (100,)}) == nonzero + 1 + 2
    own = text_model("g (float[n, 8] x) => (float[n, 8] y) { y = Relu (x) }")
    own.graph.node[0].domain = "own"
    own.opset_import.add(domain="own", version=1)
    assert operations(own, {"x": (5, 8)}) == 40, "nothing is known of what it gives"


def test_costs_of_a_case_are_those_of_its_shapes() -> None:
    """Of both evaluations, without the weights; inferred once for equal shapes."""
    costs = limits.CaseCosts(WIDE)
    shapes = {"x": (10, 1000)}
    assert costs.memory(shapes) == limits.EVALUATIONS * peak(WIDE, shapes)
    assert costs.operations(shapes) == operations(WIDE, shapes)
    assert costs.memory({"x": (20, 1000)}) == 2 * costs.memory(shapes)
