"""What exporters write, without them: one model in each layout that its weights may have on disk."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from models.survey import AS_EXPORTED, INSIDE, OPTIMUM, SCATTERED
from models.weights import seeded

WIDTH = 64

TEXT = f"""<ir_version: 10, opset_import: ["" : 20]>
g (float[2, 8, {WIDTH}] x) => (float[2, 8, {WIDTH}] y, float[2, 8, 40] best) {{
  m = MatMul (x, weight)  a = Add (m, bias)  g = Gelu (a)
  r = Reshape (g, heads)  t = Transpose <perm = [0, 2, 1, 3]> (r)  s = Slice (t, starts, ends, axes)
  u = Transpose <perm = [0, 2, 1, 3]> (s)  v = Reshape (u, flat)  l = Concat <axis = 2> (v, v)
  n = LayerNormalization <axis = -1> (l, scale, shift)  z = MatMul (n, last)  y = Add (z, x)
  best, which = TopK (y, most)
}}"""
"""As torch writes it: targets of Reshape, ends of Slice and counts are initializers, too, of a few bytes.

TopK of so many is not fused: its count is read by shape inference before and after.
"""


def model() -> onnx.ModelProto:
    """Return the model with its weights inside."""
    made = onnx.parser.parse_model(TEXT)
    draw = seeded(0)
    weights = {
        "weight": draw("weight", (WIDTH, WIDTH), 0.1, 0.0), "bias": draw("bias", (WIDTH,), 0.1, 0.0),
        "scale": draw("scale", (WIDTH,), 0.1, 1.0), "shift": draw("shift", (WIDTH,), 0.1, 0.0),
        "last": draw("last", (WIDTH, WIDTH), 0.1, 0.0),
    }  # fmt: skip
    numbers = {"heads": [2, 8, 4, WIDTH // 4], "starts": [1], "ends": [3], "axes": [1], "flat": [2, 8, WIDTH // 2],
               "most": [40]}  # fmt: skip
    arrays = {n: w.astype(np.float32) for n, w in weights.items()} | {n: np.array(v) for n, v in numbers.items()}
    made.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in arrays.items())
    return made


def exported(layout: str, file: Path) -> Path:
    """Write the model to `file` with its weights where this layout has them, and return the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    LAYOUTS[layout](file)
    return file


def everything_outside(file: Path) -> None:
    """Move every tensor of a written model into its data, as onnxfuse once did: ONNX Runtime opens no such file."""
    data = f"{file.name}.all.data"
    file.with_name(data).unlink(missing_ok=True)
    onnx.save(onnx.load(file), file, save_as_external_data=True, location=data, size_threshold=0)


LAYOUTS: dict[str, Callable[[Path], None]] = {
    AS_EXPORTED: lambda file: onnx.save(
        model(), file, save_as_external_data=True, location=f"{file.name}.data", size_threshold=256
    ),
    INSIDE: lambda file: onnx.save(model(), file),
    OPTIMUM: lambda file: onnx.save(
        model(), file, save_as_external_data=True, location=f"{file.name}_data", size_threshold=100,
        convert_attribute=True,
    ),
    SCATTERED: lambda file: onnx.save(
        model(), file, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=100
    ),
}  # fmt: skip
"""The thresholds are those of torch's exporter, and of optimum where all is asked to be outside."""
