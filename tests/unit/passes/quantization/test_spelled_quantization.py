"""Quantization in elementwise nodes, as torch.export and Brevitas write it, becomes 8-bit work as any other."""

import numpy as np
import pytest

from tests.support.small import ops, optimize, parse, run

TERMS, COLUMNS = 16, 8
WEIGHTS = ",".join(str(n * 37 % 255 - 127) for n in range(TERMS * COLUMNS))
SCALES = ",".join(f"0.01{n}" for n in range(COLUMNS))
WEIGHT = {
    "one scale": f"float sw = {{0.02}}, int8[16,8] w = {{{WEIGHTS}}}",
    "of channels, zero points": f"float[8,1] none = {{0,0,0,0,0,0,0,0}}, float[8,1] sw = {{{SCALES}}}, "
    f"int8[8,16] w = {{{WEIGHTS}}}",
    "of channels": f"float[8,1] sw = {{{SCALES}}}, int8[8,16] w = {{{WEIGHTS}}}",
}


def steps(x: str, s: str, z: str, reciprocal: bool, inside: bool) -> str:
    """Return the nodes that quantize `x` as `q`: by a quotient or a product, the zero point behind or within Round."""
    first = f"a = Mul ({x}, i)" if reciprocal else f"a = Div ({x}, {s})"
    if not z:
        return f"{first}  b = Round (a)  c = Clip (b, low, high)  q = Cast <to = TYPE> (c)"
    rounded = f"r = Add (a, {z})  b = Round (r)" if inside else f"r = Round (a)  b = Add (r, {z})"
    return f"{first}  {rounded}  c = Clip (b, low, high)  q = Cast <to = TYPE> (c)"


@pytest.mark.parametrize("reciprocal", [False, True])
@pytest.mark.parametrize(
    ("zero", "low", "high", "type_", "inside"),
    [
        (3, -128, 127, 3, False), (-4, -128, 127, 3, True), (None, -127, 127, 3, False), (None, -8, 7, 3, False),
        (128, 0, 255, 2, False), (5, 0, 15, 2, False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("weight", WEIGHT)
def test_torch_export(
    weight: str, zero: int | None, low: int, high: int, type_: int, inside: bool, reciprocal: bool
) -> None:
    """The numbers lie on both sides of the range, and on no half step."""
    z = "z" if zero is not None else ""
    back = "f = Cast <to = 1> (q)  g = Sub (f, z)  d = Mul (g, s)" if z else "f = Cast <to = 1> (q)  d = Mul (f, s)"
    turned = "v = Transpose (e)  y = MatMul (d, v)" if "channels" in weight else "y = MatMul (d, e)"
    model = parse(
        f"""g (float[N,16] x) => (float[N,8] y)
<float s = {{0.05}}, float i = {{20}}, float z = {{{zero or 0}}}, float low = {{{low}}}, float high = {{{high}}},
 {WEIGHT[weight]}> {{
  {steps("x", "s", z, reciprocal, inside).replace("TYPE", str(type_))}  {back}
  h = Cast <to = 1> (w)  {"k = Sub (h, none)  e = Mul (k, sw)" if "none" in WEIGHT[weight] else "e = Mul (h, sw)"}
  {turned}
}}""",
        18,
    )
    made, _ = optimize(model)
    (fused,) = [op for op in ops(made) if "MatMulInteger" in op]
    assert fused.startswith("{")
    assert not any(op in name for name in ops(made) for op in ("Round", "Div", "DequantizeLinear"))
    assert ("Clip" in " ".join(ops(made))) == (high - low < 255)
    whole = np.random.default_rng(0).integers(-200, 300, (33, TERMS))
    x = ((whole + np.random.default_rng(1).uniform(-0.4, 0.4, whole.shape)) * 0.05).astype(np.float32)
    (before,), (after,) = run(model, {"x": x}), run(made, {"x": x})
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-6 * np.abs(before).max())


@pytest.mark.parametrize(("low", "high"), [(-127, 127), (-8, 7)])
def test_brevitas(low: int, high: int) -> None:
    """QuantizeLinear, Clip, DequantizeLinear: narrow range, or fewer bits; also of the weight."""
    model = parse(
        f"""g (float[N,16] x) => (float[N,8] y)
<float s = {{0.05}}, int8 z = {{0}}, int8 low = {{{low}}}, int8 high = {{{high}}},
 {WEIGHT["one scale"]}> {{
  q = QuantizeLinear (x, s, z)  c = Clip (q, low, high)  d = DequantizeLinear (c, s, z)
  k = Clip (w, low, high)  e = DequantizeLinear (k, sw, z)  y = MatMul (d, e)
}}""",
        14,
    )
    made, _ = optimize(model)
    assert ops(made) == ["{QuantizeLinear Clip}", "{Transpose MatMulInteger Cast Mul}"]
    x = (np.random.default_rng(0).standard_normal((33, TERMS)) * 8).astype(np.float32)
    (before,), (after,) = run(model, {"x": x}), run(made, {"x": x})
    np.testing.assert_allclose(after, before, rtol=0, atol=2e-6 * np.abs(before).max())


@pytest.mark.parametrize(
    ("zero", "low", "high", "why"),
    [
        ("2.5", "-128", "127", "a zero point between two steps"),
        ("3", "-128", "130", "a range beyond the type"),
        ("200", "-128", "127", "a zero point beyond the type"),
    ],
)
def test_what_is_no_quantization_stays(zero: str, low: str, high: str, why: str) -> None:
    model = parse(
        f"""g (float[N,16] x) => (int8[N,16] q)
<float s = {{0.05}}, float z = {{{zero}}}, float low = {{{low}}}, float high = {{{high}}}> {{
  {steps("x", "s", "z", False, False).replace("TYPE", "3")}
}}""",
        18,
    )
    made, _ = optimize(model, "softmax")
    assert ops(made) == ["Div", "Round", "Add", "Clip", "Cast"], why
