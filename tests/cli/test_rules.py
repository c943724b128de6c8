"""`onnxfuse rules`: the list, one rule in full, and the words that rules are made of."""

import json
from pathlib import Path

import pytest

from onnxfuse.passes import phases
from onnxfuse.rules.language import predicate, rule_file
from onnxfuse.rules.pattern import shapes
from tests.cli.conftest import Command


def test_the_list_names_every_rule_with_its_summary(onnxfuse_command: Command) -> None:
    """One line each, from the files themselves."""
    out = onnxfuse_command("rules").out
    for one in rule_file.shipped():
        line = next(line for line in out.splitlines() if line.startswith(f"{one.name} "))
        assert one.summary in line


def test_what_is_built_in_is_listed_with_the_rules(onnxfuse_command: Command) -> None:
    """Every pass of the pipeline that no file says, with its phase; a rule may not hide behind its name."""
    out = onnxfuse_command("rules").out
    listed = json.loads(onnxfuse_command("rules", "--json").out)["built_in"]
    passes = [(phase, one) for phase in phases.PIPELINE for one, _ in phase.listed()]
    assert [s["name"] for s in listed] == [one.name for _, one in passes]
    for phase, one in passes:
        line = next(line for line in out.splitlines() if line.startswith(f"{one.name} "))
        assert f"built in, {phase.name}" in line
        assert one.summary in line
    assert not {one.name for _, one in passes} & set(rule_file.shipped_files())


@pytest.mark.parametrize("one", [*rule_file.shipped(), *rule_file.forms().values()], ids=lambda one: one.name)
def test_a_rule_is_explained_by_its_own_examples(onnxfuse_command: Command, one: rule_file.Rule) -> None:
    """Each example before and after, a refusal with its reason."""
    result = onnxfuse_command("rules", one.name)
    assert result.code == 0
    assert result.out.startswith(f"{one.name} (")
    assert result.out.count("before") >= len(one.examples)
    assert result.out.count("stays as it is") == len([e for e in one.examples if e.refusal])
    for example in one.examples:
        assert example.refusal in result.out


def test_a_folder_of_rules_is_listed_too(tmp_path: Path, onnxfuse_command: Command) -> None:
    """A user's rules stand beside ours, and can be explained like them."""
    (tmp_path / "mine.toml").write_text('summary = "All mine."\n[fuse]\nanchor = "pointwise"\ntemplate = "pointwise"\n')
    assert "All mine." in onnxfuse_command("rules", "--rules", tmp_path).out
    assert onnxfuse_command("rules", "mine", "--rules", tmp_path).out.startswith("mine (fuse, pointwise): All mine.")


def test_json_lists_name_kind_and_file(onnxfuse_command: Command) -> None:
    """All of them, or the one that is named."""
    facts = json.loads(onnxfuse_command("rules", "--json").out)["rules"]
    assert [f["name"] for f in facts] == [r.name for r in rule_file.shipped()]
    (fact,) = json.loads(onnxfuse_command("rules", "softmax", "--json").out)["rules"]
    assert fact["kind"] == "fuse, row"
    assert Path(fact["file"]).name == "softmax.toml"


def test_every_predicate_is_documented(onnxfuse_command: Command) -> None:
    """The vocabulary is closed, and this is all of it."""
    lines = onnxfuse_command("rules", "--predicates").out.splitlines()
    assert lines[: len(shapes.TEXTS)] == [*shapes.TEXTS]
    assert {line.split("(")[0] for line in lines[len(shapes.TEXTS) :]} == {
        *predicate.TESTS, *predicate.TERMS, "each",
    }  # fmt: skip
    assert json.loads(onnxfuse_command("rules", "--predicates", "--json").out)["predicates"] == lines


def test_a_name_that_is_no_rule_is_exit_2_with_the_nearest(onnxfuse_command: Command) -> None:
    """A typo is answered with the word that was meant."""
    result = onnxfuse_command("rules", "sofmax")
    assert result.code == 2
    assert "'sofmax' is not a rule. Did you mean softmax?" in result.err
