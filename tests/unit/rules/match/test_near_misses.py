"""Which attempts came near: ranked, without those that say nothing, and what became of a fusion that was lost."""

import pytest

from onnxfuse.rules.match import near_misses
from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.refusal import Refusal
from onnxfuse.rules.match.report import Applied, Near, OptimizeReport

RANK = Cause("rank", "x", seen="2", wanted="3")
WRONG_OPERATOR = Cause("operator", seen="Mul", wanted="Add")


def near(
    rule: str, root: str, depth: int, size: int, *, node: str = "stop", cause: Cause = WRONG_OPERATOR,
    nodes: tuple[str, ...] = (),
) -> Near:  # fmt: skip
    """Return an attempt that matched `depth` of `size` nodes."""
    return Near(rule, root, Refusal(node, cause, depth, size, nodes))


def report(*misses: Near, applied: tuple[Applied, ...] = ()) -> OptimizeReport:
    """Return a report with these attempts."""
    return OptimizeReport(applied=list(applied), stopped=list(misses))


def test_the_nearest_is_first() -> None:
    """By how much more was matched than is missing; equal ones by the rule's name."""
    misses = [near("far", "Div d", 2, 9), near("close", "Div e", 8, 9), near("also", "Div f", 8, 9)]
    assert [m.rule for m in near_misses.ranked(report(*misses))] == ["also", "close", "far"]


def test_a_part_of_a_longer_attempt_of_the_same_rule_is_left_out() -> None:
    """Of another rule, or at other nodes, it stays."""
    longer = near("norm", "Div a", 3, 4, nodes=("a", "b", "c"))
    part = near("norm", "Sub b", 2, 4, nodes=("b", "c"))
    other = near("gelu", "Sub b", 2, 4, nodes=("b", "c"))
    apart = near("norm", "Sub x", 2, 4, nodes=("x", "y"))
    found = near_misses.ranked(report(longer, part, other, apart))
    assert {(m.rule, m.root) for m in found} == {("norm", "Div a"), ("gelu", "Sub b"), ("norm", "Sub x")}


@pytest.mark.parametrize(
    ("miss", "telling"),
    [
        (near("norm", "Div a", 4, 5), True),
        (near("conv", "Conv c", 1, 1, cause=RANK), True),
        # one elementwise node, or one that moves data: half of all rules begin with such
        (near("gelu", "Add a", 1, 1, cause=RANK), False),
        (near("heads", "Reshape r", 1, 1, cause=RANK), False),
        (near("heads", "Slice r", 1, 1, cause=RANK), False),
        (near("gelu", "Mul a", 1, 8), False),
    ],
)
def test_an_attempt_tells_something_if_it_met_more_than_any_node_is(miss: Near, telling: bool) -> None:
    """More than one operator of the pattern, or one that does not stand everywhere."""
    assert near_misses.telling(miss) is telling


def test_a_lost_fusion_is_looked_for_where_it_began() -> None:
    """At its root; else where its nodes are reached; else anywhere, what nothing fused first; never more than three."""
    at_root = near("norm", "Div root", 2, 4)
    reaching = near("norm", "Sqrt s", 2, 4, nodes=("s", "root"))
    elsewhere = [near("norm", f"Div d{n}", 2, 4) for n in range(4)]
    everything = report(*elsewhere, reaching, at_root, near("gelu", "Div root", 3, 4))
    assert near_misses.lost(everything, "norm", ["Div root"]) == [at_root]
    assert near_misses.lost(report(*elsewhere, reaching), "norm", ["Div root"]) == [reaching]
    fused = Applied("other", "op", ("Div d0", "Div d1"))
    left = near_misses.lost(report(*elsewhere, applied=(fused,)), "norm", ["Div root"])
    assert [m.root for m in left] == ["Div d2", "Div d3", "Div d0"]
    # where the rule still begins nothing is lost
    still = report(at_root, *elsewhere, applied=(Applied("norm", "op", ("Div root",), root="Div root"),))
    assert at_root not in near_misses.lost(still, "norm", ["Div root"])[:1] or len(elsewhere) == 0


def test_a_node_that_another_rule_took_is_told_with_that_rule() -> None:
    """Rewrites take nothing; of the nodes that one rule took the first is named, the others counted."""
    larger = Applied("attention", "op", ("Softmax s", "MatMul m", "Mul k"), root="MatMul m")
    rewrite = Applied("reshape", "", ("Softmax t",))
    own = Applied("softmax", "op", ("Softmax u",), root="Softmax u")
    made = report(applied=(larger, rewrite, own))
    by = near_misses.taken(made, "softmax", ["Softmax s", "Softmax t", "Softmax u"])
    assert by == {"Softmax s": larger}
    assert near_misses.why_taken(by) == ["attention took Softmax s with 2 other nodes"]
    many = {f"Softmax s{n}": larger for n in range(5)} | {"Softmax u": own}
    assert near_misses.why_taken(many) == [
        "attention took Softmax s0 with 2 other nodes (and 4 more like it)",
        "softmax took Softmax u alone",
    ]
    half = Applied("movement", "op", ("Cast x", "Transpose y.float16.nhwc"), root="Transpose y.float16.nhwc")
    assert near_misses.taken(report(applied=(half,)), "lone", ["Transpose y.nhwc"]) == {"Transpose y.nhwc": half}
    assert near_misses.taken(report(applied=(half,)), "movement", ["Transpose y.nhwc"]) == {}


def test_what_stopped_a_rule_is_looked_for_at_its_own_nodes() -> None:
    """And the fused op beside it, if that was the reason."""
    cause = RANK._replace(seen="2; ac: already fused")
    there, elsewhere = near("gemm", "MatMul h", 1, 2, cause=cause), near("gemm", "MatMul g", 1, 2)
    scan = Applied("scan", "op", ("CumSum c", "Relu ac"), root="CumSum c")
    made = report(there, elsewhere, applied=(scan,))
    assert near_misses.began_at(made, "gemm", ["MatMul h"]) == [there]
    beside = near_misses.fused_beside(made, [there])
    assert beside == {"Relu ac": scan}
    assert near_misses.why_taken(beside) == ["scan took Relu ac with 1 other node"]
    assert near_misses.fused_beside(made, [elsewhere]) == {}


def test_reasons_and_facts() -> None:
    """A line for each attempt, the advice below a reason, and plain data with the same."""
    miss = near("norm", "Div a", 2, 4, node="b", cause=RANK)
    assert near_misses.why([miss]) == ["norm at Div a: stopped at b: rank(x) is 2, expected 3"]
    (facts,) = near_misses.facts([miss], report(miss, applied=(Applied("r", "op", ("Div a",)),)))
    assert (facts["rule"], facts["depth"], facts["kind"], facts["seen"], facts["fused_otherwise"]) == (
        "norm", 2, "rank", "2", True,
    )  # fmt: skip
    assert facts["telling"] == near_misses.telling(miss)
    lines = near_misses.miss_text(miss.refusal).splitlines()
    assert lines[0] == miss.refusal.reason
    assert len(lines) == 1 + bool(facts["hint"])
    assert near_misses.reason([]) == ""
    assert near_misses.fused_nodes(report(applied=(Applied("r", "op", ("Div a", "Mul b")),))) == {"Div a", "Mul b"}
