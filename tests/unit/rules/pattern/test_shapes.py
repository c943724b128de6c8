"""`shapes` of a rule: what fits, what is said of what does not, and that it means the conditions it stands for."""

import random
from pathlib import Path

import onnx
import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import predicate, rule_file
from onnxfuse.rules.match.match import Match, Refusal, Trace, matches
from onnxfuse.rules.pattern.pattern import parse as parse_pattern
from onnxfuse.rules.pattern.shapes import Shapes, WrittenShape, read
from onnxfuse.rules.rewriting.rewrite import find
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import INVENTED, ValueType
from onnxfuse.support.errors import RuleError
from tests.support.extents import extents
from tests.support.small import assert_same_numbers, parse

PATTERN = parse_pattern("(q, k, mask) => (y) { s = MatMul (q, k) y = Add (s, mask) }", "here")
MODEL = """g (float[N,12,S,64] a, float[N,12,64,T] b, float[1,1,S,T] m) => (float[N,12,S,T] y) {
  s = MatMul (a, b) y = Add (s, m)
}"""


def graph_of(text: str) -> Graph:
    """Return the graph of a small model."""
    model = parse(text)
    return Graph(model.graph, infer(model).graph, 17)


def written(lines: dict[str, str]) -> Shapes:
    """Return the shapes in `lines`."""
    return read(tuple(WrittenShape(value, text, "here") for value, text in lines.items()))


def reason(lines: dict[str, str], text: str = MODEL) -> str | None:
    """Return why the shapes do not fit the match of the pattern in `text`, None where they do."""
    graph = graph_of(text)
    found = find(graph, PATTERN, predicate.parse_shapes(written(lines), PATTERN), graph.nodes[-1])
    assert isinstance(found, Match | Refusal)
    return found.reason if isinstance(found, Refusal) else None


@pytest.mark.parametrize(
    "lines",
    [
        {"q": "B H S D", "k": "B H D T", "s": "B H S T", "y": "B H S T"},
        {"q": "B H S D", "k": "B H D T", "mask": "B|1 H|1 S|1 T"}, {"mask": "1 1 ..."},
        {"q": "_ 12 _ 64"}, {"q": "_ _ _ _"}, {"q": "..."}, {"q": "_ 12 ..."}, {"q": "... 64"}, {"q": "_ _ ... _ _"},
        {"q": "B ... D", "k": "B ... D _"}, {"q": "_ H _ D", "k": "_ D-52 H+52 _"},
        {"q": "_ _ _ D", "k": "_ 3*D//16 D|1 _"},
        {"q": "L... _ _", "k": "L... D T", "mask": "_ _ ..."}, {"s": "R...", "y": "R..."},
        {"q": "_ A... _ D", "k": "_ A... _ _"},
        {"q": "_ _ _ D", "k": "_ D%26 _ _"}, {"q": "_ _ _ unused", "k": "also free ..."}, {"q": "_ 3*4 _ _"},
    ],
)  # fmt: skip
def test_shapes_that_fit(lines: dict[str, str]) -> None:
    """A name of the model's equals itself, numbers take part in expressions, `...` is any number of axes."""
    assert reason(lines) is None


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ({"q": "_ _ _"}, "rank(q) is 4, expected 3 (q is 'a')"),
        ({"q": "_ _ _ ... _ _"}, "rank(q) is 4, expected 5 or more (q is 'a')"),
        ({"q": "_ H S _", "k": "_ S H _"}, "dim S of k is 12, of q S (k is 'b', q is 'a')"),
        ({"q": "_ 8 _ _"}, "dim 1 of q is 12, expected 8 (q is 'a')"),
        ({"q": "... 32"}, "dim -1 of q is 64, expected 32 (q is 'a')"),
        ({"q": "_ H _ _", "k": "_ _ 4*H _"}, "dim 2 of k is 64, expected 4*H = 48 (k is 'b')"),
        ({"q": "_ H _ _", "k": "_ _ H|1 _"}, "dim H of k is 64, expected 1 or H = 12 (k is 'b')"),
        ({"q": "L... _", "k": "L... _"}, "L... of k is [N, 12, 64], of q [N, 12, S] (k is 'b', q is 'a')"),
        ({"q": "L... _", "k": "L... _ _"}, "L... of k is [N, 12], of q [N, 12, S] (k is 'b', q is 'a')"),
        ({"q": "N _ _ _", "k": "_ 2*N _ _"}, "dim 1 of k is 12, expected 2*N (k is 'b')"),
    ],
)
def test_what_does_not_fit_is_told(lines: dict[str, str], told: str) -> None:
    """Value, axis, the extent found and the one expected, and what the values are in the model."""
    assert reason(lines) == told


