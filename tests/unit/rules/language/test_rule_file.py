"""A wrong rule file is refused with file, line, what was expected and the nearest word; a user's rules join ours."""

from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.cuda import Growth
from onnxfuse.fusion.region.choices import Choices, Declined
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.pattern.pattern import choices, every_spelling
from onnxfuse.support.errors import RuleError
from tests.support.small import assert_same_numbers, numbers, ops, parse

GOOD = '''\
summary = "Relu of Relu is one Relu."

[[rewrite]]
from = """(x) => (y) {
  a = Relu (x)
  y = Relu (a)
}"""
to = """(x) => (y) { y = Relu (x) }"""
where = ["rank(x) <= 4"]

[[example]]
model = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3] x) => (float[3] y) { a = Relu (x) y = Relu (a) }"""
after = ["Relu"]
'''

FUSE = '''\
summary = "A reduction and what follows."

[fuse]
template = "row"
least = 1

[[fuse.anchor]]
pattern = """(x) => (y) { y = Softmax <axis: int = @axis> (x) }"""
where = ["value(axis) in (-1, 1)"]
'''


COSTLY = FUSE + 'cost = ["dim(x, -1) <= 4"]\n'


def write(folder: Path, text: str, name: str = "mine") -> Path:
    """Write a rule file; return its path."""
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


def test_a_good_file_is_read(tmp_path: Path) -> None:
    """Its name is the file's; the rewrites, predicates and examples are there."""
    one = rule_file.read(write(tmp_path, GOOD))
    assert (one.name, one.summary) == ("mine", "Relu of Relu is one Relu.")
    assert len(one.rewrites) == len(one.examples) == 1
    assert rule_file.read(write(tmp_path, FUSE)).fuse is not None


