"""How far a function is: a bar in a notebook, silence elsewhere, or what the caller says."""

import sys
from html import escape
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx.parser
import pytest

import onnxfuse
from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.api.request import progress
from onnxfuse.deploy.compiling import Compiled
from onnxfuse.deploy.exporting import Exported
from onnxfuse.files import io

TEXT = '<ir_version: 8, opset_import: ["" : 17]> g (float[2,4] x) => (float[2,4] y) { a = Exp (x)  y = Neg (a) }'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Return a model of two nodes."""
    io.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Make this a notebook's kernel, as IPython shows it; what is drawn is in the list."""
    drawn: list[Any] = []
    shell = type("ZMQInteractiveShell", (), {})()
    ipython, display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: shell  # type: ignore[attr-defined]  # a module of this test's own

    def shown(what: Any, display_id: bool) -> Any:
        drawn.append(what)
        return SimpleNamespace(update=drawn.append)

    display.display = shown  # type: ignore[attr-defined]  # a module of this test's own
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    return drawn


def test_a_notebook_shows_a_bar_that_goes_in_the_end(
    model: Path, notebook: list[Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """Steps and how much is done, as HTML and as text; names from files are no markup."""
    made = onnxfuse.optimize(model)
    onnxfuse.verify(model, made, isolate=False, providers=["CPUExecutionProvider"])
    texts = [repr(one) for one in notebook]
    assert any(text.startswith("normalize") for text in texts)
    assert any(text.startswith("normal") and "20%" in text for text in texts), texts
    assert "<pre>" in notebook[1]._repr_html_()
    assert "span style" in notebook[1]._repr_html_()
    assert (texts[-1], notebook[-1]._repr_html_()) == ("", "")
    assert capfd.readouterr() == ("", "")


def test_a_bar_of_a_notebook_goes_where_it_fails_too(notebook: list[Any], tmp_path: Path) -> None:
    """An error stands alone."""
    with pytest.raises(onnxfuse.ModelError):
        onnxfuse.optimize(tmp_path / "none.onnx")
    assert repr(notebook[-1]) == ""


def test_elsewhere_nothing_is_shown_unless_asked_for(
    model: Path, notebook: list[Any], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A script, IPython's terminal, and `progress=False` in a notebook are silent; True shows a bar on stderr."""
    onnxfuse.optimize(model, progress=False)
    terminal = type("TerminalInteractiveShell", (), {})()
    monkeypatch.setattr(sys.modules["IPython"], "get_ipython", lambda: terminal)
    onnxfuse.optimize(model)
    monkeypatch.delitem(sys.modules, "IPython")
    onnxfuse.optimize(model)
    assert (notebook, *capfd.readouterr()) == ([], "", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    onnxfuse.optimize(model, progress=True)
    told = capfd.readouterr()
    assert (notebook, told.out) == ([], "")
    assert "normalize" in told.err or "optimize" in told.err


def test_a_function_of_the_callers_is_called(model: Path, notebook: list[Any]) -> None:
    """With the steps alone, or with how much is done, as each function says."""
    steps: list[str] = []
    made = onnxfuse.optimize(model, progress=steps.append)
    assert "normalize" in steps
    told: list[tuple[str, int, int]] = []
    onnxfuse.verify(
        model, made, isolate=False, providers=["CPUExecutionProvider"], progress=lambda *step: told.append(step)
    )
    assert {total for _, _, total in told} == {5}
    assert notebook == []


def test_what_functions_return_prints_on_one_screen(model: Path, tmp_path: Path) -> None:
    """No bytes of kernels or weights: a session, a pack, an exported folder, an optimized model, too."""
    session = onnxfuse.session(onnxfuse.optimize(model), providers=["CPUExecutionProvider"])
    made: Any = SimpleNamespace(parts=(bytes(10_000),), ranges={"batch": (1, 8)}, kernels={"sm_90a": (3, 84_093)},
                                programs=(), without={}, size=84_200)  # fmt: skip
    for one, told in (
        (session, "session on CPU: 0 of 1 fused op runs as a kernel"),
        (Compiled(tmp_path / "out.kernels", made, (), 1.0), "compiled: 3 kernels, 84.2 kB, in 1.0 s: "),
        (Exported(tmp_path, made, (), (), None, "", tmp_path, {"a": 1_000_000}, 1.0), "exported: 1.0 MB in 1.0 s: "),
        (optimize(model), "fused: 2 nodes -> 1"),
    ):
        assert repr(one).startswith(told)
        assert len(repr(one)) < 500
        assert escape(told.partition(":")[2]) in one._repr_html_()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"providers": ["cuda"]}, "Did you mean CUDAExecutionProvider?"),
        ({"providers": [("CpuExecutionProvider", {})]}, "Did you mean CPUExecutionProvider?"),
        (
            {"kernels": "none.kernels", "providers": ["CPUExecutionProvider"]},
            "none.kernels: no such kernel pack",
        ),
    ],
)
def test_a_session_is_not_opened_with_what_there_is_not(model: Path, arguments: dict[str, Any], told: str) -> None:
    """A provider, a pack: named wrongly they would be left out without a word, or told by ONNX Runtime."""
    for opened in (onnxfuse.session, onnxfuse.runner):
        with pytest.raises(onnxfuse.OnnxfuseError) as caught:
            opened(model, **arguments)
        assert told in f"{caught.value}"


def test_a_runner_says_how_it_is_called(model: Path) -> None:
    """An array alone is of no input."""
    with pytest.raises(onnxfuse.UsageError, match="the type ndarray; expected a dict of arrays") as caught:
        onnxfuse.runner(model)(np.ones((2, 4), np.float32))  # type: ignore[arg-type]  # the mistake
    assert caught.value.hint == "Such as {'x': array}; the model has x."
