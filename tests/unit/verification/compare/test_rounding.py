"""Which rounding may explain an error beyond the budget: none under which a fault could hide."""

from typing import Any

import pytest

from onnxfuse.verification.compare.rounding import rounding_behind
from onnxfuse.verification.tolerance.user_tolerances import Tolerated
from tests.support.verification.reports import EMPTY, UNDECIDED, WRONG, report, row

CUDA = {"provider": "CUDAExecutionProvider"}


@pytest.mark.parametrize("facts", [CUDA, {"fused_provider": "CUDAExecutionProvider"}])
def test_products_of_float32_may_be_rounded_to_tf32_where_a_session_of_cuda_ran(facts: dict[str, Any]) -> None:
    """Whichever of both models ran there, in mismatches as in outputs that could not be judged."""
    for wrong in (WRONG, UNDECIDED):
        assert rounding_behind(report(row(**wrong), row("z"), **facts), halves=False, wide=False) == "tf32"
    assert rounding_behind(report(row(**WRONG)), halves=False, wide=False) == ""


@pytest.mark.parametrize(
    ("facts", "dtype", "measured"),
    [
        (CUDA, "float16", WRONG),
        (CUDA, "int64", WRONG),
        (CUDA | {"without_tf32": "the file says so"}, "float32", WRONG),
        (CUDA | {"truth": "float32"}, "float32", WRONG),
        (CUDA | {"problems": ("a kernel did not run",)}, "float32", WRONG),
        (CUDA, "float32", {}),
        (CUDA, "float32", EMPTY),
        (CUDA, "float32", WRONG | {"broken": "a number where the original has none"}),
        (CUDA, "float32", WRONG | {"unlike": True, "broken": "shape [2] for [3]"}),
    ],
)
def test_tf32_explains_no_other_fault(facts: dict[str, Any], dtype: str, measured: dict[str, Any]) -> None:
    """Other types, sessions without it, laws that know no tolerance, problems that are no numbers, nothing wrong."""
    assert rounding_behind(report(row(dtype=dtype, **measured), **facts), halves=False, wide=True) == ""


def test_one_wrong_output_of_another_type_is_enough() -> None:
    """Rounding must explain all that is wrong, or it explains nothing."""
    both = report(row(**WRONG), row("z", dtype="float64", **WRONG), **CUDA)
    assert rounding_behind(both, halves=False, wide=False) == ""


def test_who_gives_a_tolerance_has_decided() -> None:
    """A wrong output that was judged by it is not judged again."""
    tolerance = Tolerated(0.0, 0.1, 3, 5.0, (0, 3))
    wrong = row(tolerance=tolerance, **WRONG)
    assert wrong.verdict == "mismatch"
    assert rounding_behind(report(wrong, **CUDA), halves=True, wide=True) == ""


@pytest.mark.parametrize(
    ("halves", "wide", "dtype", "facts", "expected"),
    [
        (True, True, "float16", {}, "half"),
        (True, True, "float32", {}, "half"),
        (True, True, "int32", {}, ""),
        (False, True, "float32", {}, ""),
        # without the comparison in float32, a fault could hide behind the rounding
        (True, False, "float16", {}, ""),
        (True, True, "float16", CUDA, ""),
    ],
)
def test_halves_are_rounded_where_the_cpu_keeps_more(
    halves: bool, wide: bool, dtype: str, facts: dict[str, Any], expected: str
) -> None:
    """ONNX Runtime's CPU keeps float32 between operators that have no kernel for half precision."""
    assert rounding_behind(report(row(dtype=dtype, **WRONG), **facts), halves=halves, wide=wide) == expected


def test_values_on_a_grid_are_held_to_some_run_on_any_provider() -> None:
    """So nothing hides, with no comparison in float32 and though a law is broken; but not among other outputs."""
    facts = WRONG | {"grid": 0.25, "broken": "another step than any run gives"}
    assert rounding_behind(report(row(**facts), **CUDA), halves=True, wide=False) == "half"
    assert rounding_behind(report(row(**facts), row("z", **WRONG)), halves=True, wide=False) == ""
    assert rounding_behind(report(row(**facts)), halves=False, wide=False) == ""
    assert rounding_behind(report(row(**facts), **CUDA), halves=False, wide=False) == "tf32"
    assert rounding_behind(report(row(dtype="int8", **facts), **CUDA), halves=False, wide=False) == ""
