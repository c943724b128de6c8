"""What a rule file of a few hundred bytes may ask for: constants in proportion to what the match has, and time."""

import time
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.support.errors import RuleError
from tests.support.small import parse

RULE = """summary = "s"
[[rewrite]]
from = '''(x) => (y) {{ y = Relu (x) }}'''
to = '''(x) => (y) {{ {to} z = ReduceSum <keepdims = 0> (o) y = Add (x, z) }}'''
"""

BOMBS = {
    "ConstantOfShape": "s = Constant <value_ints = [200000, 200000]> () o = ConstantOfShape (s)",
    "Expand": "s = Constant <value_ints = [200000, 200000]> () c = Constant <value_float = 1.0> () o = Expand (c, s)",
    "Tile": "s = Constant <value_ints = [40000000000]> () c = Constant <value_floats = [1.0]> () o = Tile (c, s)",
    "Range": "a = Constant <value_float = 0.0> () b = Constant <value_float = 1e12> () "
    "c = Constant <value_float = 1.0> () o = Range (a, b, c)",
    "Pad": "s = Constant <value_ints = [40000000000, 0]> () c = Constant <value_floats = [1.0]> () o = Pad (c, s)",
    "OneHot": "i = Constant <value_ints = [1]> () n = Constant <value_int = 40000000000> () "
    "v = Constant <value_floats = [0.0, 1.0]> () o = OneHot (i, n, v)",
    "EyeLike": "s = Constant <value_ints = [200000, 200000]> () c = ConstantOfShape (s) o = EyeLike (c)",
    "RandomNormal": "o = RandomNormal <shape = [200000, 200000]> ()",
    "products": "s = Constant <value_ints = [256, 256]> () a = ConstantOfShape (s) "
    + "".join(f"{b} = Concat <axis = 0> ({a}, {a}) " for a, b in ("ab", "bc", "cd", "de", "ef", "fg", "gh"))
    + "t = Transpose (h) o = MatMul (h, t)",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_rewrite_computes_no_constant_out_of_proportion(name: str, tmp_path: Path) -> None:
    """The place is left alone at once, and `explain` says why."""
    (tmp_path / "bomb.toml").write_text(RULE.format(to=BOMBS[name]))
    model = parse("g (float[N,8] x) => (float[N,8] y) { y = Relu(x) }")
    start = time.monotonic()
    report = onnxfuse.explain(model, rules=[tmp_path])
    assert time.monotonic() - start < 60
    (reason,) = [near.refusal.reason for near in report.attempts() if near.rule == "bomb"]
    assert "elements, more than the 65536 that are folded" in reason


def test_constants_of_a_models_own_size_are_folded(tmp_path: Path) -> None:
    """A weight that a rule scales is as large as it was, whatever its size."""
    (tmp_path / "mine.toml").write_text("""summary = "s"
[[rewrite]]
from = '''(x, w) => (y) { r = Relu (x) y = MatMul (r, w) }'''
to = '''(x, w) => (y) { two = Constant <value_float = 2.0> () v = Mul (w, two) y = MatMul (x, v) }'''
where = "const(w)"
""")
    model = parse("g (float[N,512] x) => (float[N,512] y) { r = Relu(x) y = MatMul(r, w) }")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((512, 512), np.float32), "w"))
    assert onnxfuse.explain(model, rules=[tmp_path]).by_rule()["mine"] == 1


def test_operands_in_any_order_do_not_take_days(tmp_path: Path) -> None:
    """A tree of 63 Adds stands in two orders at each, and the rule's condition holds for none."""
    values = [f"b{i}" for i in range(64)]
    lines: list[str] = []
    inputs = list(values)
    while len(values) > 1:
        pairs = list(zip(values[::2], values[1::2], strict=True))
        values = [f"t{len(lines) + i}" for i in range(len(pairs))]
        lines += [f"{t} = Add ({a}, {b})" for t, (a, b) in zip(values, pairs, strict=True)]
    body, last = " ".join(lines), values[0]
    (tmp_path / "tree.toml").write_text(f"""summary = "s"
[[rewrite]]
from = '''({", ".join(inputs)}) => (y) {{ {body} y = Relu ({last}) }}'''
to = '''(b0) => (y) {{ y = Abs (b0) }}'''
where = "rank(b0) == 9"
""")
    types = ", ".join(f"float[N,8] {v}" for v in inputs)
    model = parse(f"g ({types}) => (float[N,8] y) {{ {body} y = Relu ({last}) }}")
    start = time.monotonic()
    onnxfuse.optimize(model, rules=[tmp_path])
    assert time.monotonic() - start < 100


@pytest.mark.parametrize("literal", ["float[1000000000] {1}", "float[-1] {1}"])
def test_a_constant_in_a_rule_has_the_numbers_that_it_says(literal: str, tmp_path: Path) -> None:
    """Exit 2 with file and line, as the file is read: no model is to blame."""
    (tmp_path / "mine.toml").write_text(RULE.format(to=f"o = Constant <value = {literal}> ()"))
    with pytest.raises(RuleError, match=r"mine.toml:4: the value of Constant has other numbers"):
        onnxfuse.optimize(parse("g (float[N,8] x) => (float[N,8] y) { y = Relu(x) }"), rules=[tmp_path])
