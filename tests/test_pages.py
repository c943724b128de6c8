"""What the pages for people show is what the commands print."""

from pathlib import Path

import onnx
import pytest

import models
import onnxfuse
from tests.page_runner import BLOCK, run

DOCS = Path(__file__).parents[1] / "docs"


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
    from models import minilm

    (folder / "zoo").mkdir()
    onnx.save(models.build("minilm"), folder / "zoo" / "minilm.onnx")
    import numpy as np

    np.savez(folder / "zoo" / "sentences.npz", **minilm.encode(minilm.sentences()))
    assert run(DOCS / "TUTORIAL.md", folder, capsys) == 3


def test_why_it_was_not_fused_and_what_was_made(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On the small model that the page makes."""
    assert run(DOCS / "EXPLAIN.md", folder, capsys) == 7


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
    """With what it promises; its options are the reference's."""
    from onnxfuse.cli.main import COMMANDS

    text = (DOCS / "COMMANDS.md").read_text(encoding="utf-8")
    for name in COMMANDS:
        assert f"## onnxfuse {name}\n" in text, name
