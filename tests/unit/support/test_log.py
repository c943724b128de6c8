"""What a program that configures logging learns of sessions, models and kernels."""

import logging
import re
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.codegen.emit.source import KernelSource, generated
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc

MODEL = (
    """<ir_version: 8, opset_import: ["" : 17]> small (float[2,3] x) => (float[2,3] y) { a = Exp (x) y = Neg (a) }"""
)


def test_optimizing_and_opening_are_logged(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """At INFO one line each, at DEBUG how each op runs; the logger is the package's."""
    caplog.set_level(logging.DEBUG, "onnxfuse")
    onnx.save(onnxfuse.optimize(onnx.parser.parse_model(MODEL)), tmp_path / "fused.onnx")
    onnxfuse.session(tmp_path / "fused.onnx", providers=["CPUExecutionProvider"])
    lines = [(record.name, record.levelname, record.getMessage()) for record in caplog.records]
    assert lines[0][:2] == ("onnxfuse", "INFO")
    assert re.fullmatch(r"optimized small: 2 nodes -> 1, including 1 fused op; \d+\.\d s", lines[0][2])
    assert ("onnxfuse", "INFO", "session on CPU: 0 of 1 fused op runs as a kernel") in lines
    (how,) = (text for _, level, text in lines if level == "DEBUG" and "runs as" in text)
    assert how.endswith("runs as body: CPU provider: the body runs")


def test_a_compiled_kernel_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """With the architecture and the time that it took."""
    caplog.set_level(logging.INFO, "onnxfuse")
    text = 'extern "C" __global__ void probe(float* x) { x[threadIdx.x] = 1.0f; }\n'
    nvrtc.build(KernelSource("probe", (generated("probe", text),)), Arch("sm_90", 132))
    assert re.fullmatch(r"compiled probe for sm_90 in \d+\.\d\d s", caplog.messages[-1])
