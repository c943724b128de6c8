"""Expressions of rules: Python's syntax becomes a small tree of comparisons, and nothing else is read."""

import pytest

from onnxfuse.rules.pattern import expression
from onnxfuse.rules.pattern.expression import (
    Arithmetic,
    Call,
    Combined,
    Compare,
    Each,
    Element,
    ElementAccess,
    Extent,
    Gathered,
    ListLiteral,
    NumberLiteral,
    Tree,
    Word,
    read,
    read_values,
)
from onnxfuse.support.errors import RuleError

RANK = Call("rank", ("x",))


def compared(text: str) -> tuple[Tree, str, tuple[Tree, ...]]:
    """Return the sides of the only comparison in `text`."""
    tree = read(text)
    assert isinstance(tree, Compare)
    return tree.left, tree.relation, tree.right


@pytest.mark.parametrize(
    ("text", "left", "relation", "right"),
    [
        ("rank(x) == 2", RANK, "==", (NumberLiteral(2),)),
        ("rank(x) <= inf", RANK, "<=", (NumberLiteral(float("inf")),)),
        ("rank(x) == -2", RANK, "==", (NumberLiteral(-2),)),
        ("dtype(x) == float16", Call("dtype", ("x",)), "==", (Word("float16"),)),
        ("dtype(x) == 'float16'", Call("dtype", ("x",)), "==", (Word("float16"),)),
        ("dtype(x) in (float16, float32)", Call("dtype", ("x",)), "in", (Word("float16"), Word("float32"))),
        ("dtype(x) in float16, float32", Call("dtype", ("x",)), "in", (Word("float16"), Word("float32"))),
        ("value(p) == [1, 0]", Call("value", ("p",)), "==", (ListLiteral((1, 0)),)),
        ("value(p) in ([0, 1], [1, 0])", Call("value", ("p",)), "in", (ListLiteral((0, 1)), ListLiteral((1, 0)))),
        ("value(p)[-1] == 1", ElementAccess(Call("value", ("p",)), -1, None, True), "==", (NumberLiteral(1),)),
        ("shape(x)[1:] == 1", ElementAccess(Call("shape", ("x",)), 1, None, False), "==", (NumberLiteral(1),)),
        ("shape(x)[:-1] == 1", ElementAccess(Call("shape", ("x",)), None, -1, False), "==", (NumberLiteral(1),)),
        ("shape(x)[value(p)] == 1", Gathered(Call("shape", ("x",)), Call("value", ("p",))), "==", (NumberLiteral(1),)),
        ("-rank(x) < 2", Arithmetic(NumberLiteral(0), "-", RANK, "-rank(x)"), "<", (NumberLiteral(2),)),
        ("range(rank(x)) == 1", Call("range", (RANK,)), "==", (NumberLiteral(1),)),
    ],
)
def test_a_comparison(text: str, left: Tree, relation: str, right: tuple[Tree, ...]) -> None:
    """Of terms, numbers, words, lists and parts of lists; spaces and lines in it are nothing."""
    assert compared(text) == (left, relation, right)
    assert compared(text.replace(" ", "\n   ")) == (left, relation, right)


def test_conditions_are_joined() -> None:
    """A chain is each of its links, `not in` is none of them, and they nest."""
    chain = read("1 < rank(x) <= 3")
    assert isinstance(chain, Combined)
    assert (chain.how, [str(p) for p in chain.parts]) == ("and", ["1 < rank(x)", "rank(x) <= 3"])
    none = read("dtype(x) not in (bool, string)")
    assert isinstance(none, Combined)
    assert [(p.relation, p.right) for p in none.parts if isinstance(p, Compare)] == [
        ("!=", (Word("bool"),)), ("!=", (Word("string"),)),
    ]  # fmt: skip
    nested = read("not (const(a) or const(b)) and rank(x) == 1")
    assert isinstance(nested, Combined)
    assert isinstance(nested.parts[0], Combined)
    assert (nested.how, nested.parts[0].how) == ("and", "not")
    assert isinstance(read("each(elements(s) == 1)"), Each)


def test_a_tree_prints_as_it_was_written() -> None:
    """So that a reason can quote the condition."""
    for text in ("rank(x) == 2", "dim(x, -1) * 2 <= 8", "shape(x)[:-1] == shape(y)[:-1]", "value(p)[0] == 1",
                 "shape(x)[value(p)] == [1, 2]", "each(elements(s) == 1)", "const(a, b)"):  # fmt: skip
        assert str(read(text)) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("rank(x) =", "is not an expression"),
        ("\0", "is not an expression"),
        ("rank(x)[0].real == 1", "is not allowed in an expression"),
        ("rank(x) is 2", "compared by none of"),
        ("2", "is not a condition"),
        ("x.rank() == 2", "is not a term"),
        ("rank(x=1) == 2", "is not a term"),
        ("rank(x) == 2 ** 3", "is not allowed"),
        ("rank(x) == True", "is not allowed"),
        ("rank(x) == 9223372036854775809", "is not allowed"),
        ("shape(x)[::2] == 1", "is not an element or a range"),
        ("shape(x)[rank(x)-1] == 1", "is not an element or a range"),
        ("shape(x)[0.5] == 1", "is not an element or a range"),
        ("(lambda: 1)() == 1", "is not a term"),
        ("rank(x) == 1 +" + " 1 +" * 700 + " 1", "at most 2000 are read"),
        ("not " * 40 + "const(x)", "deep, at most 30 are read"),
        ("dim(x, 0) <= measured(nonsense)", "is not one of the measured sizes"),
        ("dim(x, 0) <= measured()", "is not one of the measured sizes"),
    ],
)
def test_what_is_no_condition_is_refused(text: str, told: str) -> None:
    """With the part that is none; nothing of it is ever run."""
    with pytest.raises(RuleError, match=told) as raised:
        read(text)
    assert "onnxfuse rules" in raised.value.hint


