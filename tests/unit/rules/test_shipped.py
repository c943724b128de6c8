"""Each rule keeps the promises of its own file: every [[example]] is run."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onnxfuse
from onnxfuse.model.fused import DOMAIN
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.support.small import assert_same_numbers, halved, ops, parse, signed_inputs

EXAMPLES = [(one, e, f"{one.name}-{index}") for one in rule_file.shipped() for index, e in enumerate(one.examples)]
APPLIES = [pytest.param(one, e, id=name) for one, e, name in EXAMPLES if e.after]
NAMED = (
    r"float16|DynamicQuantizeLinear|ReduceMin[\s\S]*Quant|"
    r"(MatMulInteger|ConvInteger|int32\[|float8)[\s\S]*Cast <to = 1>"
)
"""Examples of float16, of an operator of float32 alone or what that is written as, or of scales of sums of integers or
float8, whose Cast names the type."""
UNNAMED = [pytest.param(one, e, id=name) for one, e, name in EXAMPLES if e.after and not re.search(NAMED, e.text)]
REFUSES = [pytest.param(one, e, id=name) for one, e, name in EXAMPLES if e.refusal]


@pytest.mark.parametrize(("one", "example"), APPLIES)
def test_an_example_gives_what_its_file_says(one: rule_file.Rule, example: rule_file.Example) -> None:
    """The rule alone makes of the model exactly `after`, valid ONNX, and the numbers stay."""
    model, before = parse(example.text), parse(example.text)
    report = pipeline.run(model, [one])
    assert ops(model) == list(example.after)
    assert set(report.by_rule()) == {one.name}
    onnx.checker.check_model(model, full_check=True)
    assert_same_numbers(before, model)


@pytest.mark.parametrize(("one", "example"), UNNAMED)
def test_an_example_in_half_precision_gives_the_same(one: rule_file.Rule, example: rule_file.Example) -> None:
    """No rule is about float32: the model with float16 in its place becomes the same operators.

    Where a rule computes in float32 what the operator computed so, there are casts, and constants of that type.
    """
    before = halved(parse(example.text))
    model = halved(parse(example.text))
    pipeline.run(model, [one])
    made, types = ops(model), {t.data_type for t in model.graph.initializer}
    without_casts, expected = ([op for op in one if op not in ("Cast", "CastLike")] for one in (made, example.after))
    assert without_casts == expected
    casts = len(made) > len(example.after)
    floats = {TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE}
    assert types & floats <= {TensorProto.FLOAT16, *([TensorProto.FLOAT] if casts else [])}
    assert_same_numbers(before, model)


@pytest.mark.parametrize(("one", "example"), APPLIES)
def test_an_example_can_be_undone(one: rule_file.Rule, example: rule_file.Example) -> None:
    """Unfusing leaves no trace of onnxfuse and the same numbers; without a rewrite or a split, the same nodes too."""
    model, before = parse(example.text), parse(example.text)
    pipeline.run(model, [one])
    plain = onnxfuse.unfuse(model)
    assert not plain.functions
    assert DOMAIN not in {n.domain for n in plain.graph.node} | {o.domain for o in plain.opset_import}
    onnx.checker.check_model(plain, full_check=True)
    assert_same_numbers(before, plain)
    if one.fuse is not None and not one.fuse.splits:
        assert _nodes(plain) == _nodes(before)


@pytest.mark.parametrize(("one", "example"), APPLIES)
def test_an_example_whose_floats_are_all_weights_is_optimized(one: rule_file.Rule, example: rule_file.Example) -> None:
    """A network on constants, as a table of positions goes through, is too big to be folded: no rule trips over it."""
    before, model = (with_floats_as_weights(parse(example.text)) for _ in range(2))
    pipeline.run(model, [one])
    onnx.checker.check_model(model, full_check=True)
    assert_same_numbers(before, model, folded=True)


def with_floats_as_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with signed numbers in the place of each input of floats, in weights that hold too many."""
    given = signed_inputs(model)
    kept = [v for v in model.graph.input if given.get(v.name, np.zeros(0)).dtype.kind not in "fV"]
    weights = [numpy_helper.from_array(a, n) for n, a in given.items() if a.dtype.kind in "fV"]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(weights)
    return model


