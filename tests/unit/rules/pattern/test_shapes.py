"""`shapes` of a rule: its axes in `where` and `let`, mistakes in them, and those of parts."""

from pathlib import Path

import onnx
import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import predicate, rule_file
from onnxfuse.rules.match.match import Match, Refusal
from onnxfuse.rules.rewriting.rewrite import find
from onnxfuse.shapes.inference import infer
from onnxfuse.support.errors import RuleError
from tests.support.small import assert_same_numbers, parse

RULE = '''\
summary = "Two products of one weight are one."

[[rewrite]]
from = """(x, w, shape) => (y) {
  r = Reshape (x, shape)
  y = MatMul (r, w)
}"""
to = """(x, w) => (y) {
  n = Constant <value_ints: ints = @to> ()
  r = Reshape (x, n)
  y = MatMul (r, w)
}"""
shapes = { x = "B H D", r = "B H*D", w = "K N" }
where = ["N % 2 == 0", "H in (2, 3)"]
let = { to = "[-1, H * D]" }
'''


def write(folder: Path, text: str) -> Path:
    """Write a rule file; return its path."""
    path = folder / "mine.toml"
    path.write_text(text)
    return path


def reshaped(columns: int = 4, heads: int = 2) -> onnx.ModelProto:
    """Return the model that the rule rewrites, with so many columns and heads."""
    return parse(f"""g (float[5,{heads},3] x, float[{3 * heads},{columns}] w, int64[2] s) => (float[5,{columns}] y) {{
      d = Constant <value_ints = [-1, {3 * heads}]> () r = Reshape (x, d) y = MatMul (r, w)
    }}""")


def test_where_and_let_use_named_axes(tmp_path: Path) -> None:
    """An axis is what `dim` of its first value is; a refusal says which."""
    rule = rule_file.read(write(tmp_path, RULE))
    model = reshaped()
    graph = Graph(model.graph, infer(model).graph, 17)
    one = rule.rewrites[0]
    found = find(graph, one.source, one.where, graph.nodes[-1])
    assert isinstance(found, Match)
    assert predicate.bind(one.let[0], graph, found) == [-1, 6]
    for wrong, told in (
        (reshaped(columns=3), "N % 2 is 1; the rule wants N % 2 == 0 (N is dim(w, 1))"),
        (reshaped(heads=4), "H is 4; the rule wants H in (2, 3) (H is dim(x, 1))"),
    ):
        graph = Graph(wrong.graph, infer(wrong).graph, 17)
        refusal = find(graph, one.source, one.where, graph.nodes[-1])
        assert isinstance(refusal, Refusal)
        assert refusal.reason == told


