"""`make smoke`: a little of everything in under a minute, so that what is broken altogether is told at once."""

import re
from pathlib import Path

import numpy as np
import onnx
import pytest

import onnxfuse
from bench.cases import attentions, ops, rows
from bench.cases.ops import FLOAT
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.model.fused import FusedOp
from tests.cli.conftest import Command, folder, onnxfuse_command
from tests.emulator import emulate
from tests.support.kernels import cached_attentions, dynamic, generals, recurrents
from tests.support.page_runner import run

__all__ = ["folder", "onnxfuse_command"]

A100 = Arch("sm_80", 108)
"""The kernels of every GPU since; all of them have a twin on the host."""
ATTENTION = attentions.Case(1, 2, 17, 40, 16)
LSTM = recurrents.Case("LSTM", 2, 3, 8, 16)
CACHED = cached_attentions.Case((5, 0), packed=True, half=16)


def bodies() -> dict[str, tuple[FusedOp, generals.Shapes]]:
    """Return a body of each template, with the shapes of its inputs."""
    first: dict[str, tuple[FusedOp, generals.Shapes]] = {}
    for op, shapes in generals.cases().values():
        first.setdefault(op.template, (op, tuple(map(tuple, shapes))))
    own = {"attention": (ATTENTION.op(), shapes_of(ATTENTION)), "recurrent": (LSTM.op(), shapes_of(LSTM))}
    own["cached_attention"] = (CACHED.op(), CACHED.shapes(CACHED.inputs(np.random.default_rng(0))))
    for op, inputs in (dynamic.alone(dynamic.drawn((5, 33))), dynamic.norm(3, 40)):
        own[op.template] = (op, tuple(x.shape for x in inputs))
    return first | own | {"topk": (rows.topk(3, FLOAT), ((5, 33),))}


def shapes_of(case: attentions.Case | recurrents.Case) -> generals.Shapes:
    """Return the shapes of a case's inputs."""
    return tuple(tuple(shape) for shape in case.shapes())


def test_each_template_is_here() -> None:
    """A new one is entered in `generals.cases`, or above if its general plan is its own."""
    assert {*bodies()} == {name for name in dispatch.TEMPLATES if dispatch.is_template(name)}


@pytest.mark.parametrize("template", sorted(bodies()))
def test_a_kernel_of_each_template(template: str) -> None:
    """Planned, compiled by NVRTC and by the host's compiler, which runs it: the numbers are those of the body."""
    op, shapes = bodies()[template]
    plan = cuda.plan(op, shapes, True, A100)
    for part in (plan, *plan.then):
        assert nvrtc.build(part.kernel, A100)[0].startswith(b"\x7fELF")
    rng = np.random.default_rng(0)
    types = [np.dtype(ops.NUMPY[t]) for t in op.outputs]
    if template == "attention":
        inputs = ATTENTION.inputs(rng)
        attentions.within_budget(ATTENTION, inputs, emulate.run(plan, inputs, types)[0])
    elif template == "cached_attention":
        inputs = CACHED.inputs(rng)
        cached_attentions.within_budget(CACHED, inputs, emulate.run(plan, inputs, types))
    elif template == "recurrent":
        inputs = LSTM.inputs(rng)
        recurrents.within_budget(LSTM, inputs, emulate.run(plan, inputs, types))
    else:
        inputs = generals.inputs(op, shapes, rng)
        ops.within_budget(op, inputs, emulate.run(plan, inputs, types))


def test_a_model_from_end_to_end(folder: Path, onnxfuse_command: Command) -> None:
    """By the commands: optimized, verified, explained, undone; and a session runs it."""
    assert onnxfuse_command("optimize", "in.onnx", "out.onnx").code == 0
    assert onnxfuse_command("verify", "in.onnx", "out.onnx", "--provider", "cpu", "--time", "2").code == 0
    assert "layer_norm" in onnxfuse_command("explain", "in.onnx").out
    feeds = {"x": np.ones((1, 2), np.float32), "r": np.ones((1, 3), np.float32)}
    before, after = (
        onnxfuse.session(folder / name, providers=["CPUExecutionProvider"]).run(None, feeds)
        for name in ("in.onnx", "out.onnx")
    )
    np.testing.assert_allclose(after[0], before[0], rtol=1e-5)
    assert onnxfuse_command("optimize", "--undo", "out.onnx", "undone.onnx").code == 0
    assert [n.op_type for n in onnx.load(folder / "undone.onnx").graph.node][:2] == ["MatMul", "Add"]


def test_options_are_read_and_refused(folder: Path, onnxfuse_command: Command) -> None:
    """By the command line, and by the file of a repository."""
    told = onnxfuse_command("optimize", "in.onnx", "out.onnx", "--presision", "float16")
    assert (told.code, "--precision" in told.err) == (2, True)
    config = '[[model]]\npath = "in.onnx"\nverify = false\nrequire = { linear = 1, layer_norm = 1 }\n'
    (folder / "onnxfuse.toml").write_text(config)
    assert onnxfuse_command("ci").code == 0
    (folder / "onnxfuse.toml").write_text(config.replace("verify", "verfy"))
    told = onnxfuse_command("ci")
    assert told.code != 0
    assert re.search(r"verfy.*verify", told.out + told.err, re.DOTALL)


def test_a_page(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What it shows is what the commands print."""
    monkeypatch.setenv("COLUMNS", "120")
    assert run(Path(__file__).parents[1] / "docs" / "EXPLAIN.md", folder, capsys) == 9
