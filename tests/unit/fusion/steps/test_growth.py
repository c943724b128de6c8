"""Growth by steps: templates allow them, rules want them, and each has its place in the order."""

from pathlib import Path

import pytest

from onnxfuse import cuda
from onnxfuse.cuda import Growth
from onnxfuse.fusion.steps.growth import FINISHING, GROWING
from onnxfuse.rules.language import rule_file
from onnxfuse.support.errors import RuleError

STARTS = {Growth.LIBRARY_ANCHOR, Growth.CONCAT, Growth.PRODUCER}
"""What decides where growth begins, before its first step."""


def test_every_kind_of_growth_is_one_step_and_some_template_allows_it() -> None:
    """None is only a word."""
    in_order = [kind for kinds, _ in (*GROWING, *FINISHING) for kind in kinds]
    assert sorted([*in_order, *STARTS]) == sorted(Growth)
    assert set().union(*(t.growth for t in cuda.TEMPLATES.values())) == set(Growth)


def test_templates_have_an_order_of_their_own() -> None:
    """No two share a place in it, a name, or the words that tell them apart."""
    found = cuda.TEMPLATES.values()
    for fact in ("name", "order", "summary"):
        assert len({getattr(t, fact) for t in found}) == len(found)
    assert [t.order for t in found] == sorted(t.order for t in found)


@pytest.mark.parametrize(
    ("template", "line", "told"),
    [
        ("row", 'beside = "x"', "`beside` grows by siblings, which template 'row' does not allow"),
        ("row", 'prologue = "x"', "`prologue` grows by left operand, which template 'row' does not allow"),
        ("direct", "transposes = true", "`transposes` grows by transposed output, which template 'direct' does not"),
    ],
)
def test_a_step_that_the_template_does_not_allow_is_told(tmp_path: Path, template: str, line: str, told: str) -> None:
    """With the line, and the steps that it allows: nothing is fused less than a rule seems to say."""
    file = tmp_path / "odd.toml"
    file.write_text(
        f'summary = "S."\n[fuse]\ntemplate = "{template}"\n{line}\n[[fuse.anchor]]\n'
        "pattern = '''(x) => (y) { y = Softmax (x) }'''\n"
    )
    with pytest.raises(RuleError, match=r"odd\.toml:4: ") as raised:
        rule_file.read(file)
    assert told in str(raised.value)
    assert all(kind in raised.value.hint for kind in cuda.TEMPLATES[template].growth)


OTHER_WORDS = {"pointwise", "concat", "library", "row", "attention", "depthwise"}
"""Names of templates that mean something else, too: words of rules, a form of an op, a constant of the layout,
functions of the library in its times."""


@pytest.mark.parametrize("name", sorted(set(cuda.TEMPLATES) - OTHER_WORDS))
def test_a_template_is_named_in_its_folder_and_by_rules_alone(name: str) -> None:
    """What others ask of it they ask its object: a new one is a folder and a rule file."""
    package = Path(cuda.__file__).parents[1]
    found = [f for f in package.rglob("*.py") if f'"{name}"' in f.read_text(encoding="utf-8")]
    assert {f.relative_to(package).parts[:2] for f in found} == {("cuda", "templates")}