@pytest.mark.parametrize(
    ("good", "bad", "line", "told"),
    [
        ('x = "B H D"', 'z = "B H D"', 13, "shapes: 'z' is not a value of the pattern"),
        ('x = "B H D"', 'x = 3', 13, 'a shape is a line of axes, as "B S D", got 3'),
        ('x = "B H D"', 'x = "B ... H ... D"', 13, "shape of x: 'B ... H ... D' has '...' twice"),
        ('x = "B H D"', 'x = "B H dim(x,1) D"', 13, "shape of x: 'dim(x,1)' is not an axis: a name, a whole number,"),
        ('x = "B H D"', 'x = "B H D/2 D"', 13, "shape of x: 'D/2' is not an axis"),
        ('x = "B H D"', 'x = "B H 1.5 D"', 13, "shape of x: '1.5' is not an axis"),
        ('x = "B H D"', 'x = "B H [D]"', 13, "shape of x: '[D]' is not an axis"),
        ('x = "B H D"', 'x = "B H []"', 13, "shape of x: '[]' is not an axis"),
        ('x = "B H D"', 'x = "B H 2D"', 13, "shape of x: '2D' is not an axis"),
        ('x = "B H D"', 'x = "B H |1"', 13, "shape of x: '|1' is not an axis"),
        ('x = "B H D"', 'x = "B, H, D"', 13, "shape of x: 'B,' is not an axis"),
        ('x = "B H D"', 'x = "B _ D"', 13, "shape of r: 'H*D' compares with 'H', to which no axis gives an extent."),
        ('w = "K N"', 'w = "K|1 N"', 13, "shape of w: 'K|1' compares with 'K', to which no axis gives an extent."),
        ('w = "K N"', 'w = "Heads Q*H" , shape="Head"', 13, "'Q*H' compares with 'Q', to which no axis gives"),
        ("N % 2", "M % 2", 14, "where: 'M' is not allowed in an expression; it may use"),
        ("H in (2, 3)", "HH in (2, 3)", 14, "where: 'HH' is not allowed in an expression; it may use + - * / // %,"),
        ("H in (2, 3)", "dim(w, 0) < HH", 14, "and axes that `shapes` names. Did you mean"),
        ("H * D]", "H * E]", 15, "let: 'E' is not allowed in an expression"),
        ("shapes =", "shaped =", 13, "'shaped' is not a key of [[rewrite]]. Did you mean shapes?"),
        ("{ x =", "4 #{ x =", 13, "'shapes' must be a table, got 4"),
    ],
)  # fmt: skip
def test_a_mistake_is_told(tmp_path: Path, good: str, bad: str, line: int, told: str) -> None:
    """With file and line, what is there, what was expected, and where to read on."""
    assert good in RULE
    path = write(tmp_path, RULE.replace(good, bad))
    with pytest.raises(RuleError) as caught:
        rule_file.read(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert told in str(caught.value)
    assert "See " in str(caught.value) or "Write" in str(caught.value) or "line of axes" in told


PARTS = '''\
summary = "Two halves that are scaled."

[fuse]
template = "pointwise"

[[part.Scaled]]
pattern = """(x, s) => (y) { y = Mul (x, s) }"""
shapes = { x = "A B", s = "B" }
where = "B % 2 == 0"

[[fuse.anchor]]
pattern = """(a, b, c, d) => (y) {
  left = Scaled (a, c)
  right = Scaled (b, d)
  y = Add (left, right)
}"""
shapes = { "left right" = "A B" }
where = "B <= 8"

[[example]]
model = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3,4] a, float[3,1] b, float[4] c, float[1] d) => (float[3,4] y) {
  l = Mul (a, c) r = Mul (b, d) y = Add (l, r)
}"""
refusal = "dim B of right is 1, of left 4 (right is 'r', left is 'l')"
'''


def test_the_axes_of_a_part_are_its_own(tmp_path: Path) -> None:
    """A part that is used twice binds its names twice; the anchor's are others, though written alike."""
    rule = rule_file.read(write(tmp_path, PARTS))
    whole = parse("""g (float[3,4] a, float[3,4] b, float[4] c, float[4] d) => (float[3,4] y) {
      l = Mul (a, c) r = Mul (b, d) y = Add (l, r)
    }""")
    made = parse(onnx.printer.to_text(whole))
    assert [a.rule for a in pipeline.run(made, [rule]).applied] == ["mine"]
    assert_same_numbers(whole, made)
    odd = parse("""g (float[3,5] a, float[3,5] b, float[5] c, float[5] d) => (float[3,5] y) {
      l = Mul (a, c) r = Mul (b, d) y = Add (l, r)
    }""")
    told = [n.refusal.reason for n in pipeline.run(odd, [rule]).near]
    assert told == ["B % 2 is 1; the rule wants B % 2 == 0 (B is dim(a, 1))"]
    flat = parse(onnx.printer.to_text(whole).replace("float[4] d", "float[1,4] d"))
    assert [n.refusal.reason for n in pipeline.run(flat, [rule]).near] == ["rank(d) is 2, expected 1"]
    refused = pipeline.run(parse(rule.examples[0].text), [rule])
    assert [n.refusal.reason for n in refused.near] == [rule.examples[0].refusal]
