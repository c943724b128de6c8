"""Planted faults are caught by `onnxfuse verify` with its default options, and traced to where they were planted."""

import json
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest

from onnxfuse.cli.main import main
from onnxfuse.files import io
from onnxfuse.model.fused import DOMAIN
from onnxfuse.passes import pipeline
from tests.support.verification import mutants
from tests.support.verification.mutants import MUTANTS, Mutant

FAULTS = [
    pytest.param(m, dtype, id=f"{m.name}-{dtype}")
    for m in MUTANTS
    for dtype in ("float32", *(() if m.float32_only or m.below_float16 else ("float16",)))
]


@pytest.mark.parametrize(("mutant", "dtype"), FAULTS)
def test_a_planted_fault_is_caught_and_traced(
    mutant: Mutant, dtype: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 1; the guilty op or rule by name, and a bug report that shows the fault by itself."""
    rules = tmp_path / "rules"
    rules.mkdir()
    plain, wrong = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(mutants.original(mutant, dtype), plain)
    model, folders = mutants.fused(mutant, rules, dtype)
    onnx.save(model, wrong)
    report = tmp_path / "report"
    made_with = [part for folder in folders for part in ("--rules", folder)]
    assert _run("verify", plain, wrong, "--provider", "cpu", "--bisect", report, *made_with, "--json") == 1
    found = json.loads(capsys.readouterr().out)["bisection"]
    guilty = mutant.guilty
    if mutant.op:
        planted = next(n for n in model.graph.node if n.domain == DOMAIN and n.op_type.endswith("x"))
        assert found["guilty"]["output"] in planted.output
        guilty = mutants.rule_of(planted)
        assert guilty == mutant.guilty or dtype == "float16"
        assert found["guilty"]["rule"] == guilty
        assert all(" " in node for node in found["guilty"]["nodes"])
    assert found["rules"] == [guilty]
    assert guilty in found["text"]
    assert found["folder"] == str(report)
    assert _run("verify", report / "original.onnx", report / "model.onnx", "--inputs", report / "test_data_set_0") == 1
    assert len(onnx.load(report / "model.onnx").graph.node) < len(model.graph.node)


NETWORKS = list({(m.middle, m.channels): m for m in reversed(MUTANTS)}.values())
"""One mutant of each network: several faults are planted in the same."""


@pytest.mark.parametrize("mutant", NETWORKS, ids=[m.name for m in NETWORKS])
def test_without_the_fault_the_same_network_passes(mutant: Mutant, tmp_path: Path) -> None:
    """What catches the faults raises no false alarm."""
    plain, right = tmp_path / "in.onnx", tmp_path / "out.onnx"
    onnx.save(mutants.original(mutant), plain)
    model = mutants.original(mutant)
    pipeline.run(model)
    onnx.save(model, right)
    assert _run("verify", plain, right, "-q", "--provider", "cpu", "--seeds", "2") == 0


@pytest.mark.parametrize(
    "mutant", [next(m for m in MUTANTS if m.op), next(m for m in MUTANTS if not m.op)], ids=lambda m: m.name
)
def test_a_fault_in_a_model_too_big_for_one_message_is_traced_and_guarded_against(
    mutant: Mutant, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 2 GB no session opens bytes, and weights are in files; the limit is lowered instead of the model grown."""
    monkeypatch.setattr(io, "PROTOBUF_LIMIT", 3000)
    opened = onnxruntime.InferenceSession.__init__

    def refuses(self: Any, source: Any, *arguments: Any, **options: Any) -> None:
        assert isinstance(source, str) or len(source) <= io.PROTOBUF_LIMIT
        opened(self, source, *arguments, **options)

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", refuses)
    rules = tmp_path / "rules"
    rules.mkdir()
    plain, wrong, report = tmp_path / "in.onnx", tmp_path / "out.onnx", tmp_path / "report"
    model, folders = mutants.fused(mutant, rules)
    io.save(mutants.original(mutant), plain)
    io.save(model, wrong)
    assert list(plain.parent.glob("in.onnx.*.data"))
    assert list(wrong.parent.glob("out.onnx.*.data"))
    made_with = [part for folder in folders for part in ("--rules", folder)]
    assert _run("verify", plain, wrong, "--provider", "cpu", "--bisect", report, *made_with, "--json") == 1
    assert json.loads(capsys.readouterr().out)["bisection"]["rules"] == [mutant.guilty]
    assert _run("optimize", plain, tmp_path / "kept.onnx", "--guard", *made_with, "--json") == 0
    guarded = json.loads(capsys.readouterr().out)["guard"]
    assert guarded["left_out"] == ([] if mutant.op else [mutant.guilty])
    assert _run("verify", plain, tmp_path / "kept.onnx", "--provider", "cpu", "-q") == 0


def test_there_are_twenty_of_many_kinds() -> None:
    """Kernels, folds and rewrites, each fault once."""
    assert len({m.name for m in MUTANTS}) == len(MUTANTS) >= 30
    assert {m.guilty for m in MUTANTS} >= {
        "depthwise",
        "implicit_gemm",
        "direct",
        "movement",
        "reduce",
        "group_norm",
    }
    assert sum(m.op for m in MUTANTS) >= 10
    assert sum(bool(m.rule[0]) for m in MUTANTS) >= 3
    assert sum(bool(m.own_rule) for m in MUTANTS) >= 2


def _run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    return int(left.value.code or 0)
