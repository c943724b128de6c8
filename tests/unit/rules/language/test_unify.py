"""A match and the shapes of its rule: what fits, what is said of what does not, and what they stand for."""

import random

import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.rules.language import predicate
from onnxfuse.rules.match.match import Match, Refusal, Trace, matches
from onnxfuse.rules.pattern.pattern import parse as parse_pattern
from onnxfuse.rules.pattern.shapes import Shapes, WrittenShape, read
from onnxfuse.rules.rewriting.rewrite import find
from onnxfuse.shapes.inference import infer
from onnxfuse.shapes.types import INVENTED, ValueType
from tests.support.extents import extents
from tests.support.small import parse

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


@pytest.mark.parametrize("lines", [{"q": "L... _", "mask": "L... _"}, {"mask": "L... _", "q": "L... _"}])
def test_a_run_with_an_unknown_extent_equals_none(lines: dict[str, str]) -> None:
    """The value whose extent is not known is named, whichever of the two is compared."""
    graph = graph_of(MODEL)
    graph.retype("m", ValueType(1, extents(1, 1, None, "T")))
    refused = find(graph, PATTERN, predicate.parse_shapes(written(lines), PATTERN), graph.nodes[-1])
    assert isinstance(refused, Refusal)
    assert refused.reason.startswith("L... of mask is not known; the rule wants ")


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
