"""The key `about` of a rewrite: where it does not hold nothing is told of the rule."""

import pytest

from tests.support.small import optimize, parse


@pytest.mark.parametrize(
    ("perm", "shape", "told"),
    [
        ("0,5,1,3,2,4", "-1,12,4,15", ["dim C of y is 12, of x 6"]),
        ("0,5,1,3,2,4", "-1,6,8,3,5", []),
        ("0,2,1,3,4,5", "-1,6,8,15", []),
    ],
)
def test_nothing_is_told_of_what_a_rewrite_is_not_about(perm: str, shape: str, told: list[str]) -> None:
    """Another rank of the image, another Transpose: no windows that become one; other extents are."""
    rank = shape.count(",") + 1
    model = parse(f"""g (float[N,2,3,4,5,6] x) => (float[{",".join("ABCDE"[:rank])}] y)
    <int64[{rank}] shape = {{{shape}}}> {{ t = Transpose <perm = [{perm}]> (x)  y = Reshape (t, shape) }}""")
    _, report = optimize(model, "window_images")
    assert not report.applied
    assert [near.refusal.reason for near in report.stopped] == told
