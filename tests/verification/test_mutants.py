"""Planted faults are caught by `onnxfuse verify` with its default options, and traced to where they were planted."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.cli.main import main
from onnxfuse.rewrite import pipeline
from tests.verification import mutants
from tests.verification.mutants import MUTANTS, Mutant


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_a_planted_fault_is_caught_and_traced(
    mutant: Mutant, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1; the guilty op or rule by name, and a bug report that shows the fault by itself."""
    rules = tmp_path / "rules"
    rules.mkdir()
    plain, wrong = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(mutants.original(mutant), plain)
    model, folders = mutants.fused(mutant, rules)
    onnx.save(model, wrong)
    assert _run("verify", plain, wrong, "-q", "--provider", "cpu") == 1
    report = tmp_path / "report"
    made_with = [part for folder in folders for part in ("--rules", folder)]
    assert _run("verify", plain, wrong, "--provider", "cpu", "--bisect", report, *made_with, "--json") == 1
    found = json.loads(capsys.readouterr().out)["bisection"]
    assert found["rules"] == [mutant.guilty]
    assert mutant.guilty in found["text"]
    if mutant.op:
        assert found["guilty"]["output"] == "mid"
        assert found["guilty"]["rule"] == mutant.guilty
        assert all(" " in node for node in found["guilty"]["nodes"])
    assert found["folder"] == str(report)
    assert _run("verify", report / "original.onnx", report / "model.onnx", "--inputs", report / "test_data_set_0") == 1
    assert len(onnx.load(report / "model.onnx").graph.node) < len(model.graph.node)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[m.name for m in MUTANTS])
def test_without_the_fault_the_same_network_passes(mutant: Mutant, tmp_path: Path) -> None:
    """What catches the faults raises no false alarm."""
    plain, right = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(mutants.original(mutant), plain)
    model = mutants.original(mutant)
    pipeline.run(model)
    onnx.save(model, right)
    assert _run("verify", plain, right, "-q", "--provider", "cpu", "--seeds", "2") == 0


def test_there_are_twenty_of_many_kinds() -> None:
    """Kernels, folds and rewrites, each fault once."""
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 20
    assert sum(m.op for m in MUTANTS) >= 10
    assert sum(bool(m.rule[0]) for m in MUTANTS) >= 3
    assert sum(bool(m.own_rule) for m in MUTANTS) >= 2


def _run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    return int(left.value.code or 0)
