"""Which of several refusals came nearest, and which are worth a line in a report."""

from typing import Any

import pytest

from onnxfuse.rules.match.cause import Cause
from onnxfuse.rules.match.refusal import Refusal, nearness


def refusal(kind: str, depth: int, size: int = 4, **more: Any) -> Refusal:
    """Return why an attempt stopped behind so many nodes of a pattern."""
    return Refusal("n", Cause(kind, subject="x", seen="Mul", wanted="Add"), depth, size)._replace(**more)


def test_the_attempt_that_got_furthest_is_nearest() -> None:
    """From the farthest to the nearest: each difference decides before the next one does."""
    ranked = [
        refusal("operator", 1, 2),
        refusal("operator", 2, 9),
        refusal("operator", 2, 4),
        refusal("other value", 3, 5),
        refusal("operator", 3, 5),
        refusal("rank", 3, 5, whole=True),
        refusal("rank", 3, 5, whole=True, held=1),
        refusal("operator", 4, 6),
        refusal("operator", 4, 4),
    ]
    keys = [one.nearness for one in ranked]
    assert keys == sorted(keys)
    assert len(set(keys)) == len(keys)


def test_a_pattern_of_one_node_is_no_farther_than_others() -> None:
    """All of it has matched."""
    assert nearness(1, 0, "rank", True, 0) > nearness(2, 2, "operator", False, 0)
    assert nearness(1, 1, "operator", False, 0) < nearness(2, 9, "operator", False, 0)


@pytest.mark.parametrize(
    ("one", "near", "far", "trivial"),
    [
        (refusal("operator", 0), False, True, True),
        (refusal("operator", 1), False, True, True),
        (refusal("operator", 2), True, False, False),
        (refusal("operator", 2, 5), False, False, False),
        (refusal("operator", 1, 2), True, False, True),
        (refusal("operator", 0, 1), True, False, True),
        (refusal("operand", 1), False, True, True),
        (refusal("not constant", 1), False, False, False),
        (refusal("not constant", 2), True, False, False),
        (refusal("constant", 1), False, True, False),
        (refusal("constant", 2, 9), True, False, False),
        (refusal("rank", 1), False, False, False),
        (refusal("rank", 4), True, False, False),
        (refusal("rank", 1, 1), True, False, False),
        (refusal("graph output", 1), True, False, False),
    ],
    ids=lambda one: f"{one.cause.kind} {one.depth} of {one.size}" if isinstance(one, Refusal) else "",
)
def test_what_is_worth_a_line(one: Refusal, near: bool, far: bool, trivial: bool) -> None:
    """A wrong operator where as much has matched as is missing, a wrong number behind the first node, a leak always."""
    assert (one.near, one.far, one.trivial) == (near, far, trivial)


def test_what_is_missing_and_what_stands_alone() -> None:
    """The only obstacle has the rest of the pattern matched, in whatever order."""
    assert (refusal("operator", 3).missing, refusal("operator", 5).missing, refusal("too little", 2, 0).missing) == (
        1, 0, 0,
    )  # fmt: skip
    assert not refusal("constant", 3).alone
    assert refusal("constant", 4).alone
    assert refusal("constant", 2, nodes=("a", "b", "c", "d")).alone


def test_the_reason_says_what_the_rule_s_names_are() -> None:
    assert refusal("operator", 1).reason == "is a Mul, the rule wants an Add"
    cause = Cause("rank", subject="x", seen="3", wanted="2")
    assert Refusal("n", cause, 1).reason == "rank(x) is 3, expected 2"
    names = (("x", "hidden"), ("w", "weight"))
    assert Refusal("n", cause, 1, names=names).reason == "rank(x) is 3, expected 2 (x is 'hidden', w is 'weight')"
