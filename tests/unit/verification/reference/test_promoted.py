"""A verification holds each model's weights once, in the session that runs it, however the model is stored."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.verification.reference.promoted import is_narrower

SIDE = 3584
"""Rows and columns of each of the four weights: 51 MB in float32."""
WEIGHTS = 4 * 4 * SIDE**2

# Not ru_maxrss: a process begins with the peak of the one that started it, and pages of the mapped file count there.
MEASURE = """
import sys, threading
from pathlib import Path
from onnxfuse.verification import verify
samples, done = [], threading.Event()
def sample():
    while not done.wait(0.001):
        status = Path("/proc/self/status").read_text()
        samples.append(int(status.partition("RssAnon:")[2].split()[0]) * 1024)
watch = threading.Thread(target=sample)
watch.start()
report = verify(Path(sys.argv[1]), Path(sys.argv[1]), truth="float32", shapes={"n": (1,)}, providers=[sys.argv[2]])
done.set()
watch.join()
assert report.ok, report.summary
print(max(samples))
"""


def _model(side: int) -> onnx.ModelProto:
    """Return four layers."""
    layers = " ".join(f"m{n} = MatMul({f'h{n - 1}' if n else 'x'}, w{n})  h{n} = Relu(m{n})" for n in range(4))
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 20]> net (float[n, {side}] x) => (float[n, {side}] y) '
        f"{{ {layers}  y = Identity(h3) }}"
    )
    rng = np.random.default_rng(0)
    for n in range(4):
        weight = rng.standard_normal((side, side), dtype=np.float32) / np.float32(np.sqrt(side))
        model.graph.initializer.append(numpy_helper.from_array(weight, f"w{n}"))
    return model


def _peak(path: Path) -> int:
    """Return the largest number of bytes that a verification of a file with itself had allocated."""
    command = [sys.executable, "-c", MEASURE, str(path), "CPUExecutionProvider"]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def test_weights_are_held_once_for_each_of_the_three_sessions(tmp_path: Path) -> None:
    """The original, the fused model, the truth: three copies, and less than half of one for all else that grows."""
    peaks = []
    for name, side in (("small", 32), ("big", SIDE)):
        file = tmp_path / f"{name}.onnx"
        onnx.save_model(_model(side), file, save_as_external_data=True, location=f"{name}.data")
        peaks.append(_peak(file))
    assert (peaks[1] - peaks[0]) / WEIGHTS < 3.5


@pytest.mark.parametrize(
    ("text", "narrower"),
    [
        ("net (float[4] x) => (float[4] y) { y = Relu(x) }", False),
        ("net (float16[4] x) => (float16[4] y) { y = Relu(x) }", True),
        ("net (float[4] x) => (float[4] y) { h = Cast <to = 10> (x)  y = Cast <to = 1> (h) }", True),
    ],
)
def test_a_model_is_run_itself_for_the_truth_only_where_nothing_in_it_is_narrower(text: str, narrower: bool) -> None:
    """Types of inputs, of outputs and of Casts count."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}')
    assert is_narrower(model, TensorProto.FLOAT) == narrower


def test_a_narrow_weight_counts_too() -> None:
    """The graph's own types may all be float32."""
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 20]> net (float[4] x) => (float[4] y) '
        "{ c = Cast <to = 1> (w)  y = Add(x, c) }"
    )
    assert not is_narrower(model, TensorProto.FLOAT)
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float16), "w"))
    assert is_narrower(model, TensorProto.FLOAT)