@pytest.mark.parametrize(("one", "example"), REFUSES)
def test_a_refused_example_stays_as_it_is(one: rule_file.Rule, example: rule_file.Example) -> None:
    """Where the rule must not apply, no byte is other than without it, and the report names the reason that its file
    gives."""
    model, before = parse(example.text), parse(example.text)
    report = pipeline.run(model, [one])
    pipeline.run(before, [])
    assert model.SerializeToString(deterministic=True) == before.SerializeToString(deterministic=True)
    assert not report.applied
    assert example.refusal in "\n".join(f"{n.refusal.node}: {n.refusal.reason}" for n in report.near)


def test_every_spelling_of_the_shipped_rules_is_right() -> None:
    """A command does not check them at each start: this test does, as `rule.read` does for a user's rules."""
    assert [rule_file.read(f).name for f in rule_file.shipped_files().values()] == [r.name for r in rule_file.shipped()]


def test_no_two_shipped_rules_have_one_name() -> None:
    """They go by the names of their files, whatever folder they are in."""
    forms = [one.path for one in rule_file.forms().values()]
    files = {*rule_file.shipped_files().values(), *forms, rule_file.parts_file()}
    assert set(rule_file.shipped_folder().rglob("*.toml")) == files


def test_shared_parts_hide_no_operator_and_are_used() -> None:
    """A rule that means ONNX's own Mean gets it; what only one rule uses stands in its file."""
    parts, operators = rule_file.shared_parts(), {s.name for s in onnx.defs.get_all_schemas()}
    assert not operators & set(parts)
    used = {part: [r.name for r in rule_file.shipped() if f"= {part} (" in r.path.read_text()] for part in parts}
    for name in rule_file.shared_conditions():
        used[name] = [r.name for r in rule_file.shipped() if name in r.path.read_text()]
    assert all(len(rules) > 1 for rules in used.values()), used
    both = {name for names in used.values() for name in names}
    assert {r.name for r in rule_file.shipped() if rule_file.parts_file() in r.files} == both


def test_a_rule_may_write_a_shared_part_its_own_way(tmp_path: Path) -> None:
    """Its own spellings take the place of all that are shared."""
    anchor = "[[fuse.anchor]]\npattern = '(x) => (y) { s = Square (x) y = Sqrt (s) }'\n"
    head = 'summary = "s"\n[fuse]\ntemplate = "pointwise"\n'
    own = "[[part.Square]]\npattern = '(x) => (s) { s = Abs (x) }'\n"
    (tmp_path / "mine.toml").write_text(head + own + anchor)
    (tmp_path / "shared.toml").write_text(head + anchor)
    by_abs = "g (float[4] x) => (float[4] y) { s = Abs (x) y = Sqrt (s) }"
    by_mul = "g (float[4] x) => (float[4] y) { s = Mul (x, x) y = Sqrt (s) }"
    for name, text, applied in (("mine", by_abs, 1), ("mine", by_mul, 0), ("shared", by_abs, 0), ("shared", by_mul, 1)):
        assert len(pipeline.run(parse(text), [rule_file.read(tmp_path / f"{name}.toml")]).applied) == applied, name


@pytest.mark.parametrize("one", rule_file.shipped(), ids=lambda one: one.name)
def test_every_rule_shows_where_it_applies(one: rule_file.Rule) -> None:
    """A rule file holds an example that fuses and one that must not, and says in one line what is saved.

    What joins the ops of other rules, or stands between them, does nothing by itself: steps/test_concat.py and
    steps/test_start.py of tests/unit/fusion show it among them.
    """
    needs_others = one.fuse is not None and one.fuse.needs_others
    assert bool([e for e in one.examples if e.after]) != needs_others
    assert [e for e in one.examples if e.refusal]
    assert one.summary.endswith(".")
    assert "\n" not in one.summary


def _nodes(model: onnx.ModelProto) -> Counter[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Each node as operator, inputs and outputs: the names of all values are in it."""
    return Counter((n.op_type, tuple(n.input), tuple(n.output)) for n in model.graph.node)
