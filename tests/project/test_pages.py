"""What the pages for people show is what the commands print."""

import re
import tomllib
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import pytest

import models
import onnxfuse
from models import minilm
from onnxfuse.cli.main import group
from onnxfuse.cuda import SUPPORTED
from onnxfuse.options import COMMANDS
from onnxfuse.options.commands import GROUPS
from onnxfuse.options.schema import fields
from tests.support.page_runner import BLOCK, run
from tools.site import pages

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, at the width of the pages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path


def test_the_fusion_of_your_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the page alone: the model, the rule, its tests, the proof."""
    assert run(DOCS / "YOUR_FUSION.md", folder, capsys, toml="mine/entropy.toml") == 11


def test_the_tutorial(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the model that `make demo` leaves."""
    (folder / "zoo").mkdir()
    onnx.save(models.build("minilm"), folder / "zoo" / "minilm.onnx")
    sentences: dict[str, Any] = minilm.encode(minilm.sentences())
    np.savez(folder / "zoo" / "sentences.npz", **sentences)
    assert run(DOCS / "TUTORIAL.md", folder, capsys) == 3


def test_how_it_works_on_one_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The model, its fused form, the body of an op, and that both compute the same."""
    assert run(DOCS / "ONE_MODEL.md", folder, capsys) == 4


def test_why_it_was_not_fused_and_what_was_made(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the small model that the page makes."""
    assert run(DOCS / "EXPLAIN.md", folder, capsys) == 9


def test_what_the_page_of_quantized_models_quotes() -> None:
    """It is what the page above prints."""
    (quoted,) = (
        text for _, text in BLOCK.findall((DOCS / "QUANTIZED.md").read_text()) if text.startswith("quantized:")
    )
    assert quoted in (DOCS / "EXPLAIN.md").read_text()


def test_the_proof_on_the_front_page_is_the_tutorials() -> None:
    """Which runs it."""
    front, tutorial = ((DOCS / name).read_text(encoding="utf-8") for name in ("../README.md", "TUTORIAL.md"))
    (shown,) = [block for _, block in BLOCK.findall(front) if block.startswith("$ ")]
    for line in shown.splitlines():
        assert line in tutorial.splitlines() or line.startswith("["), line


def test_every_function_has_a_line_on_the_page_of_python() -> None:
    """What the reference tells in full stands there at a glance."""
    text = (DOCS / "PYTHON.md").read_text(encoding="utf-8")
    for name in onnxfuse.__all__:
        if name.islower():
            assert f"`onnxfuse.{name}(" in text or f"`.{name}(" in text, name


def test_every_command_has_its_part_of_the_page() -> None:
    """With each of its options, or with what all commands have; those of verify are on its own page."""
    text = (DOCS / "COMMANDS.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        parts = re.findall(rf"^## onnxfuse {name}\n(.*?)(?=^## )", text, re.MULTILINE | re.DOTALL)
        assert len(parts) == 1, name
        linked = (DOCS / "VERIFY.md").read_text(encoding="utf-8") if name == "verify" else ""
        told = parts[0] + linked + text[text.index("## What all have") :]
        words = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", told))
        options = [one for one in fields(GROUPS[name]).values() if one.option.flag]
        missing = [one.flags for one in options if words.isdisjoint(one.flags)]
        assert not missing, f"{name}: {missing}"


def test_the_page_of_installing_has_every_architecture() -> None:
    """That kernels are compiled for without a GPU."""
    text = (DOCS / "INSTALL.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(sm_\w+)` \|", text, re.MULTILINE) == sorted((a.name for a in SUPPORTED), key=_number)


def test_the_oldest_version_of_onnx_runtime_is_that_of_the_package_and_that_of_the_engine() -> None:
    """Two: the package's requirement, and the release whose API the library of an exported folder asks for."""
    root = DOCS.parent
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (package,) = {m[1] for d in project["dependencies"] if (m := re.match(r"onnxruntime\S*>=([\d.]+)", d))}
    header = (root / "engine" / "ort_api.h").read_text(encoding="utf-8")
    (release,) = re.findall(r"kApiVersion = (\d+);", header)
    engine = f"1.{release}"
    install = (DOCS / "INSTALL.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| ONNX Runtime, under .*\| (1\.\d+) \| 1", install, re.MULTILINE) == [package, engine]
    serving = (DOCS / "SERVING.md").read_text(encoding="utf-8")
    assert f"Version {engine} or newer" in serving
    assert f"(The Python package needs {package};" in serving
    assert f"ONNX Runtime {engine} or newer" in (root / "onnxfuse/deploy/exported.md").read_text(encoding="utf-8")
    assert f'"onnxruntime": ">={engine}"' in (root / "onnxfuse/deploy/exporting.py").read_text(encoding="utf-8")


def _number(arch: str) -> int:
    return int(re.sub(r"\D", "", arch))


CALL = re.compile(r"^(?:`|\$ )?onnxfuse ([a-z-]+)([^`\n]*)", re.MULTILINE)


@pytest.mark.parametrize("source", sorted(pages.WRITTEN.values()))
def test_every_command_on_a_page_has_the_options_that_it_is_given(source: str) -> None:
    """In prose as in samples; what is run is held to its output besides."""
    for code in pages.CODE.findall((DOCS.parent / source).read_text(encoding="utf-8")):
        for name, rest in CALL.findall(code):
            command = group.get_command(click.Context(group), name)
            assert command is not None, code
            known = {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
            given = re.findall(r"(?<![\w-])--?[a-z][\w-]*", rest.partition(" # ")[0])
            assert set(given) <= known, f"onnxfuse {name}{rest}"