def test_a_measured_size_is_a_number() -> None:
    """By its name in the costs file; a name that is nearly one is suggested."""
    from onnxfuse.cuda.costs import library

    name, size = next(iter(library.measured().items()))
    assert compared(f"dim(x, 0) <= measured({name})")[2] == (NumberLiteral(size),)
    with pytest.raises(RuleError, match=f"Did you mean {name}"):
        read(f"dim(x, 0) <= measured({name[:-1]})")


def test_values_are_one_or_a_list() -> None:
    """As `let` has them: numbers and terms, no conditions."""
    assert read_values("2 * rank(x)") == ((Arithmetic(NumberLiteral(2), "*", RANK, "2 * rank(x)"),), False)
    assert read_values("[0, rank(x)]") == ((NumberLiteral(0), RANK), True)
    assert read_values("[]") == ((), True)
    with pytest.raises(RuleError, match="is not allowed"):
        read_values("rank(x) == 2")


AXES = {"H": Extent("H", "x", 1), "N": Extent("N", "x", 0), "heads": Extent("heads", "x", 2)}


def test_names_of_axes_are_resolved_where_a_number_stands() -> None:
    """Also inside arithmetic, terms and joined conditions; beside a term a word may be a type."""
    tree = expression.with_axes(read("H * 2 <= 8 and not N == rank(x) or each(elements(s) == H)"), AXES)
    assert {str(e) for e in expression.extents(tree)} == {"H", "N"}
    assert compared("dtype(x) == float16") == (Call("dtype", ("x",)), "==", (Word("float16"),))
    kept = expression.with_axes(read("dtype(x) == float16"), AXES)
    assert isinstance(kept, Compare)
    assert kept.right == (Word("float16"),)
    inside = expression.with_axes(read("value(p) == range(H + 1)"), AXES)
    assert isinstance(inside, Compare)
    (called,) = inside.right
    assert isinstance(called, Call)
    assert isinstance(called.arguments[0], Arithmetic)
    assert called.arguments[0].left == AXES["H"]


@pytest.mark.parametrize("text", ["K <= 2", "K == 2", "2 * K == rank(x)", "rank(x) < K"])
def test_another_name_in_place_of_a_number_is_refused(text: str) -> None:
    """With the axes that there are, if one is near."""
    with pytest.raises(RuleError, match="'K' is not allowed in an expression"):
        expression.with_axes(read(text), AXES)
    with pytest.raises(RuleError, match="Did you mean heads"):
        expression.with_axes(read("head <= 2"), AXES)


def test_terms_and_lists_are_found_wherever_they_are() -> None:
    """For the check of their words, and for what `each` goes over."""
    tree = read("not (shape(x)[value(p)] == 1) or 2 * dim(y, 0) <= rank(x) or each(elements(s)[1:] == range(rank(x)))")
    assert {c.name for c in expression.calls(tree)} == {"shape", "value", "dim", "rank", "elements", "range"}
    each = read("each(elements(s)[1:] == 1 or shape(x)[value(p)] * 2 == rank(x))")
    assert isinstance(each, Each)
    assert [str(one) for one in expression.lists(each.condition)] == [
        "elements(s)[1:]",
        "shape(x)[value(p)]",
        "rank(x)",
    ]
    (first, *_) = expression.lists(each.condition)
    one = expression.with_elements(each.condition, {first: Element("elements(s)[1:]", 7)})
    assert _elements(one) == [Element("elements(s)[1:]", 7)]


def _elements(tree: Tree) -> list[Element]:
    if isinstance(tree, Element):
        return [tree]
    sides = (
        (*tree.parts,) if isinstance(tree, Combined) else (tree.left, *tree.right) if isinstance(tree, Compare) else ()
    )
    return [one for side in sides for one in _elements(side)]


def test_values_and_labels_are_renamed_and_nothing_else() -> None:
    """Two names may change places; a type of the same name stays."""
    assert expression.renamed("rank(a) == rank(b)", {"a": "b", "b": "a"}) == "rank(b) == rank(a)"
    assert expression.renamed("dtype(x) == x", {"x": "q"}) == "dtype(q) == x"
    assert expression.renamed("rank(rank) == 2", {"rank": "r"}) == "rank(r) == 2"
    untouched = "rank( x )==2"
    assert expression.renamed(untouched, {"y": "z"}) == untouched
