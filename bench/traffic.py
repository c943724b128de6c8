"""Hold the bytes that `onnxfuse profile` counts against the card's own counters: python -m bench.traffic

Runs itself under Nsight Compute, which reads the bytes that went through device memory in each kernel, with the L2
cache emptied before it. Tensors are far larger than the cache (0.4 to 0.5 GB against 50 MB): of what a kernel wrote
last, the part that is still in the cache when it ends is not in the counters.
"""

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import models
import onnxfuse
from models.network import Form, start
from models.resnet import ResNet
from models.weights import seeded
from onnxfuse.measure.profile import profile
from onnxfuse.measure.timing.binding import ON_GPU, bind, opened, ort_values, outputs_of
from onnxfuse.measure.timing.settings import DEFAULT

COUNTERS = ("dram__bytes_read.sum", "dram__bytes_write.sum")
MARK = "next_model"
"""A kernel between two models; whatever runs after it is the next one's."""


def residual_norm(rows: int = 262144, columns: int = 1024) -> onnx.ModelProto:
    """Return the sum of two tensors and its LayerNormalization, both outputs, as in a transformer's block."""
    net = start("residual_norm", Form(dtype="float16"), seeded(0))
    x, r = (net.input(name, net.dtype, (rows, columns)) for name in ("x", "r"))
    total = net.Add(x, r)
    scale, bias = np.ones(columns, np.float16), np.zeros(columns, np.float16)
    y = net.LayerNormalization(total, scale, bias, axis=-1)
    net.output("sum", total, (rows, columns))
    net.output("y", y, (rows, columns))
    return net.model


def bottleneck(batch: int = 256) -> onnx.ModelProto:
    """Return the second block of ResNet-50's first stage: 256 channels of 56 x 56 pixels."""
    net = start("bottleneck", Form(dtype="float16", batch=batch), seeded(0))
    x = net.input("x", net.dtype, (batch, 256, 56, 56))
    net.output("y", ResNet()._bottleneck(net.at("layer1.1"), x, 256, 64, 1), (batch, 256, 56, 56))
    return net.model


def pairs() -> Iterator[tuple[str, onnx.ModelProto, onnx.ModelProto]]:
    """Yield name, original and fused model."""
    made = {
        "MLP 1-1024-1024-1, 262144 rows": models.build("mlp", dtype="float16", batch=262144),
        "residual + LayerNorm, 262144 x 1024": residual_norm(),
        "ResNet-50 block, 256 images": bottleneck(),
    }
    for name, model in made.items():
        yield name, model, onnxfuse.optimize(model)


def inputs(model: onnx.ModelProto) -> dict[str, Any]:
    """Return random inputs; a megabyte of them, repeated, will do: where bytes go does not depend on them."""
    few = np.random.default_rng(0).standard_normal(1 << 19).astype(np.float16)
    shapes = {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in model.graph.input}
    return {name: np.resize(few, shape) for name, shape in shapes.items()}


def run_all() -> None:
    """Run each model once under the counters."""
    import cupy

    mark = cupy.RawKernel(f'extern "C" __global__ void {MARK}() {{}}', MARK)
    for _, original, fused in pairs():
        values = ort_values(inputs(original))
        for model in (original, fused):
            session = opened(model, DEFAULT, ON_GPU, fused=model is fused)
            bound = bind(session, values, outputs_of(session, values, "measured"))
            bound.run()
            cupy.cuda.profiler.start()
            mark((1,), (1,), ())
            bound.run()
            cupy.cuda.runtime.deviceSynchronize()
            cupy.cuda.profiler.stop()
            del session, bound
            cupy.get_default_memory_pool().free_all_blocks()


def counted_by_the_card() -> list[list[tuple[str, float]]]:
    """Return for each model the kernels of its run with their bytes."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise SystemExit("ncu is not on PATH: it comes with Nsight Compute")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "ncu.csv"
        done = subprocess.run(
            [ncu, "--profile-from-start", "off", "--target-processes", "all", "--clock-control", "none", "--csv",
             "--page", "raw", "--print-units", "base", "--metrics", ",".join(COUNTERS), "--log-file", str(log),
             sys.executable, "-m", "bench.traffic", "--run"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        text = log.read_text() if log.exists() else ""
    rows = [line for line in text.splitlines() if line.startswith('"')]
    if done.returncode != 0 or not rows:
        raise SystemExit(f"ncu says:\n{text[-2000:]}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
    found: list[list[tuple[str, float]]] = []
    for row in csv.DictReader(rows):
        if not row["ID"]:
            continue  # the line of units
        if MARK in row["Kernel Name"]:
            found.append([])
        else:
            found[-1].append((row["Kernel Name"], sum(float(row[c].replace(",", "")) for c in COUNTERS)))
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="what runs under ncu")
    parser.add_argument("--kernels", action="store_true", help="print each kernel too")
    arguments = parser.parse_args()
    if arguments.run:
        run_all()
        return
    seen = iter(counted_by_the_card())
    print(f"{'model':38s} {'':7s} {'counted MB':>11s} {'card MB':>9s} {'card/counted':>13s} {'kernels':>8s}")
    for name, original, fused in pairs():
        found = profile(original, fused, time=False)
        for side, one in found.sides.items():
            kernels = next(seen)
            card = sum(size for _, size in kernels)
            print(f"{name:38s} {side:7s} {one.work.bytes / 1e6:11.0f} {card / 1e6:9.0f} "
                  f"{card / one.work.bytes:13.2f} {len(kernels):8d}")  # fmt: skip
            for kernel, size in kernels if arguments.kernels else ():
                print(f"    {size / 1e6:9.1f} MB  {kernel[:100]}")


if __name__ == "__main__":
    main()
