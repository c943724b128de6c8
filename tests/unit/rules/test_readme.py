"""rules/README.md is run: its rule works, its output is real, its reference is complete."""

import re
from pathlib import Path

import onnx
import onnxruntime
import pytest

from onnxfuse import cuda
from onnxfuse.cli.main import main
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import predicate, rule_file
from onnxfuse.rules.language.fuse_table import FUSE_KEYS
from onnxfuse.rules.pattern import expression
from onnxfuse.runtime.sessions.ort_ops import with_library_ops
from tests.support.small import assert_same_numbers, parse

README = (rule_file.shipped_folder() / "README.md").read_text(encoding="utf-8")

FIVE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[N,4] x) => (float[N,4] y) <float k = {3}, float zero = {0}, float five = {5}, float six = {6}> {
  a = Add (x, k) c = Clip (a, zero, five) m = Mul (x, c) y = Div (m, six)
}"""


def blocks(language: str) -> list[str]:
    """Return the code blocks of the page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the page's rule, beside a model that clips at 5."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "hard_swish.toml").write_text("\n".join(blocks("toml")[:2]), encoding="utf-8")
    onnx.save(onnx.parser.parse_model(FIVE), tmp_path / "in.onnx")
    return tmp_path / "mine"


@pytest.mark.parametrize("text", blocks("toml")[4:])
def test_a_rule_of_the_reference_does_what_its_examples_say(tmp_path: Path, text: str) -> None:
    """And computes the same numbers."""
    (tmp_path / "one.toml").write_text(text, encoding="utf-8")
    rule = rule_file.read(tmp_path / "one.toml")
    assert {bool(e.after) for e in rule.examples} == {True, False}
    for example in rule.examples:
        model, made = parse(example.text), parse(example.text)
        report = pipeline.run(made, [rule])
        if example.after:
            assert sorted(n.op_type for n in made.graph.node) == sorted(example.after)
            assert_same_numbers(model, made)
        else:
            assert any(example.refusal in near.refusal.reason for near in report.near)


@pytest.mark.usefixtures("mine")
def test_every_command_on_the_page_prints_what_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    """Line by line; spaces at the ends of table rows do not count."""
    sessions = [b for b in blocks("") if b.startswith("$ ")]
    calls = [call for b in sessions for call in re.split(r"^\$ ", b, flags=re.MULTILINE)[1:]]
    assert len(calls) == 4
    for call in calls:
        command, _, expected = call.partition("\n")
        with pytest.raises(SystemExit):
            main(command.split()[1:])
        assert _trimmed(capsys.readouterr().out) == _trimmed(expected), command


def test_the_mistake_on_the_page_is_told_as_the_page_says(mine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the line at which the pattern begins."""
    path = mine / "hard_swish.toml"
    path.write_text(path.read_text().replace("Clip (a, low, high)", "Clp (a, low, high)"))
    with pytest.raises(SystemExit):
        main(["rules", "--rules", "mine"])
    (expected,) = [b for b in blocks("") if b.startswith("error:")]
    assert capsys.readouterr().err.startswith(expected.strip())


def test_the_short_softmax_is_a_rule(tmp_path: Path) -> None:
    """What the page quotes can be read, and says what the shipped file says."""
    (tmp_path / "softmax.toml").write_text(blocks("toml")[2])
    quoted = rule_file.read(tmp_path / "softmax.toml")
    (shipped,) = [r for r in rule_file.shipped() if r.name == "softmax"]
    assert quoted.summary == shipped.summary
    assert quoted.fuse is not None
    assert shipped.fuse is not None
    assert quoted.fuse.anchors[0].pattern.text == shipped.fuse.anchors[0].pattern.text


def test_the_short_attention_is_a_rule(tmp_path: Path) -> None:
    """Both spellings fuse, and ONNX Runtime's op computes the same."""
    (tmp_path / "single.toml").write_text(blocks("toml")[3])
    one = rule_file.read(tmp_path / "single.toml")
    for scale in ("Div (m, c)", "Mul (c, m)"):
        text = f"""g (float[2,3,4] q, float[2,5,4] k, float[2,5,4] v) => (float[2,3,4] y) <float c = {{2}}> {{
          kt = Transpose <perm = [0,2,1]> (k) m = MatMul (q, kt) s = {scale} p = Softmax (s) y = MatMul (p, v)
        }}"""
        model = parse(text)
        assert pipeline.run(model, [one]).by_rule() == {"single": 1}
        assert_same_numbers(
            parse(text), with_library_ops(model, onnxruntime.SessionOptions(), fused_ops(model)), folded=True
        )


def test_every_key_predicate_and_template_is_on_the_page() -> None:
    """The reference is whole."""
    for word in (*predicate.TESTS, *predicate.TERMS, expression.EACH):
        assert f"`{word}(" in README, word
    for template in cuda.TEMPLATES.values():
        assert f'`"{template.name}"` ({template.summary})' in README, template.name
    keys = "summary rewrite from to where optional fuse pattern kernel cost let keep realize channels_last example"
    for word in (*keys.split(), "model", "after", "refusal", *FUSE_KEYS):
        assert re.search(rf"`[^`]*\b{word}\b[^`]*`", README), word


def _trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _launched(node: onnx.NodeProto) -> bool:
    return node.op_type != "Constant" and not cuda.is_free(node.op_type, node.domain)


def _launches(model: onnx.ModelProto) -> int:
    """Return the nodes that launch something: one by one, or as a fused op."""
    return sum(map(_launched, model.graph.node))


def _saved(one: rule_file.Rule) -> tuple[int, int, str] | None:
    """Return the launches before and after of the rule's example that loses most, and its fused nodes."""
    found = []
    for example in (e for e in one.examples if e.after):
        before, after = parse(example.text), parse(example.text)
        pipeline.run(after, [one])
        text = "; ".join(" ".join(n.op_type for n in f.body.node if _launched(n)) for f in fused_ops(after).values())
        found.append((_launches(before) - _launches(after), _launches(before), _launches(after), text))
    return max(found)[1:] if found else None


def test_the_launches_on_the_page_are_those_of_the_examples() -> None:
    """A row for each fusion: what its example launches before and after."""
    rows = [(r.name, _saved(r)) for r in rule_file.shipped() if r.fuse is not None]
    files = {name: file.relative_to(rule_file.shipped_folder()) for name, file in rule_file.shipped_files().items()}
    expected = [f"| [{name}]({files[name]}) | {s[0]} | {s[1]} | {s[2]} |" for name, s in rows if s is not None]
    on_page = [line for line in README.splitlines() if re.match(r"\| \[\w+\]\(\w+/\w+\.toml\) \| \d+ \| \d+ \|", line)]
    assert on_page == expected, "\n".join(expected)
