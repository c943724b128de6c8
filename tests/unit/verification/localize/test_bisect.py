"""Bisecting looks at inputs that can show the fault, few of them, the cheapest first."""

import math

from onnxfuse.verification.inputs.inputs import KINDS, Case
from onnxfuse.verification.localize.bisect import CASES, cases_to_bisect


def _case(kind: str, batch: int, seed: int = 0) -> Case:
    return Case(kind, seed, {"x": (batch, 32)}, dict)


def test_every_kind_that_failed_has_its_smallest_case_tried_before_any_second_one() -> None:
    """Many small normal cases do not push out the edges, where a fault below normal rounding shows."""
    many = [_case("normal", batch, seed) for seed in range(5) for batch in (1, 3, 8)]
    tried = cases_to_bisect([*many, _case("edge", 8), _case("wide", 3), _case("edge", 3)])
    assert [(c.name, c.shapes["x"][0]) for c in tried[:3]] == [("normal", 1), ("wide", 3), ("edge", 3)]
    assert len(tried) == CASES >= len(KINDS)


def test_what_is_tried_is_what_failed_and_the_smaller_ones_of_a_kind_first() -> None:
    """Nothing is tried twice, and nothing left out while there is room."""
    failed = [_case("normal", 8), _case("normal", 1), _case("normal", 3)]
    tried = cases_to_bisect(failed)
    assert {id(c) for c in tried} == {id(c) for c in failed}
    sizes = [math.prod(c.shapes["x"]) for c in tried]
    assert sizes == sorted(sizes)
