"""One launch for two values to which the same is done beside what both read: RoPE of queries and of keys."""

import pytest

from tests.support.small import assert_same_numbers, ops, optimize, parse

CUTS = "int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}"
ROTATION = "Mul Slice Slice Neg Concat Mul Add"
OTHER = ROTATION.replace("Neg", "Abs")


def rotated(x: str, y: str, cos: str = "cos", sin: str = "sin") -> str:
    """Return RoPE of one value, with names of its own inside."""
    return f"""{y}a = Mul ({x}, {cos})
  {y}l = Slice ({x}, zero, half, last) {y}r = Slice ({x}, half, end, last)
  {y}m = Neg ({y}r) {y}t = Concat <axis = -1> ({y}m, {y}l)
  {y}b = Mul ({y}t, {sin}) {y} = Add ({y}a, {y}b)
  """


def net(nodes: str, k: str = "N,H,S,8") -> str:
    return f"""<ir_version: 8, opset_import: ["" : 17]>
g (float[N,H,S,8] q, float[{k}] k, float[S,8] cos, float[S,8] sin) => (float[N,H,S,8] y, float[{k}] z) <{CUTS}> {{
  {nodes}
}}"""


@pytest.mark.parametrize(
    ("text", "fused"),
    [
        (net(rotated("q", "y") + rotated("k", "z")), [f"{{{ROTATION} {ROTATION}}}"]),
        (net(rotated("q", "y") + rotated("k", "z"), "N,2,S,8"), [f"{{{ROTATION}}}"] * 2),
        (net(rotated("q", "y") + "p = Softmax (y) " + rotated("p", "z")), ["Softmax", *[f"{{{ROTATION}}}"] * 2]),
        (net(rotated("q", "y") + rotated("k", "z", "sin", "cos")), [f"{{{ROTATION}}}"] * 2),
        (net(rotated("q", "y") + rotated("k", "z").replace("Neg", "Abs")), [f"{{{r}}}" for r in (ROTATION, OTHER)]),
    ],
    ids=["queries and keys", "fewer heads of keys", "one of the other", "other angles", "other work"],
)  # fmt: skip
def test_what_is_done_to_two_values_is_one_kernel(text: str, fused: list[str]) -> None:
    """Where one shape holds for both, neither waits for the other, and they do the same."""
    model, _ = optimize(parse(text), "movement")
    assert sorted(ops(model)) == sorted(fused)
    assert_same_numbers(parse(text), model)


def test_as_many_values_as_a_kernel_writes() -> None:
    """Four rotations by one table; a fifth has a kernel of its own."""
    names = [(f"x{i}", f"y{i}") for i in range(5)]
    inputs, outputs = (", ".join(f"float[N,H,S,8] {pair[n]}" for pair in names) for n in (0, 1))
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
g ({inputs}, float[S,8] cos, float[S,8] sin) => ({outputs}) <{CUTS}> {{
  {"".join(rotated(*pair) for pair in names)}
}}"""
    model, _ = optimize(parse(text), "movement")
    assert sorted(ops(model)) == sorted(["{" + " ".join([ROTATION] * 4) + "}", f"{{{ROTATION}}}"])
    assert_same_numbers(parse(text), model)


def test_a_cast_for_each_reader_is_one() -> None:
    """As transformers exports ModernBERT: queries and keys each have a Cast of the cosines, and of the sines."""
    casts = "qc = Cast <to = 1> (cos) qs = Cast <to = 1> (sin) kc = Cast <to = 1> (cos) ks = Cast <to = 1> (sin)\n  "
    text = net(casts + rotated("q", "y", "qc", "qs") + rotated("k", "z", "kc", "ks"))
    text = text.replace("float[S,8] cos, float[S,8] sin", "float16[S,8] cos, float16[S,8] sin")
    model, _ = optimize(parse(text), "movement")
    assert ops(model) == ["Cast", "Cast", f"{{{ROTATION} {ROTATION}}}"]
    assert_same_numbers(parse(text), model)