@pytest.mark.parametrize(
    ("good", "bad", "line", "told"),
    [
        # A key that does not exist, at each level.
        ("summary =", "sumary =", 1, "'sumary' is not a key of a rule file. Did you mean summary?"),
        ("[[rewrite]]", "[[rewrites]]", 3, "'rewrites' is not a key of a rule file. Did you mean rewrite?"),
        ("where =", "were =", 9, "'were' is not a key of [[rewrite]]. Did you mean where?"),
        ("after =", "afterwards =", 14, "'afterwards' is not a key of [[example]]. Did you mean after?"),
        # A value of the wrong kind.
        ('summary = "Relu of Relu is one Relu."', "summary = 3", 1, "'summary' must be a string, got 3"),
        ('where = ["rank(x) <= 4"]', "where = 4", 9, "'where' must be a list, got 4"),
        # Not TOML.
        ("[[rewrite]]", "[[rewrite]", 3, "line 3"),
        ('summary = "Relu of Relu is one Relu."', "summary = Relu", 1, "Invalid value (at line 1, column 11)"),
        # Predicates.
        ("rank(x) <= 4", "rnk(x) <= 4", 9, "'rnk' is not a predicate. Did you mean rank?"),
        ("rank(x) <= 4", "konst(x)", 9, "'konst' is not a predicate. Did you mean const?"),
        ("rank(x) <= 4", "rank(x)", 9, "'rank' needs a comparison after it, got 'rank(x)'"),
        ("rank(x) <= 4", "const(x) == 1", 9, "'const' takes no comparison, got 'const(x)'"),
        ("rank(x) <= 4", "x is small", 9, "'x' and 'small' are compared by none of ==, !=,"),
        ("rank(x) <= 4", "rank(z) <= 4", 9, "'z' is not a name of the pattern"),
        ("rank(x) <= 4", "dtype(x) in float15", 9, "'float15' is not an element type. Did you mean float16?"),
        ("rank(x) <= 4", "dim(x, 0) == dm(x, 1)", 9, "'dm' is not a predicate. Did you mean dim?"),
        ("rank(x) <= 4", "rank(x) <= 4 or dim(x, 0)", 9, "'dim' needs a comparison after it, got 'dim(x, 0)'"),
        ("rank(x) <= 4", "rank(x) + 4", 9, "'rank(x) + 4' is not a condition: it is neither a comparison nor a "
            "predicate"),
        ("rank(x) <= 4", "unless rank(x) == 2: no", 9, "'unless rank(x) == 2: no' is not an expression"),
        ("rank(x) <= 4", "shape(x)[1.5] == 2", 9, "is not an element or a range between two whole numbers"),
        ("rank(x) <= 4", "dim(x, 1.5) == 2", 9, "dim takes an integer, got '1.5'"),
        ("rank(x) <= 4", "read_by(a, Reshpe)", 9, "read_by takes an operator of ONNX, got 'Reshpe'"),
        ("rank(x) <= 4", "each(rnk(x) == 4)", 9, "'rnk' is not a predicate. Did you mean rank?"),
        # Patterns.
        ("a = Relu (x)", "a = Rleu (x)", 4, "'Rleu' is not an ONNX operator. Did you mean Relu?"),
        ("a = Relu (x)", "a = Elu <alpa = 1.0> (x)", 4, "Elu has no attribute 'alpa'. Did you mean alpha?"),
        ("a = Relu (x)", "a = Relu x", 4, "Expected character ( not found."),
        ("y = Relu (a)\n", "y = Relu (b)\n", 4, "'b' is neither an input of the pattern nor computed"),
        ("(x) => (y) {\n", "(x) => (z) {\n", 4, "output 'z' is computed by no node of the pattern"),
        # The replacement.
        ("(x) => (y) { y = Relu (x) }", "(z) => (y) { y = Relu (z) }", 8, "`to` uses the value 'z'"),
        ("(x) => (y) { y = Relu (x) }", "(x) => (z) { z = Relu (x) }", 8, "`to` yields"),
        (
            "(x) => (y) { y = Relu (x) }",
            "(x) => (y) { y = Elu <alpha: float = @alpha> (x) }",
            8,
            "`to` uses the label 'alpha', which `from` does not have.",
        ),
        # Values that stay.
        ('where = ["rank(x) <= 4"]', 'keep = ["x"]', 9, "keep: 'x' is not a value inside the pattern"),
        # An optional input.
        ('where = ["rank(x) <= 4"]', "optional = { b = 0.0 }", 9, "optional 'b' is not an input of the pattern"),
        # When it is worth asking for.
        ("is one Relu.\"", "is one Relu.\"\noptional = \" \"", 2, "`optional` says in one line when the rule is worth"),
        ("is one Relu.\"", "is one Relu.\"\noptional = true", 2, "'optional' must be a string, got True"),
        # An example.
        ('after = ["Relu"]', 'after = ["Relu"]\nrefusal = "why"', 12, "an example has either `after` or `refusal`"),
        ('after = ["Relu"]', "", 12, "an example has either `after` or `refusal`"),
        ('after = ["Relu"]', 'refusal = "x"', 12, "`refusal` is 'x', too short to tell one reason from another"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_file_line_and_nearest_word(
    tmp_path: Path, good: str, bad: str, line: int, told: str
) -> None:
    """Each mistake is one change to a good file."""
    assert good in GOOD
    path = write(tmp_path, GOOD.replace(good, bad, 1))
    with pytest.raises(RuleError) as caught:
        rule_file.read(path)
    message = str(caught.value)
    assert told in message
    assert message.startswith(str(path))
    assert f":{line}: " in message or f"line {line}" in message


@pytest.mark.parametrize(
    ("good", "bad", "line", "told"),
    [
        ('template = "row"', 'template = "rows"', 4, "'rows' is not a template. Did you mean row?"),
        ('template = "row"', 'template = "conv"', 4, "'conv' is not a template."),
        ("least = 1", 'prologue = "z"', 5, "`prologue` is 'z', which is not an input of every anchor"),
        ("least =", "lest =", 5, "'lest' is not a key of [fuse]. Did you mean least?"),
        ("pattern =", "patern =", 8, "'patern' is not a key of [[fuse.anchor]]. Did you mean pattern?"),
        ("value(axis)", "value(axes)", 9, "'axes' is not a name of the pattern. Did you mean axis?"),
        ("least = 1", "least = \"two\"", 5, "'least' must be an integer, got 'two'"),
        ("where =", "optional = [\"z\"]\nwhere =", 9, "'z' is neither an input of the pattern nor a later output"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_fuse_rule_is_told_too(tmp_path: Path, good: str, bad: str, line: int, told: str) -> None:
    """Anchors, templates and growth have their own words."""
    assert good in FUSE
    path = write(tmp_path, FUSE.replace(good, bad, 1))
    with pytest.raises(RuleError) as caught:
        rule_file.read(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: ")


CLASSES = """summary = "What works on each element may stand behind the transpose."
[[rewrite]]
from = '(x, c) => (y) { f = Pointwise <_: string = @f> (x, c)  g = Pointwise <_: string = @g> (f)  y = Transpose (g) }'
to = '(x, c) => (y) { t = Transpose (x)  f = Pointwise <_: string = @f> (t, c)  y = Pointwise <_: string = @g> (f) }'
where = ["size(c) == 1"]
"""


@pytest.mark.parametrize(
    ("nodes", "left"),
    [
        ("f = Sub (x, c)  g = LeakyRelu <alpha = 0.25> (f)", ["Transpose", "Sub", "LeakyRelu"]),
        ("f = Mul (c, x)  g = Elu <alpha = 0.5> (f)", ["Transpose", "Mul", "Elu"]),
        ("f = Div (c, x)  g = Elu (f)", ["Div", "Elu", "Transpose"]),
        ("f = Mul (c, x)  g = Softmax (f)", ["Mul", "Softmax", "Transpose"]),
    ],
)
def test_a_class_stands_for_each_of_its_operators(tmp_path: Path, nodes: str, left: list[str]) -> None:
    """What `to` writes is the operator that was there, with its attributes; other operators do not match."""
    text = f"g (float[2,3] x) => (float[3,2] y) <float c = {{1.5}}> {{ {nodes} y = Transpose (g) }}"
    made = parse(text)
    pipeline.run(made, [rule_file.read(write(tmp_path, CLASSES))])
    assert [n.op_type for n in made.graph.node] == left
    assert_same_numbers(parse(text), made)


@pytest.mark.parametrize(
    ("good", "bad", "line", "told"),
    [
        ("y = Pointwise <_: string = @g>", "y = Pointwise <_: string = @h>", 4, "has a Pointwise, but `from` does not"),
        ("y = Pointwise <_: string = @g>", "y = Reduction <_: string = @g>", 4, "has a Reduction, but `from` does not"),
        ("g = Pointwise <_: string = @g>", "g = Pointwise <alpha = 1.0>", 3, "operators, which have no 'alpha' in"),
        ("f = Pointwise <_: string = @f> (x", "f = Pointwize (x", 3, "not an ONNX operator. Did you mean Pointwise?"),
    ],
)  # fmt: skip
def test_a_mistake_with_a_class_is_told(tmp_path: Path, good: str, bad: str, line: int, told: str) -> None:
    """Which operator is written must be known, and what all have in common is all that can be asked."""
    assert good in CLASSES
    path = write(tmp_path, CLASSES.replace(good, bad, 1))
    with pytest.raises(RuleError) as caught:
        rule_file.read(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: ")


def test_a_value_that_is_kept_may_be_read_elsewhere(tmp_path: Path) -> None:
    """Its node stays while that is so; `to` may read it."""
    text = "g (float[3] x) => (float[3] y, float[3] z) { a = Relu (x) y = Relu (a) z = Neg (a) }"
    for key, value, left in (
        ("", "x", ["Neg", "Relu", "Relu"]),
        ('keep = ["a"]', "x", ["Neg", "Relu", "Relu"]),
        ('keep = ["a"]', "a", ["Identity", "Neg", "Relu"]),
    ):
        op = "Relu" if value == "x" else "Identity"
        rule = GOOD.replace("(x) => (y) { y = Relu (x) }", f"({value}) => (y) {{ y = {op} ({value}) }}")
        rule = rule.replace('where = ["rank(x) <= 4"]', key).partition("[[example]]")[0]
        made = parse(text)
        report = pipeline.run(made, [rule_file.read(write(tmp_path, rule))])
        assert sorted(n.op_type for n in made.graph.node) == left
        assert len(report.applied) == bool(key)
        assert next(n for n in made.graph.node if "y" in n.output).input[0] == (value if key else "a")


def test_a_part_of_a_rewrite_has_no_librarys_form(tmp_path: Path) -> None:
    """It would be ignored: a rewrite writes `to`."""
    part = '[[part.Twice]]\npattern = "(x) => (y) { y = Relu (x) }"\nrealize = "(x) => (y) { y = Abs (x) }"\n'
    rule = GOOD.replace("y = Relu (a)", "y = Twice (a)").partition("[[example]]")[0]
    path = write(tmp_path, rule + part)
    with pytest.raises(RuleError) as caught:
        rule_file.read(path)
    assert str(caught.value).startswith(f"{path}:4: the rewrite uses the part 'Twice', whose `realize` it ignores")
    assert "`to`" in str(caught.value.hint)


def test_a_librarys_form_has_no_class(tmp_path: Path) -> None:
    """Nothing says there which operator it is."""
    text = REALIZED.replace("y = com.microsoft.Norm <n: int = @width> (x)", "y = Pointwise <_: string = @f> (x)")
    with pytest.raises(RuleError, match="`realize` has a Pointwise, but its anchor does not say which"):
        rule_file.read(write(tmp_path, text))


def test_what_the_template_does_not_compute_stays_a_node(tmp_path: Path) -> None:
    """A product stays with the library, a sum does not; one rule does not mix them."""
    head = 'summary = "s"\n[fuse]\ntemplate = "pointwise"\n'
    one = "[[fuse.anchor]]\npattern = '(x, w) => (y) {{ y = {} (x, w) }}'\n"
    model = """g (float[4,4] x, float[4,4] w) => (float[4,4] y) { m = MatMul (x, w) a = Add (m, x) y = Relu (a) }"""
    for op, left in (("MatMul", ["MatMul", "{Add Relu}"]), ("Add", ["MatMul", "{Add Relu}"])):
        fuse = rule_file.read(write(tmp_path, head + one.format(op))).fuse
        assert fuse is not None
        assert fuse.wants(Growth.LIBRARY_ANCHOR) is (op == "MatMul")
        made = parse(model)
        pipeline.run(made, rule_file.load(tmp_path))
        assert ops(made) == left
    path = write(tmp_path, head + one.format("MatMul") + one.format("Add"))
    with pytest.raises(RuleError, match=r":7: this anchor and the first one: the kernel computes one of them"):
        rule_file.read(path)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GOOD.replace('summary = "Relu of Relu is one Relu."', ""), "needs the key 'summary'"),
        (GOOD.replace('to = """(x) => (y) { y = Relu (x) }"""', ""), "[[rewrite]] needs the key 'to'"),
        (FUSE.replace('template = "row"', ""), "[fuse] needs the key 'template'"),
        ('summary = "Nothing."', "has neither [[rewrite]] nor [fuse]"),
        (FUSE.split("[[fuse.anchor]]")[0], '`anchor` must be "pointwise" or "movement" or tables'),
    ],
)
def test_what_is_missing_is_told(tmp_path: Path, text: str, told: str) -> None:
    """A key that must be there is named, with the table that wants it."""
    path = write(tmp_path, text)
    with pytest.raises(RuleError) as caught:
        rule_file.read(path)
    assert told in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_folder_without_rules_is_told(tmp_path: Path) -> None:
    """Empty, or not there."""
    with pytest.raises(RuleError, match=r"holds no \.toml rule file"):
        rule_file.load(tmp_path)
    with pytest.raises(RuleError, match="no such folder of rules"):
        rule_file.load(tmp_path / "nowhere")


def test_a_file_that_is_no_text_is_told(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are a mistake in a rule file like any other."""
    (tmp_path / "mine.toml").write_bytes(b"\xff\xfe\x00summary")
    with pytest.raises(RuleError, match=r"mine\.toml"):
        rule_file.load(tmp_path)


LAYOUT = """summary = "Channels last."
channels_last = ["float16"]
"""


@pytest.mark.parametrize(
    ("good", "bad", "line", "told"),
    [
        ("channels_last", "chanels_last", 2, "'chanels_last' is not a key of a rule file. Did you mean channels_last?"),
        ("float16", "float15", 2, "'float15' is not an element type. Did you mean float16?"),
        ('["float16"]', '"float16"', 2, "'channels_last' must be a list, got 'float16'"),
    ],
)
def test_a_mistake_in_a_layout_is_told(tmp_path: Path, good: str, bad: str, line: int, told: str) -> None:
    """Each mistake is one change to a good file."""
    assert rule_file.read(write(tmp_path, LAYOUT)).layout == rule_file.LayoutOptions((10,))
    path = write(tmp_path, LAYOUT.replace(good, bad, 1))
    with pytest.raises(RuleError) as caught:
        rule_file.read(path)
    assert told in str(caught.value)
    assert f":{line}: " in str(caught.value)


def test_rewrites_that_undo_each_other_are_refused(tmp_path: Path) -> None:
    """The message names the rules at fault, and no other, instead of running for ever."""
    there = GOOD.replace("a = Relu (x)\n  y = Relu (a)", "y = Relu (x)").replace("{ y = Relu (x) }", "{ y = Abs (x) }")
    back = GOOD.replace("a = Relu (x)\n  y = Relu (a)", "y = Abs (x)")
    write(tmp_path, there, "there")
    write(tmp_path, back, "back")
    model = parse("g (float[3] x) => (float[3] y) { y = Relu (x) }")
    with pytest.raises(
        RuleError, match=r"the rules '(there', 'back|back', 'there)' feed each other: the graph goes in circles"
    ):
        pipeline.run(model, rule_file.select([tmp_path]))


def test_a_rewrite_that_feeds_itself_stops_at_once(tmp_path: Path) -> None:
    """Each node would become two in each of fifty rounds: it is named before there are many."""
    once, twice = "a = Relu (x)\n  y = Relu (a)", "y = Relu (x)"
    text = GOOD.replace(once, "KEPT").replace(twice, once).replace("KEPT", twice)
    write(tmp_path, text, "grows")
    chain = " ".join(f"v{i + 1} = Relu (v{i})" for i in range(300))
    model = parse(f"g (float[3] v0) => (float[3] y) {{ {chain} y = Exp (v300) }}")
    with pytest.raises(RuleError, match=r"the rule 'grows' feeds itself: the graph has grown to \d{4} nodes"):
        pipeline.run(model, rule_file.select([tmp_path]))


# ---- a user's own rules


def test_a_users_rule_joins_the_shipped_ones(tmp_path: Path) -> None:
    """It applies beside them, in Python as on the command line."""
    write(tmp_path, GOOD)
    names = [r.name for r in rule_file.select([tmp_path])]
    assert names == [*(r.name for r in rule_file.shipped()), "mine"]
    model = parse("g (float[3] x) => (float[3] y) { a = Relu (x) b = Relu (a) c = Relu (b) y = Softmax (c) }")
    made = onnxfuse.optimize(model, rules=[tmp_path])
    assert ops(made) == ["{Relu Softmax}"]


def test_a_users_rule_of_the_same_name_takes_the_place_of_ours(tmp_path: Path) -> None:
    """Softmax that may not grow: our file of that name is not read."""
    write(tmp_path, FUSE.replace("least = 1", "prologue = false"), "softmax")
    assert [r.name for r in rule_file.select([tmp_path])] == [r.name for r in rule_file.shipped()]
    model = parse("g (float[N,4] x) => (float[N,4] y) { a = Relu (x) b = Softmax (a) y = Neg (b) }")
    made = onnxfuse.optimize(model, rules=[tmp_path])
    assert ops(made) == ["Relu", "{Softmax Neg}"]


def test_a_users_fusion_needs_no_code(tmp_path: Path) -> None:
    """A reduction that no shipped rule names becomes a fused op through one file."""
    text = FUSE.replace("(x) => (y) { y = Softmax <axis: int = @axis> (x) }", PATTERN)
    write(tmp_path, text.replace("value(axis)", "value(axes)"), "maximum")
    model = parse("""g (float[N,4] x) => (float[N,4] y) {
      m = ReduceMax <axes = [-1]> (x) d = Sub (x, m) y = Exp (d)
    }""")
    made = onnxfuse.optimize(model, rules=[tmp_path])
    assert ops(made) == ["{ReduceMax Sub Exp}"]
    onnx.checker.check_model(made, full_check=True)
    assert_same_numbers(model, made)


PATTERN = "(x, axes) => (y) { m = ReduceMax (x, axes) y = Sub (x, m) }"


# ---- named parts, labels from terms, the library's form

PARTS = '''\
summary = "A sum of squares under a root."

[fuse]
template = "row"

[[part.Square]]
pattern = """(a) => (b) { b = Mul (a, a) }"""

[[part.Square]]
pattern = """(a, two) => (b) { b = Pow (a, two) }"""
where = ["value(two) == 2"]
let = { power = "value(two)" }

[[fuse.anchor]]
pattern = """(x, axes) => (y) {
  s = Square (x)
  m = ReduceSum (s, axes)
  y = Sqrt (m)
}"""
where = ["const(axes)"]
let = { width = "dim(x, -1) * 2 - -1" }
'''

FORM = "(x) => (y) { y = com.microsoft.Norm <n: int = @width> (x) }"
GROW = "transposes = true\n"
WITHOUT = PARTS.replace('template = "row"', 'template = "library"')
REALIZED = WITHOUT.replace('let = { power = "value(two)" }\n', "") + f'realize = """{FORM}"""\n'


def test_a_named_part_stands_for_each_of_its_spellings(tmp_path: Path) -> None:
    """What a spelling asks, binds and reads joins the anchor's."""
    made = rule_file.read(write(tmp_path, PARTS)).fuse
    assert made is not None
    (anchor,) = made.anchors
    assert [p.text for p in anchor.where] == ["const(axes)"]
    assert [b.label for b in anchor.let] == ["width"]
    first, second = choices(anchor.pattern, anchor.pattern.calls[0])
    assert [[n.op for n in p.nodes] for p in (first, second)] == [[op, "ReduceSum", "Sqrt"] for op in ("Mul", "Pow")]
    assert first.inputs == ("x", "axes")
    assert second.inputs == ("x", "axes", "two")
    assert [line.text for line in (*first.where, *second.where)] == ["value(two) == 2"]
    assert [*first.let, *second.let] == ["power"]


@pytest.mark.parametrize("square", ["s = Mul (x, x)", "s = Pow (x, two)"])
def test_every_spelling_of_a_part_is_found(tmp_path: Path, square: str) -> None:
    """And a number that its `where` does not allow is refused."""
    write(tmp_path, PARTS)
    text = f"""g (float[N,4] x) => (float[N,1] y) <int64[1] axes = {{-1}}, float two = {{2}}> {{
      {square} m = ReduceSum (s, axes) y = Sqrt (m)
    }}"""
    (mine,) = rule_file.load(tmp_path)
    model = parse(text)
    assert pipeline.run(model, [mine]).by_rule() == {"mine": 1}
    assert_same_numbers(parse(text), model)
    other = parse(text.replace("two = {2}", "two = {3}"))
    report = pipeline.run(other, [mine])
    assert bool(report.applied) is ("Mul" in square)


def test_parts_inside_parts_and_twice_in_a_pattern(tmp_path: Path) -> None:
    """Every spelling stands in some pattern; inner names of the second use do not clash with those of the first."""
    define = """[[part.{0}]]
pattern = '''(a) => (b) {{ inner = {1} (a) b = {2} (inner) }}'''
"""
    parts = "".join(define.format(*w) for w in (("P", "Relu", "Neg"), ("P", "Abs", "Neg"), ("Q", "Exp", "P")))
    anchor = "[[fuse.anchor]]\npattern = '''(x) => (y) { p = P (x) q = Q (p) y = Softmax (q) }'''\n"
    made = rule_file.read(write(tmp_path, PARTS.split("[[part")[0] + parts + anchor)).fuse
    assert made is not None
    (only,) = made.anchors
    spelled = list(every_spelling(only.pattern))
    assert {tuple(n.op for n in p.nodes) for p in spelled} >= {
        ("Relu", "Neg", "Exp", "Relu", "Neg", "Softmax"), ("Abs", "Neg", "Exp", "Relu", "Neg", "Softmax"),
        ("Relu", "Neg", "Exp", "Abs", "Neg", "Softmax"),
    }  # fmt: skip
    for pattern in spelled:
        outputs = [o for n in pattern.nodes for o in n.outputs]
        assert len(set(outputs)) == len(outputs)


SIGNED = '''\
summary = "A sign before or behind a product goes."

[conditions]
thin = ["rank(w) == 2", "dim(w, 1) <= 4"]

[[part.Opposite]]
pattern = """(x) => (y) { y = Neg (x) }"""

[[part.Opposite]]
pattern = """(x, minus) => (y) { y = Mul (x, minus) }"""
where = "value(minus) == -1"

[[part.Cut]]
pattern = """(x, sizes) => (a, b) { a, b = Split <axis = 1, _: string = @split> (x, sizes) }"""
optional = ["sizes"]

[[rewrite]]
from = """(x, w) => (a, b) {
  n = Opposite (x)
  m = MatMul (n, w)
  y = Opposite (m)
  a, b = Cut (y)
}"""
to = """(x, w) => (a, b) {
  m = MatMul (x, w)
  a, b = Split <axis = 1, num_outputs = 2> (m)
}"""
where = ["thin", "const(w)"]
'''
"""Parts in a rewrite, one of them at its root, and conditions by name."""


def opposites(first: str, second: str, split: str, columns: int = 4) -> str:
    """Return a product between two nodes, cut into two."""
    return f"""g (float[N,3] x) => (float[N,{columns // 2}] a, float[N,{columns // 2}] b)
    <float[3,{columns}] w = {{{numbers(3 * columns, 5)}}}, float k = {{-1}}, float two = {{2}}, int64[2] s = {{2,2}}> {{
      n = {first} m = MatMul (n, w) y = {second} a, b = {split}
    }}"""


SPLITS = ("Split <axis = 1, num_outputs = 2> (y)", "Split <axis = 1> (y, s)")


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("second", ["Neg (m)", "Mul (m, k)"])
@pytest.mark.parametrize("first", ["Neg (x)", "Mul (k, x)"])
def test_a_rewrite_may_use_parts(tmp_path: Path, first: str, second: str, split: str) -> None:
    """Each spelling of each is found; an input of one may be absent."""
    one = rule_file.read(write(tmp_path, SIGNED))
    assert [[p.text for p in r.where] for r in one.rewrites] == [["rank(w) == 2", "dim(w, 1) <= 4", "const(w)"]]
    text = opposites(first, second, split)
    model = parse(text, opset=18)
    assert pipeline.run(model, [one]).by_rule() == {"mine": 1}
    assert ops(model) == ["MatMul", "Split"]
    assert_same_numbers(parse(text, opset=18), model)


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        ("not thin", "not ((rank(w) == 2) and (dim(w, 1) <= 4))"),
        ("dim(w, 0) == 1 or thin", "dim(w, 0) == 1 or ((rank(w) == 2) and (dim(w, 1) <= 4))"),
    ],
)
def test_a_condition_may_use_others_by_name(tmp_path: Path, line: str, whole: str) -> None:
    one = rule_file.read(write(tmp_path, SIGNED.replace('["thin", "const(w)"]', f'["{line}"]')))
    assert [[p.text for p in r.where] for r in one.rewrites] == [[whole]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (opposites("Neg (x)", "Mul (m, two)", SPLITS[0]), "value(minus) is 2; the rule wants value(minus) == -1"),
        (opposites("Neg (x)", "Neg (m)", SPLITS[0], 6), "dim(w, 1) is 6; the rule wants dim(w, 1) <= 4"),
    ],
)
def test_conditions_of_a_rewrites_parts_and_by_name_hold(tmp_path: Path, text: str, told: str) -> None:
    """A refusal gives the condition as it is written where it is named."""
    near = pipeline.run(parse(text, opset=18), [rule_file.read(write(tmp_path, SIGNED))]).near
    assert any(told in n.refusal.reason for n in near)


@pytest.mark.parametrize(
    ("good", "bad", "line", "told"),
    [
        ('["thin"', '["thinn"', 28, "'thinn' is not a condition, and [conditions] does not name it. Did you mean "
            "thin?"),
        ("thin =", '"thin w" =', 4, "'thin w' is not a valid name for conditions"),
        ('thin = ["rank', 'thin = ["thin", "rank', 4, "'thin' is not a condition, and [conditions] does not name it"),
        ("rank(w)", "rnk(w)", 4, "'rnk' is not a predicate. Did you mean rank?"),
        ("Opposite (m)", "Oposite (m)", 18, "'Oposite' is not an ONNX operator. Did you mean Opposite?"),
        ("value(minus)", "value(minos)", 11, "'minos' is not a name of the pattern. Did you mean minus?"),
        ('["sizes"]', '["size"]', 14, "optional 'size' is neither an input of the pattern nor a later output."),
    ],
)  # fmt: skip
def test_a_mistake_in_shared_conditions_or_parts_is_told(
    tmp_path: Path, good: str, bad: str, line: int, told: str
) -> None:
    """With file and line; parts of rewrites are checked in each spelling."""
    assert good in SIGNED
    with pytest.raises(RuleError) as caught:
        rule_file.read(write(tmp_path, SIGNED.replace(good, bad)))
    assert told in str(caught.value)
    assert f"mine.toml:{line}: " in str(caught.value)


@pytest.mark.parametrize(
    ("good", "bad", "line", "told"),
    [
        # Parts.
        ("s = Square (x)", "s = Sqare (x)", 15, "'Sqare' is not an ONNX operator."),
        ("s = Square (x)", "s, t = Square (x)", 15, "Square is used as (x) => (s, t); a spelling of it has (a) => (b)"),
        ("s = Square (x)", "s = Square (x, axes)", 15, "Square is used as (x, axes) => (s); a spelling of it has (a)"),
        ("(a) => (b) { b = Mul (a, a) }", "(a) => (b) { b = Mul a }", 7, "Expected character ( not found."),
        ("(a) => (b) { b = Mul (a, a) }", "(a) => (b) { b = Mull (a, a) }", 7, "'Mull' is not an ONNX operator."),
        ("pattern = \"\"\"(a) =>", "patern = \"\"\"(a) =>", 7, "'patern' is not a key of [[part.Square]]"),
        ('where = ["value(two) == 2"]', "where = 2", 11, "'where' must be a list"),
        ("value(two) == 2", "value(too) == 2", 11, "'too' is not a name of the pattern. Did you mean two?"),
        # Labels from terms.
        ('"value(two)"', '"2 * (1"', 12, "'2 * (1' is not an expression"),
        ('"value(two)"', '"1 /"', 12, "'1 /' is not an expression"),
        ('"value(two)"', '"valu(two)"', 12, "'valu' is not a predicate. Did you mean value?"),
        ('"value(two)"', '"value(too)"', 12, "'too' is not a name of the pattern. Did you mean two?"),
        ('"value(two)"', '"1 / two"', 12, "'two' is not allowed in an expression"),
        ('"value(two)"', '"value(two) ** 2"', 12, "'value(two) ** 2' is not allowed in an expression"),
        ('"value(two)"', "\"'two'\"", 12, "is not allowed in"),
        ('{ power = "value(two)" }', "3", 12, "'let' must be a table, got 3"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_part_or_a_label_is_told(tmp_path: Path, good: str, bad: str, line: int, told: str) -> None:
    """With the line of the pattern or the expression where it stands."""
    assert good in PARTS
    path = write(tmp_path, PARTS.replace(good, bad, 1))
    with pytest.raises(RuleError) as caught:
        rule_file.read(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    ("good", "bad", "line", "told"),
    [
        ("@width>", "@widht>", 21, "uses the label 'widht', which its anchor does not have. Did you mean width?"),
        (FORM, FORM.replace("(x) =>", "(z) =>"), 21, "'x' is neither an input of the pattern"),
        (FORM, FORM.replace("(x)", "(two)"), 21, "uses the value 'two', which its anchor does not have."),
        (FORM, FORM.replace("(x)", "(m)"), 21, "uses the value 'm', which its anchor does not have."),
        (FORM, FORM.replace("(y)", "(z)").replace("y =", "z ="), 21, "yields ('z',), its anchor yields ('y',)"),
        ('template = "library"', f'{GROW}template = "library"', 4, "`transposes` grows by transposed output, which"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_librarys_form_is_told(tmp_path: Path, good: str, bad: str, line: int, told: str) -> None:
    """It may use the anchor's own inputs, what every spelling of it has, and nothing from inside."""
    assert rule_file.read(write(tmp_path, REALIZED)).fuse
    assert good in REALIZED
    path = write(tmp_path, REALIZED.replace(good, bad, 1))
    with pytest.raises(RuleError) as caught:
        rule_file.read(path)
    assert told in str(caught.value)
    assert str(caught.value).startswith(f"{path}:{line}: ")


@pytest.mark.parametrize(
    ("parts", "told"),
    [({"A": "A"}, "the part 'A' uses itself"), ({"A": "B", "B": "A"}, "the part 'A' uses itself")],
)
def test_a_part_that_uses_itself_is_refused(tmp_path: Path, parts: dict[str, str], told: str) -> None:
    """It would stand for endlessly many patterns; a part may use others."""
    tables = [f"[[part.{n}]]\npattern = '''(x) => (y) {{ y = {used} (x) }}'''" for n, used in parts.items()]
    file = tmp_path / "loop.toml"
    file.write_text(
        'summary = "s"\n[fuse]\ntemplate = "row"\n' + "\n".join(tables) + "\n[[fuse.anchor]]\n"
        "pattern = '''(x) => (y) { y = A (x) }'''\n"
    )
    with pytest.raises(RuleError, match=told):
        rule_file.read(file)


GIVEN = """summary = "A norm of something."
[fuse]
template = "attention"
[[part.Root]]
pattern = '''(x) => (r) { r = Sqrt (x) }'''
[[part.Root]]
pattern = '''(x) => (r) { }'''
where = ["rank(r) == 2"]
realize = '''(r) => (x) { x = Mul (r, r) }'''
[[fuse.anchor]]
pattern = '''(x) => (y) { r = Root (x) y = Tanh (r) }'''
where = ["not (dim(r, 0) == 3 and dim(r, 1) > 4)"]
realize = '''(x) => (y) { r = Sqrt (x) y = Tanh (r) }'''
"""


@pytest.mark.parametrize(
    ("model", "form"),
    [
        ("g (float[2,4] x) => (float[2,4] y) { r = Sqrt (x) y = Tanh (r) }", ["Sqrt", "Tanh"]),
        ("g (float[2,4] x) => (float[2,4] y) { r = Exp (x) y = Tanh (r) }", ["Mul", "Sqrt", "Tanh"]),
        ("g (float[3,N] x) => (float[3,N] y) { r = Exp (x) y = Tanh (r) }", ["Mul", "Sqrt", "Tanh"]),
    ],
)
def test_a_part_may_be_whatever_is_there(tmp_path: Path, model: str, form: list[str]) -> None:
    """It then says how the library's form gets the argument that the pattern does not find."""
    one = rule_file.read(write(tmp_path, GIVEN))
    made = parse(model)
    assert pipeline.run(made, [one]).by_rule() == {one.name: 1}
    (op,) = fused_ops(made).values()
    assert op.library is not None
    assert [n.op_type for n in op.library.node] == form


def test_not_refuses_what_is_known_to_hold(tmp_path: Path) -> None:
    """And that alone: of an open extent it is not known."""
    made = parse("g (float[3,5] x) => (float[3,5] y) { r = Exp (x) y = Tanh (r) }")
    report = pipeline.run(made, [rule_file.read(write(tmp_path, GIVEN))])
    assert not report.applied
    assert any(
        near.refusal.reason == "dim(r, 0) == 3 and dim(r, 1) > 4; the rule leaves that alone" for near in report.near
    )


def test_a_relation_of_words_may_stand_among_them(tmp_path: Path) -> None:
    """Float16 of any size, and float32 of many rows."""
    listed = '["value(axis) in (-1, 1)"]'
    one = '"value(axis) in (-1, 1) and (dtype(x) == float16 or dim(x, 0) >= 8)"'
    assert listed in FUSE
    rules = [rule_file.read(write(tmp_path, FUSE.replace(listed, one)))]
    made = [("float16[3,4]", 1), ("float[8,4]", 1), ("float[3,4]", 0)]
    for kind, fused in made:
        text = f"g ({kind} x) => ({kind} y) {{ s = Softmax (x)  y = Relu (s) }}"
        assert len(pipeline.run(parse(text), rules).applied) == fused


@pytest.mark.parametrize(("shape", "fused"), [("3,4", 1), ("N,4", 1), ("3,8", 1), ("5,8", 0), ("N,8", 0)])
def test_of_whole_relations_one_must_hold(tmp_path: Path, shape: str, fused: int) -> None:
    """What is not known does not hold; the refusal tells why each does not."""
    text = FUSE.replace('"value(axis) in (-1, 1)"', '"dim(x, 1) <= 4 or dim(x, 0) * dim(x, 1) <= 24"')
    report = pipeline.run(
        parse(f"g (float[{shape}] x) => (float[{shape}] y) {{ s = Softmax (x)  y = Relu (s) }}"),
        [rule_file.read(write(tmp_path, text))],
    )
    assert len(report.applied) == fused
    if not fused:
        assert all("dim(x, 1) is 8" in near.refusal.reason and " and " in near.refusal.reason for near in report.near)


@pytest.mark.parametrize(("columns", "axis", "static", "proposed"), [(4, 1, 1, 1), (8, 1, 0, 1), (8, 0, 0, 0)])
def test_cost_decides_only_where_nothing_was_measured(
    tmp_path: Path, columns: int, axis: int, static: int, proposed: int
) -> None:
    """Without choices both must hold; with them the fusion is proposed, and says what speaks against it."""
    rules = [rule_file.read(write(tmp_path, COSTLY))]
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[3,{columns}] x) => (float[3,{columns}] y) {{ s = Softmax <axis = {axis}> (x)  y = Relu (s) }}"""
    assert len(pipeline.run(parse(text), rules).applied) == static
    report = pipeline.run(parse(text), rules, choices=Choices())
    assert len(report.applied) == proposed
    assert [a.cost for a in report.applied] == [
        "dim(x, -1) is 8; the rule wants dim(x, -1) <= 4" if columns > 4 else ""
    ] * proposed


def test_a_declined_place_is_left_out_with_its_reason(tmp_path: Path) -> None:
    """There alone: the same op elsewhere is made. Left alone by every rule only where that was said."""
    mine = rule_file.read(write(tmp_path, FUSE.replace("least = 1", "prologue = false")))
    rules = [mine, *(r for r in rule_file.shipped() if r.name == "pointwise")]
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[3,8] x) => (float[3,8] y, float[3,8] z) {
      s = Softmax (x)  r = Relu (s)  y = Neg (r)
      t = Softmax (y)  u = Relu (t)  z = Neg (u)
    }"""
    first, second = (a for a in pipeline.run(parse(text), rules).applied if a.rule == "mine")
    assert first.op == second.op
    for alone, left in ((False, "pointwise"), (True, "")):
        choices = Choices({(first.op, first.outputs): Declined("measured slower", alone)})
        report = pipeline.run(parse(text), rules, choices=choices)
        assert {a.outputs: a.rule for a in report.applied} == {second.outputs: "mine"} | (
            {first.outputs: left} if left else {}
        )
        assert "measured slower" in [n.refusal.reason for n in report.near if n.refusal.cause.kind == "slower"]


def test_what_is_left_alone_is_no_neighbours_either(tmp_path: Path) -> None:
    """Measured as they stood together: no other region takes one of them, and says why."""
    rules = [rule_file.read(write(tmp_path, FUSE))]
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[3,8] x) => (float[3,8] z) { s = Softmax (x)  y = Relu (s)  t = Softmax (y)  z = Neg (t) }"""
    first, second = pipeline.run(parse(text), rules).applied
    for alone, taken in ((False, ["y", "t", "z"]), (True, ["t", "z"])):
        choices = Choices({(first.op, first.outputs): Declined("measured slower", alone)})
        (report,) = pipeline.run(parse(text), rules, choices=choices).applied
        assert [n.split()[1] for n in report.nodes] == taken
    assert "was measured to be faster unfused" in [s.reason for s in report.stops]
    assert [n.split()[1] for n in second.nodes] == ["t", "z"]


@pytest.mark.parametrize(
    "line",
    [
        "where = [1]", "where = 1", "let = []", "optional = 3", "where = ['max(dim(x, 1), 2) == 1']",
        "where = ['abs(dim(x, 0)) == 1']", "where = ['dim(x, 0)(1) + 2 == 1']", "where = ['dim(x, 0) + (1).real == 1']",
        "where = ['" + "-" * 3000 + "1 == dim(x, 0)']", "where = ['" + "(" * 300 + "1 == 1']",
        "where = ['1e400 * dim(x, 0) == 1']", "where = ['dim(x, 0) * " + "9" * 400 + " == 1']",
        "where = ['a\\u0000 + 1 == 2']",
        "where = [" + "[" * 3000,
    ],
)  # fmt: skip
def test_odd_values_are_told_by_file(tmp_path: Path, line: str) -> None:
    """Other types, functions there are none of, and what nests beyond any rule."""
    text = 'summary = "s"\n[[rewrite]]\nfrom = "(x) => (y) { y = Relu(x) }"\n'
    text += f'to = "(x) => (y) {{ y = Neg(x) }}"\n{line}\n'
    (tmp_path / "odd.toml").write_text(text)
    with pytest.raises(RuleError, match=r"odd\.toml"):
        rule_file.read(tmp_path / "odd.toml")


@pytest.mark.parametrize("operator", ["%", "//", "/"])
def test_what_is_divided_by_nothing_is_not_known(tmp_path: Path, operator: str) -> None:
    """A refusal with the rule's words, no ZeroDivisionError."""
    text = (
        'summary = "s"\n[[rewrite]]\nfrom = "(x) => (y) { y = Relu(x) }"\nto = "(x) => (y) { y = Neg(x) }"\n'
        f"where = ['dim(x, 0) {operator} dim(x, 1) == 1']\n"
    )
    (tmp_path / "odd.toml").write_text(text)
    empty = "g (float[2,0] x) => (float[2,0] y) { y = Relu(x) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {empty}')
    report = pipeline.run(model, [rule_file.read(tmp_path / "odd.toml")])
    assert not report.applied
    assert all("is not known; the rule wants" in near.refusal.reason for near in report.stopped)


SOMEWHERE = """summary = "A softmax that the library does in float32."
[fuse]
template = "row"
[[fuse.anchor]]
pattern = '''(x) => (y) { y = Softmax <axis = -1> (x) }'''
[fuse.anchor.realize]
where = "dtype(x) == float32"
pattern = '''(x) => (y) { y = Softmax <axis = -1> (x) }'''
"""


@pytest.mark.parametrize(("kind", "library"), [("float", True), ("float16", False)])
def test_realize_holds_where_its_condition_does(tmp_path: Path, kind: str, library: bool) -> None:
    """Elsewhere the same anchor has its kernel alone."""
    made = parse(f"g ({kind}[3,4] x) => ({kind}[3,4] y) {{ s = Softmax (x)  y = Relu (s) }}")
    pipeline.run(made, [rule_file.read(write(tmp_path, SOMEWHERE))])
    (op,) = fused_ops(made).values()
    assert (op.library is not None) is library


@pytest.mark.parametrize(
    ("good", "bad", "told"),
    [
        (
            'float32"\npattern =',
            'float32"\npatern =',
            "'patern' is not a key of .fuse.anchor.realize.. Did you mean pattern",
        ),
        ('template = "row"', 'template = "library"', "without a kernel, the `where` of the anchor says"),
    ],
)
def test_a_condition_of_nothing_is_told(tmp_path: Path, good: str, bad: str, told: str) -> None:
    """It is one of `realize`, of an anchor that has a kernel too."""
    assert good in SOMEWHERE
    with pytest.raises(RuleError, match=told):
        rule_file.read(write(tmp_path, SOMEWHERE.replace(good, bad)))
