"""An attempt to grow a region."""

from tests.support.small import optimize, parse


def test_what_is_too_little_is_counted_from_the_least_that_a_rule_wants() -> None:
    """The anchor, and the pointwise nodes without which its kernel saves nothing: one of two matched."""
    text = "g (float16[64,64] x) => (float16[64,64] y) <float16[64,64] w = {1%s}> { y = MatMul (x, w) }"
    _, report = optimize(parse(text % (",0" * (64 * 64 - 1))), "gemm")
    (near,) = report.stopped
    assert "too little" in near.refusal.reason
    assert (near.refusal.depth, near.refusal.size) == (1, 2)