def test_an_unknown_shape_fits_nothing() -> None:
    """Not even any number of axes: the rank of what an operator of another domain makes is not known."""
    text = """g (float[N,12,S,64] a, float[N,12,64,T] b) => (float[N,12,S,T] y) {
      m = foreign.Mask (a) s = MatMul (a, b) y = Add (s, m)
    }"""
    assert reason({"mask": "..."}, text) == "shape(mask) is not known; the rule wants mask = [...] (mask is 'm')"


def test_an_unknown_extent_equals_none() -> None:
    """Nor itself by another name; as the only axis of its name it fits, as `_` does."""
    graph = graph_of(MODEL)
    graph.retype("m", ValueType(1, extents(1, 1, None, "T")))
    told = [
        find(graph, PATTERN, predicate.parse_shapes(written(lines), PATTERN), graph.nodes[-1])
        for lines in ({"q": "_ _ S _", "mask": "_ _ S _"}, {"mask": "_ _ S _", "q": "_ _ S _"}, {"mask": "_ _ S _"})
    ]
    assert [one.reason if isinstance(one, Refusal) else "" for one in told] == [
        "dim S of mask is not known; the rule wants mask = [_ _ S _] (mask is 'm')",
        "dim S of mask is not known; the rule wants q = [_ _ S _] (mask is 'm')",
        "",
    ]


def conditions(lines: dict[str, str]) -> list[str]:
    """Return the conditions that shapes of plain names, numbers, `_` and NAME|1 stand for."""
    found, first = list[str](), dict[str, str]()
    tokens = {value: text.split() for value, text in lines.items()}
    terms = [(t, f"dim({v}, {i})") for v, axes in tokens.items() for i, t in enumerate(axes) if t != "_"]
    for token, term in terms:
        first.setdefault(token, term)
    for token, term in terms:
        if token.endswith("|1"):
            found.append(f"{term} == 1 or {term} == {first[token.removesuffix('|1')]}")
        elif token.isdigit():
            found.append(f"{term} == {token}")
        elif first[token] != term:
            found.append(f"{term} == {first[token]}")
    return [*(f"rank({v}) == {len(axes)}" for v, axes in tokens.items()), *found]


def test_shapes_mean_their_equations() -> None:
    """Whatever is known of the extents: numbers, names, invented names, nothing; the rank, or not even that."""
    graph = graph_of(MODEL)
    match = next(matches(PATTERN, graph, graph.nodes[-1], Trace()))
    pick, fitting = random.Random(50), 0
    for _ in range(3000):
        lines = {}
        for value in ("q", "k", "mask"):
            axes = [pick.choice(["A", "A", "B", "_", "_", "1", "2"]) for _ in range(pick.randint(1, 3))]
            lines[value] = " ".join(axes)
            known = [
                pick.choice([1, 1, 1, 2, "N", f"{INVENTED}0", None]) for _ in range(pick.choice([len(axes)] * 6 + [2]))
            ]
            name = match.values[value]
            assert isinstance(name, str)
            graph.retype(name, ValueType(1, extents(*known) if pick.random() < 0.95 else None))
        named = [t for text in lines.values() for t in text.split() if t.isalpha()]
        if named:
            lines["mask"] += f" {pick.choice(named)}|1" if pick.random() < 0.3 else ""
        one = [predicate.holds(p, graph, match) for p in predicate.parse_shapes(written(lines), PATTERN)]
        other = [predicate.holds(predicate.parse(c, PATTERN, "here"), graph, match) for c in conditions(lines)]
        assert (one == [None] * 3) == (other == [None] * len(other)), lines
        fitting += one == [None] * 3
    assert fitting > 100


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
        ("{ x =", "4 #{ x =", 13, "'shapes' must be a dict, got 4"),
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
    assert "See " in str(caught.value) or "Write" in str(caught.value) or "dict" in told or "line of axes" in told


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
