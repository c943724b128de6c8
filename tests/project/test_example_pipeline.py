"""The example pipeline and the GitHub action really run: export, optimize, verify, reports, and a lost fusion."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from onnxfuse.options import COMMANDS

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / ".github" / "actions" / "onnxfuse" / "action.yml").read_text())
WORKFLOW = yaml.safe_load((ROOT / "examples" / "pipeline.yml").read_text())


def run(command: list[str], folder: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """Run a command in `folder` with this checkout's onnxfuse."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **more}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def act(folder: Path, **inputs: str) -> "tuple[subprocess.CompletedProcess[str], dict[str, str]]":
    """Run the action's own step as GitHub's runner does; returns the process, and what the step put out."""
    defaults = {name: str(facts["default"]) for name, facts in ACTION["inputs"].items()}
    given = defaults | {"python": sys.executable} | inputs
    (step,) = [s for s in ACTION["runs"]["steps"] if s.get("id") == "run"]
    values = {k: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda m: given[m[1]], v) for k, v in step["env"].items()}
    files = {"GITHUB_OUTPUT": str(folder / "output.txt"), "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    done = run(["bash", "-eo", "pipefail", "-c", step["run"]], folder, GITHUB_ACTIONS="true", **values, **files)
    lines = (folder / "output.txt").read_text().splitlines()
    return done, dict(line.split("=", 1) for line in lines)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository that holds the example."""
    pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed (extra `export`)")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("build"))
    return tmp_path


def export(repository: Path, *, blocks: int = 3) -> None:
    """Run the pipeline's export step."""
    code = f"from pathlib import Path; import export_model; export_model.export(Path('build'), blocks={blocks})"
    done = run([sys.executable, "-c", code], repository / "examples")
    assert done.returncode == 0, done.stderr


def test_the_pipeline_runs_from_export_to_upload(repository: Path) -> None:
    """Each step of the example, as the workflow has it; what it uploads is there."""
    steps: list[dict[str, Any]] = WORKFLOW["jobs"]["model"]["steps"]
    (exporting,) = [s for s in steps if s.get("name") == "export"]
    command = exporting["run"].splitlines()[-1].split()
    assert run([sys.executable, *command[1:]], repository).returncode == 0
    (ours,) = [s for s in steps if s.get("id") == "onnxfuse"]
    done, told = act(repository, **ours["with"])
    assert done.returncode == 0, done.stdout + done.stderr
    assert told == {"report": "onnxfuse-report/report.html"}
    (upload,) = [s for s in steps if s.get("name") == "upload"]
    files = [{p.suffix for p in repository.glob(path.rstrip("/"))} for path in upload["with"]["path"].split()]
    assert files == [{".onnx", ".data"}, {""}]  # a model is of no use without its data
    onnx.checker.check_model(onnx.load(repository / "examples/build/classifier.fused.onnx"), full_check=True)
    assert (repository / "summary.md").read_text().startswith("## ✅ onnxfuse ci: ok")
    assert {p.name for p in (repository / "onnxfuse-report").iterdir()} == {"report.html", "junit.xml"}


def test_an_export_that_loses_fusions_stops_the_pipeline(repository: Path) -> None:
    """The lock is written, the exporter then gives something else: exit 4, annotation, summary and reports say what."""
    export(repository)
    update = [sys.executable, "-m", "onnxfuse", "ci", "examples/onnxfuse.toml", "--update"]
    assert run(update, repository).returncode == 0
    config = repository / "examples" / "onnxfuse.toml"
    config.write_text(re.sub(r"require = .*\n", "", config.read_text()))
    export(repository, blocks=2)
    done, _ = act(repository, config="examples/onnxfuse.toml")
    assert done.returncode == 4
    assert "classifier: regressed: applications of layer_norm: 3 -> 2 (against examples/onnxfuse.lock)" in done.stdout
    place = "file=examples/onnxfuse.toml,line=2"
    assert f"::error {place},title=onnxfuse classifier%3A applications of layer_norm::" in done.stderr
    assert "applications of layer\\_norm: 3 -\\> 2" in (repository / "summary.md").read_text()
    assert 'failures="' in (repository / "onnxfuse-report" / "junit.xml").read_text()


def test_locked_reaches_the_command(repository: Path) -> None:
    """The action's inputs are the command's options: without a lock file, --locked is a usage error."""
    export(repository)
    done, _ = act(repository, config="examples/onnxfuse.toml", locked="true")
    assert done.returncode == 2
    assert "--locked needs it" in done.stderr


@pytest.mark.parametrize("install", ["", "onnxfuse==0.1.0"])
def test_what_the_action_installs(install: str, tmp_path: Path) -> None:
    """Its own checkout where nothing is said, or what is said; nothing for `none`."""
    (step,) = [s for s in ACTION["runs"]["steps"] if "pip install" in s["run"]]
    assert step["if"] == "inputs.install != 'none'"
    assert "github.action_path" not in str(ACTION["inputs"])  # GitHub fills it in only when the steps run.
    action = ROOT / ".github" / "actions" / "onnxfuse"
    done = run(
        ["bash", "-eo", "pipefail", "-c", step["run"]], tmp_path,
        PYTHON="echo", INSTALL=install, GITHUB_ACTION_PATH=str(action),
    )  # fmt: skip
    what = done.stdout.split()[-1]
    assert what == install if install else Path(what).resolve() == ROOT


def test_the_hooks_call_commands_that_there_are(tmp_path: Path) -> None:
    """Each entry of .pre-commit-hooks.yaml is a command with options that it knows."""
    for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text()):
        words: list[str] = [*hook["entry"].split(), *hook.get("args", [])]
        program, command, *options = words
        assert (program, command in COMMANDS) == ("onnxfuse", True)
        done = run([sys.executable, "-m", "onnxfuse", command, *options, "--help"], tmp_path)
        assert done.returncode == 0, done.stderr
