"""The [fuse] table of a rule file: anchors, the steps that its keys enable, and what is told of a wrong one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from onnxfuse import cuda
from onnxfuse.cuda import Growth
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.language.fuse_table import (
    ANY_MOVEMENT,
    ANY_POINTWISE,
    EXACT_ONLY,
    EXACT_TOO,
    NOWHERE_ELSE,
    OF_OTHERS,
    Fuse,
    by_operator,
)
from onnxfuse.support.errors import RuleError

SOFTMAX = "[[fuse.anchor]]\npattern = '''(x) => (y) { y = Softmax (x) }'''\n"
PRODUCT = "[[fuse.anchor]]\npattern = '''(x, w) => (y) { y = MatMul (x, w) }'''\n"
Read = Callable[..., Fuse]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Return what reads a table of these lines and anchors."""

    def fuse(lines: str, anchors: str = "", parts: str = "") -> Fuse:
        path = tmp_path / "own.toml"
        path.write_text(f'summary = "S."\n{parts}[fuse]\n{lines}\n{anchors}')
        found = rule_file.read(path).fuse
        assert found is not None
        return found

    return fuse


def kinds(fuse: Fuse) -> set[Growth]:
    return {step.kind for step in fuse.steps}


def test_words_stand_for_anchors(read: Read) -> None:
    """Of elementwise work, of movement, or of the ops that other rules made."""
    pointwise = read('template = "pointwise"\nanchor = "pointwise"')
    assert (pointwise.anchor, pointwise.anchors, pointwise.needs_others) == (ANY_POINTWISE, (), False)
    movement = read('template = "pointwise"\nanchor = "movement"')
    assert movement.anchor == ANY_MOVEMENT
    assert kinds(movement) >= {Growth.MOVEMENT, Growth.TWINS}
    assert not kinds(pointwise) & {Growth.MOVEMENT, Growth.TWINS}
    others = read('template = "concat"')
    assert (others.anchor, others.needs_others) == (OF_OTHERS, True)
    assert others.wants(Growth.CONCAT)
    assert others.roots == set()


def test_an_anchor_is_one_for_each_operator_at_its_root(read: Read) -> None:
    """By which nodes are looked up."""
    either = "[[fuse.anchor]]\npattern = '''(x) => (y) { a = Exp (x) y = Softmax (a) }'''\n"
    found = read('template = "row"', SOFTMAX + either)
    assert found.anchor == ""
    assert found.roots == {"Softmax"}
    assert found.anchors_at == by_operator(found.anchors) == {"Softmax": list(found.anchors)}
    assert found.split_roots == set()
    split = (
        "[[fuse.split]]\nfrom = '''(x, b) => (y) { y = Add (x, b) }'''\nto = '''(x, b) => (y) { y = Sum (x, b) }'''\n"
    )
    assert read('template = "row"', SOFTMAX + split).roots == {"Softmax", "Add"}


@pytest.mark.parametrize(
    ("lines", "least", "between", "needs_others"),
    [
        ("", 0, 0, False),
        ("least = 2\n", 2, 2, False),
        ("least = 2\nbetween = 1\n", 2, 1, False),
        ("between = 1\n", NOWHERE_ELSE, 1, True),
    ],
)
def test_how_much_is_enough(read: Read, lines: str, least: int, between: int, needs_others: bool) -> None:
    """A rule that says only what is enough between kernels fuses nowhere else."""
    found = read(f'{lines}template = "row"', SOFTMAX)
    assert (found.least, found.between, found.needs_others) == (least, between, needs_others)


def test_keys_enable_steps(read: Read) -> None:
    """Each with the input that it names; a prologue unless it is refused."""
    plain = read('template = "gemm"', PRODUCT)
    assert {Growth.PROLOGUE, Growth.EPILOGUE} & cuda.TEMPLATES["gemm"].growth <= kinds(plain)
    assert not plain.wants(Growth.SIBLINGS)
    beside = read('template = "gemm"\nbeside = "x"', PRODUCT)
    step = beside.step(Growth.SIBLINGS)
    assert step is not None
    assert step.input == "x"
    assert beside.wants(Growth.CONCAT, Growth.SIBLINGS)
    assert plain.step(Growth.SIBLINGS) is None
    row = read('template = "row"', SOFTMAX)
    assert row.wants(Growth.PROLOGUE)
    assert not read('template = "row"\nprologue = false', SOFTMAX).wants(Growth.PROLOGUE)
    turned = read('template = "gemm"\ntransposes = true', PRODUCT)
    both = {Growth.TRANSPOSED_INPUT, Growth.TRANSPOSED_OUTPUT}
    assert kinds(turned) - kinds(plain) == both & cuda.TEMPLATES["gemm"].growth != set()
    assert kinds(read('template = "gemm"\ntransposes = false', PRODUCT)) == kinds(plain)
    left = read('template = "gemm"\nprologue = "x"', PRODUCT)
    assert kinds(left) - kinds(plain) == {Growth.LEFT_OPERAND}


