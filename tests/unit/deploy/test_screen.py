"""The screen of a kernel pack: its kernels, its ranges, and what is planned at run time."""

from typing import Any

from onnxfuse.deploy.screen import compiled, covered
from tests.support.screens import lines

PROGRAM = {"op": "A", "shapes": 4, "left": 0, "why": "", "whole": True}


def facts(**more: Any) -> dict[str, Any]:
    """Return the facts of a pack of two targets that covers everything."""
    targets = {"sm_90a": {"kernels": 2, "bytes": 2_000_000}, "compute_90": {"kernels": 1, "bytes": 1_000_000}}
    return {
        "targets": targets, "bytes": 3_000_000, "seconds": 1.25, "target": "m.onnx.kernels", "ranges": {},
        "programs": [PROGRAM], "without": {}, **more,
    }  # fmt: skip


def test_a_new_pack_is_counted_over_its_targets() -> None:
    """PTX runs on later GPUs, too."""
    verdict, *rest = lines(compiled(facts()))
    assert verdict == "compiled: 3 kernels, 3.0 MB, in 1.2 s: m.onnx.kernels"
    assert [" ".join(line.split()) for line in rest] == [
        "for kernels size", "sm_90a 2 2.0 MB", "compute_90 and later 1 1.0 MB",
        "all sizes in these ranges are covered: 4 combinations of 1 fused op, sizes and GPU checked",
    ]  # fmt: skip


def test_ranges_say_whether_they_were_assumed() -> None:
    """Then the flag that sets them is named."""
    shown = lines(covered(facts(ranges={"batch": (1, 8), "n": (1, 64)}, assumed=["n"])))
    assert "batch: 1..8" in shown
    assert "n: 1..64 (assumed: --shape)" in shown


def test_what_is_not_covered_is_said_once_for_each_reason() -> None:
    """With the shapes that are planned at run time; covered is then said of nothing."""
    one = {**PROGRAM, "left": 1, "why": "too many tiles"}
    shown = lines(covered(facts(programs=[PROGRAM, one, one, {**one, "left": 2, "why": "too long"}])))
    assert [line for line in shown if line.startswith("not covered")] == [
        "not covered: 1 of 4 shapes of A is planned at run time: too many tiles",
        "not covered: 2 of 4 shapes of A are planned at run time: too long",
    ]
    assert not any("each evaluated" in line for line in shown)


def test_ops_are_counted_once_and_a_sample_is_called_one() -> None:
    """Two programs may be of one op; one whose shapes are a sample is enough for the note."""
    note = "note: some ops have too many shapes to check each; a sample was checked"
    assert note not in lines(covered(facts()))
    shown = lines(covered(facts(programs=[PROGRAM, {**PROGRAM, "whole": False}, {**PROGRAM, "op": "B"}])))
    assert "all sizes in these ranges are covered: 12 combinations of 2 fused ops, sizes and GPU checked" in shown
    assert note in shown


def test_ops_without_a_kernel_are_named() -> None:
    """With the reason, and who computes them; what is covered are the others."""
    shown = lines(covered(facts(without={"C": "float8"})))
    assert "no kernel of C, which ONNX Runtime computes: float8" in shown
    assert any(line.startswith("all sizes in these ranges are covered of what has a kernel: ") for line in shown)
