"""The CUDA source of a fused op: its launches, or why there are none."""

from dataclasses import replace

import onnx
import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT
from onnxfuse.cuda import Arch
from onnxfuse.support.errors import NoPlanError
from onnxfuse.viewing import kernel_text as module
from onnxfuse.viewing.kernel_text import kernel_text

H200 = Arch("sm_90a", 132)
RELU = ops.op("(x) => (y) { y = Relu (x) }", (FLOAT,), (FLOAT,))


def test_a_launch_has_its_source() -> None:
    """Grid, block, memory, and the shapes that it was planned for."""
    found = kernel_text(RELU, ((1024, 64),), H200)
    assert (found["note"], found["inputs"]) == ("", [[1024, 64]])
    (launch,) = found["launches"]
    assert launch["entry"] in launch["text"]
    assert len(launch["grid"]) == len(launch["block"]) == 3
    assert (launch["shared"], launch["scratch"]) == (0, 0)


def test_without_shapes_there_is_none() -> None:
    """Nor of what no template computes, or has no plan."""
    assert kernel_text(RELU, None, H200) == {
        "note": "No kernel: the shapes of its inputs are not known",
        "launches": [],
    }
    loop = replace(RELU, body=ops.op("(x) => (y) { y = Det (x) }", (FLOAT,), (FLOAT,)).body)
    found = kernel_text(loop, ((4, 4),), H200)
    assert found["note"].startswith("No kernel: ")
    assert "not known" not in found["note"]
    assert found["launches"] == []


def test_an_op_of_the_library_shows_its_form() -> None:
    """As text; empty if it has none."""
    form = onnx.parser.parse_function('<opset_import: ["" : 17], domain: "d"> f (x) => (y) { y = Gelu (x) }')
    of_library = replace(RELU, template="library", library=form)
    found = kernel_text(of_library, ((4, 4),), H200)
    assert found["note"] == "An op of ONNX Runtime's own runs in its place on CUDA."
    assert "Gelu" in found["library"]
    assert kernel_text(replace(of_library, library=None), ((4, 4),), H200)["library"] == ""


def test_a_plan_that_fails_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its reason."""

    def refuse(*_: object) -> None:
        raise NoPlanError("too large")

    monkeypatch.setattr(module, "plan", refuse)
    assert kernel_text(RELU, ((4, 4),), H200)["note"] == "No kernel: too large"
