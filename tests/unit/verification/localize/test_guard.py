"""`optimize --guard`: a fusion that is wrong is taken back and named, the rest stays."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.cli.main import main
from onnxfuse.fusion.undo.unfuse import unfuse
from onnxfuse.model.fused import DOMAIN
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.support.errors import UsageError
from onnxfuse.verification import verify
from onnxfuse.verification.localize.guard import guard
from onnxfuse.verification.run import sessions
from tests.support.verification import mutants
from tests.support.verification.mutants import MUTANTS, Mutant

CPU = ["CPUExecutionProvider"]
KERNELS = [m for m in MUTANTS if m.op and m.name != "stale residual"]
RULES = [m for m in MUTANTS if not m.op]


@pytest.mark.parametrize("mutant", KERNELS, ids=[m.name for m in KERNELS])
def test_a_wrong_kernel_is_undone_and_the_rest_stays(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The body is right and what runs is not, as with a wrong kernel: another body stands in for it on the CPU."""
    plain, folder = mutants.original(mutant), Path()
    wrong, _ = mutants.fused(mutant, folder)
    (planted,) = [n for n in wrong.graph.node if n.domain == DOMAIN and n.op_type.endswith("x")]
    body = next(f for f in wrong.functions if f.name == planted.op_type)
    weights = [t for t in wrong.graph.initializer if t.name.startswith("planted_")]
    opened = sessions.with_kernels

    def with_a_wrong_kernel(model: Any, *options: Any) -> Any:
        broken = onnx.ModelProto()
        broken.CopyFrom(model)
        for node in broken.graph.node:
            if node.op_type == planted.op_type.removesuffix("x") and node.output == planted.output:
                function = next(f for f in broken.functions if f.name == node.op_type)
                del function.node[:]
                function.node.extend(body.node)
                node.input[:] = planted.input
                broken.graph.initializer.extend(weights)
        return opened(broken, *options)

    monkeypatch.setattr(sessions, "with_kernels", with_a_wrong_kernel)
    got = guard(plain, lambda without: _optimized(mutant, [], without), unfuse, providers=CPU)
    monkeypatch.undo()
    assert [(u.rule, u.node) for u in got.undone] == [(mutant.guilty, planted.name or planted.output[0])]
    assert got.undone[0].fault
    right, _ = _optimized(mutant, [], ())
    assert _fused_nodes(got.model) == _fused_nodes(right) - 1
    assert not got.left_out
    onnx.checker.check_model(got.model)
    assert verify(plain, got.model, providers=CPU).ok


@pytest.mark.parametrize("mutant", RULES, ids=[m.name for m in RULES])
def test_a_wrong_rule_is_left_out(
    mutant: Mutant, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a rewrite wrote cannot be undone by itself; the other rules still apply, and the file passes `verify`."""
    monkeypatch.chdir(tmp_path)
    onnx.save(mutants.original(mutant), "in.onnx")
    Path("mine").mkdir()
    mutants.fused(mutant, Path("mine"))
    assert _run("optimize", "in.onnx", "bad.onnx", "--rules", "mine", "--json") == 0
    rules = json.loads(capsys.readouterr().out)["rules"]
    assert _run("verify", "in.onnx", "bad.onnx", "-q", "--provider", "cpu") == 1
    assert _run("optimize", "in.onnx", "out.onnx", "--rules", "mine", "--guard", "--dump", "d", "--json") == 0
    assert list(Path("d/phases").glob("*-result.onnx"))
    facts = json.loads(capsys.readouterr().out)
    assert facts["guard"]["left_out"] == [mutant.guilty]
    assert facts["guard"]["undone"][0]["rule"] == mutant.guilty
    assert mutant.guilty in rules
    assert "gemm" in facts["rules"]
    assert _run("verify", "in.onnx", "out.onnx", "-q", "--provider", "cpu") == 0
    assert _run("optimize", "in.onnx", "no.onnx", "--rules", "mine", "--guard", "--require", mutant.guilty) == 4
    assert not Path("no.onnx").exists()


def test_a_right_model_comes_out_as_without_guard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, and the number of places that were checked is told; real inputs may be given."""
    monkeypatch.chdir(tmp_path)
    onnx.save(mutants.original(MUTANTS[0]), "in.onnx")
    np.savez("x.npz", x=np.zeros((2, mutants.SIDE, mutants.SIDE), np.float32))
    assert _run("optimize", "in.onnx", "a.onnx") == 0
    for arguments in ((), ("--guard-inputs", "x.npz")):
        assert _run("optimize", "in.onnx", "b.onnx", "--guard", *arguments) == 0
        assert "guard: 4 windows with 4 fused ops checked, 0 reverted" in capsys.readouterr().out
        assert Path("a.onnx").read_bytes() == Path("b.onnx").read_bytes()
    for wrong in (["--undo", "--guard"], ["--guard-inputs", "x.npz"], ["--guard", "--guard-inputs", "none.npz"]):
        assert _run("optimize", "in.onnx", "c.onnx", *wrong) == 2
    assert not Path("c.onnx").exists()


def test_a_model_that_takes_no_made_up_inputs_asks_for_real_ones() -> None:
    """A Reshape to a fixed size refuses every batch that is tried."""
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 20]> g (float[n, 4] x) => (float[m, 35] y) <int64[2] s = {-1, 35}>'
        "{ r = Reshape(x, s)  a = Relu(r)  y = Tanh(a) }"
    )
    with pytest.raises(UsageError, match="runs on none of the generated inputs"):
        guard(model, lambda without: (model, ()), unfuse, providers=CPU)


def _optimized(
    mutant: Mutant, folders: list[Path], without: Collection[str]
) -> tuple[onnx.ModelProto, tuple[str, ...]]:
    model = mutants.original(mutant)
    report = pipeline.run(model, [r for r in rule_file.by_default(rule_file.select(folders)) if r.name not in without])
    return model, tuple(report.by_rule())


def _fused_nodes(model: onnx.ModelProto) -> int:
    return sum(n.domain == DOMAIN for n in model.graph.node)


def _run(*arguments: Any) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(a) for a in arguments])
    return int(left.value.code or 0)