@pytest.mark.parametrize("exact", ["", EXACT_TOO, EXACT_ONLY])
def test_an_anchor_says_what_it_does_in_strict_float32(read: Read, exact: str) -> None:
    (anchor,) = read('template = "row"', SOFTMAX + (f'exact = "{exact}"\n' if exact else "")).anchors
    assert anchor.exact == exact


@pytest.mark.parametrize(
    ("lines", "anchors", "told"),
    [
        ('template = "rows"', SOFTMAX, "own.toml:3: 'rows' is not a template. Did you mean row?"),
        ('template = "zzz"', SOFTMAX, "'zzz' is not a template. There are: "),
        ('template = "row"', "", 'must be "pointwise" or "movement" or tables'),
        ('template = "row"\nanchor = []', "", 'must be "pointwise" or "movement" or tables'),
        ('template = "row"\nanchor = "softmax"', "", 'must be "pointwise" or "movement" or tables'),
        ('template = "row"\nbeside = "z"', SOFTMAX, "`beside` is 'z', which is not an input of every anchor"),
        ('template = "pointwise"\nanchor = "pointwise"\nover = "x"', "", "`over` is 'x', which is not an input"),
        ('template = "row"', SOFTMAX + 'exact = "yes"\n', "`exact` is \"too\" or \"only\", not 'yes'"),
        ('template = "row"', SOFTMAX + 'kernel = ["rank(x) == 2"]\n', "`kernel` says where `realize` does not"),
        ('template = "row"', SOFTMAX + 'optional = ["z"]\n', "optional 'z' is neither an input of the pattern nor"),
        ('template = "row"', SOFTMAX + 'optional = ["y"]\n', "optional 'y' is neither an input of the pattern nor"),
        (
            'template = "library"',
            SOFTMAX
            + "[fuse.anchor.realize]\npattern = '''(x) => (y) { y = Hardmax (x) }'''\nwhere = ['rank(x) == 2']\n",
            "without a kernel, the `where` of the anchor says where the library's op does it",
        ),
    ],
)  # fmt: skip
def test_a_wrong_table_is_told_with_its_place(read: Read, lines: str, anchors: str, told: str) -> None:
    with pytest.raises(RuleError) as raised:
        read(lines, anchors)
    assert told in str(raised.value)


PART = "[[part.Twice]]\npattern = '''(x) => (y) { a = Neg (x) y = Neg (a) }'''\n"


def test_parts_use_others_in_any_order_but_not_themselves(read: Read) -> None:
    """A pattern that names one is each of its spellings."""
    outer = "[[part.Four]]\npattern = '''(x) => (y) { a = Twice (x) y = Twice (a) }'''\n"
    anchor = "[[fuse.anchor]]\npattern = '''(x) => (y) { a = Four (x) y = Softmax (a) }'''\n"
    for parts in (outer + PART, PART + outer):
        (found,) = read('template = "row"', anchor, parts).anchors
        assert found.pattern.root.op == "Softmax"
    itself = "[[part.Four]]\npattern = '''(x) => (y) { y = Four (x) }'''\n"
    with pytest.raises(RuleError, match="the part 'Four' uses itself"):
        read('template = "row"', anchor, itself)
    with pytest.raises(RuleError, match=r"a part is written \[\[part\.Four\]\]"):
        read('template = "row"', anchor, "[part.Four]\npattern = 'x'\n")


def test_anchors_of_one_rule_are_all_the_librarys_or_none(read: Read) -> None:
    """The kernel computes its anchor, or what is around it."""
    bias = "[[fuse.anchor]]\npattern = '''(x, b) => (y) { y = Add (x, b) }'''\n"
    around = [name for name, one in cuda.TEMPLATES.items() if Growth.LIBRARY_ANCHOR in one.growth]
    assert around
    assert read(f'template = "{around[0]}"', PRODUCT).wants(Growth.LIBRARY_ANCHOR)
    assert not read(f'template = "{around[0]}"', bias).wants(Growth.LIBRARY_ANCHOR)
    with pytest.raises(RuleError, match="the kernel computes one of them, not the other"):
        read(f'template = "{around[0]}"', PRODUCT + bias)
