"""The notebook is executed on the CPU; the commands in the Dockerfiles are ours, with their options, and run."""

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest

from onnxfuse.cli.main import group
from tests.support.page_runner import run

EXAMPLES = Path(__file__).parents[2] / "examples"
DOCKERFILES = sorted((EXAMPLES / "docker").glob("*.Dockerfile"))


def test_the_notebook_runs_on_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cell by cell, as a notebook does; what a cell ends with shows itself as HTML."""
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "fuse_a_model.ipynb").read_text(encoding="utf-8"))
    assert all(cell.get("outputs", []) == [] for cell in notebook["cells"])  # what one machine printed is no source
    names: dict[str, Any] = {}
    shown = []
    for cell in (c for c in notebook["cells"] if c["cell_type"] == "code"):
        tree = ast.parse("".join(cell["source"]))
        end = tree.body[-1]
        last = ast.Expression(end.value) if isinstance(end, ast.Expr) else None
        tree.body = tree.body[: -1 if last else None]
        exec(compile(tree, "cell", "exec"), names)
        value = None if last is None else eval(compile(last, "cell", "eval"), names)
        if value is not None:
            shown.append(value._repr_html_())
    assert len(shown) == 3  # explain, verify, session
    assert "3 fused ops" in shown[0]
    assert len(names["fused"].graph.node) == 3


@pytest.mark.parametrize("path", DOCKERFILES, ids=lambda path: path.name)
def test_a_dockerfiles_commands_have_the_options_that_they_are_given(path: Path) -> None:
    """Instructions that there are, and each call of onnxfuse as the command takes it."""
    text = path.read_text(encoding="utf-8")
    instructions = {line.split()[0] for line in text.splitlines() if line and not line.startswith("#")}
    assert instructions <= {"FROM", "ARG", "COPY", "RUN", "WORKDIR", "ENTRYPOINT", "CMD"}
    calls = [shlex.split(call) for call in re.findall(r"^RUN onnxfuse (.*)$", text, re.MULTILINE)]
    calls += [json.loads(entry)[1:] for entry in re.findall(r"^ENTRYPOINT (\[\"onnxfuse\".*)$", text, re.MULTILINE)]
    assert calls
    for name, *rest in calls:
        command = group.get_command(click.Context(group), name)
        assert command is not None
        known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)}
        assert {word for word in rest if word.startswith("--")} <= known


def test_a_triton_repository_is_written_as_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of the image's first stage, on a small model."""
    monkeypatch.chdir(tmp_path)
    text = """<ir_version: 8, opset_import: ["" : 17]> small (float[batch,64] x) => (float[batch,64] y)
    { h = MatMul (x, w) y = Relu (h) }"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    onnx.save(model, tmp_path / "model.onnx")
    assert run(EXAMPLES / "docker" / "README.md", tmp_path, capsys) == 3
    assert "/models/served/1/libonnxfuse.so" in (tmp_path / "models" / "served" / "config.pbtxt").read_text()
