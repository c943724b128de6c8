"""Measure the share of the copy bandwidth that the memory-bound kernels reach: python tests/gpu/bandwidth.py --help

Buffers rotate through more memory than the L2 cache holds; a sample is the GPU time of a round of launches, and the
table shows medians. `--sweep NAME=A,B,C` measures every combination of a plan's constants (onnxfuse.kernels.Tuning).
"""

import argparse
import itertools
import statistics
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import cupy
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from onnxfuse import kernels
from onnxfuse.kernels import KernelSource, Tuning
from onnxfuse.kernels.source import Section
from onnxfuse.model.fused import FusedOp
from tests.kernels import moved, ops
from tests.kernels.ops import FLOAT, HALF
from tests.kernels.rows import FAMILIES

EMPTY = KernelSource("empty", (Section("empty.cu", 'extern "C" __global__ void empty() {}'),))
ROTATED = 600 * 2**20  # bytes: ten times the L2 cache of an H200
LAYER_NORM = "(x, r, g, b) => (y, s) { s = Add(x, r) y = LayerNormalization <axis = -1> (s, g, b) }"
RMS_NORM = "(x, r, g) => (y, s) { s = Add(x, r) y = RMSNormalization <axis = -1> (s, g) }"
CHAIN = "(x, b, c) => (y) { s = Add(x, b) t = Mul(s, c) u = Sigmoid(t) v = Mul(u, t) y = Relu(v) }"
SOFTMAX = "(x, m) => (y) { s = Add(x, m) y = Softmax <axis = -1> (s) }"


@dataclass(frozen=True)
class Case:
    """A kernel to measure."""

    name: str
    op: FusedOp
    shapes: tuple[tuple[int, ...], ...]


def cases(megabytes: int) -> list[Case]:
    """Return the named kernels on tensors of this size."""
    elements = megabytes * 2**20 // 2

    def layer_norm(columns: int) -> Case:
        rows = elements // columns
        op = ops.op(LAYER_NORM, (HALF,) * 4, (HALF,) * 2, "row")
        return Case(f"residual + layernorm {columns}", op, ((rows, columns),) * 2 + ((columns,),) * 2)

    def activation(name: str, columns: int, dtype: int = HALF) -> Case:
        op = ops.op(f"(x, b) => (y) {{ s = Add(x, b) y = {name} (s) }}", (dtype,) * 2, (dtype,))
        kind = "fp16" if dtype == HALF else "fp32"
        return Case(f"bias + {name} {columns} {kind}", op, ((elements // columns, columns), (columns,)))

    def softmax(columns: int) -> Case:
        op = ops.op("(x) => (y) { y = Softmax <axis = -1> (x) }", (HALF,), (HALF,), "row")
        return Case(f"softmax {columns}", op, ((elements // columns, columns),))

    images = elements // (256 * 56 * 56)
    return [
        *(layer_norm(c) for c in (197, 256, 768, 1024, 1025, 1536, 2048, 2049, 4096, 8192, 16384)),
        Case(
            "residual + rmsnorm 2048",
            ops.op(RMS_NORM, (HALF,) * 3, (HALF,) * 2, "row"),
            ((elements // 2048, 2048),) * 2 + ((2048,),),
        ),
        activation("Gelu", 3072),
        activation("Gelu", 3073),
        activation('Gelu <approximate = "tanh">', 3072),
        activation("Gelu", 3072, FLOAT),
        activation("Mish", 3072),
        activation("Relu", 3072),
        Case(
            "chain of 5, channel broadcasts",
            ops.op(CHAIN, (HALF,) * 3, (HALF,)),
            ((images, 256, 56, 56), (1, 256, 1, 1), (images, 256, 1, 1)),
        ),
        Case(
            "chain of 5, row broadcasts",
            ops.op(CHAIN, (HALF,) * 3, (HALF,)),
            ((elements // 3072, 3072), (3072,), (elements // 3072, 1)),
        ),
        Case(
            "residual add + relu",
            ops.op("(x, r) => (y) { s = Add(x, r) y = Relu(s) }", (HALF,) * 2, (HALF,)),
            ((elements,),) * 2,
        ),
        *(softmax(c) for c in (49, 64, 77, 128, 197, 256, 1024, 1025, 16384)),
        # The attention of ViT-B/16 at 32 images: 12 heads, 197 tokens.
        Case("softmax of ViT, 75648 x 197", softmax(197).op, ((75648, 197),)),
        Case(
            "mask + softmax 1024",
            ops.op(SOFTMAX, (HALF,) * 2, (HALF,), "row"),
            ((elements // 2**20 // 2, 2, 1024, 1024), (1, 1, 1, 1024)),
        ),
        Case(
            "mask + softmax 197",
            ops.op(SOFTMAX, (HALF,) * 2, (HALF,), "row"),
            ((elements // 197 // 197, 197, 197), (1, 197)),
        ),
        *(Case(name, family.op(HALF), family.large(elements)) for name, family in FAMILIES.items()),
        *(
            Case(f"{name}, fp32", FAMILIES[name].op(FLOAT), FAMILIES[name].large(elements // 2))
            for name in ("group norm + silu", "layer norm of NCHW", "sum over the batch", "mean of the middle")
        ),
        *(Case(name, *case) for name, case in moved.large(HALF, megabytes).items()),
        *(Case(f"{name} fp32", *case) for name, case in moved.large(FLOAT, megabytes).items()),
    ]


def seconds(rounds, samples: int) -> float:
    """Return the median GPU time of one launch; `rounds` are launches on buffers in turn."""
    times = []
    for _ in range(samples + 3):
        start, stop = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for launch in rounds:
            launch()
        stop.record()
        stop.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, stop) / 1e3 / len(rounds))
    return statistics.median(times[3:])


def copy_bandwidth(megabytes: int, samples: int) -> float:
    """Return bytes per second, read and written, of cudaMemcpyAsync on the GPU."""
    size = megabytes * 2**20
    turns = max(4, ROTATED // (2 * size))
    buffers = [(cupy.empty(size, cupy.uint8), cupy.empty(size, cupy.uint8)) for _ in range(turns)]
    rounds = [lambda a=a, b=b: b.data.copy_from_device_async(a.data, size, cupy.cuda.Stream.null) for a, b in buffers]
    return 2 * size / seconds(rounds, samples)


@cache
def noise(shape: tuple[int, ...], dtype: int) -> np.ndarray:
    """Return random values; made on the host, so that CuPy needs no kernels of its own."""
    return np.resize(np.random.default_rng(0).standard_normal(2**20 + 7).astype(ops.NUMPY[dtype]), shape)


def measure(case: Case, tuning: Tuning, samples: int) -> tuple[float, int]:
    """Return (seconds per launch, bytes that must be read and written)."""
    plan = kernels.plan(case.op, case.shapes, True, kernels.arch_of(0), tuning)
    function = kernels.load(plan.kernel, 0)
    # CuPy passes a NumPy array of one element by value, whatever its size.
    parameters = np.frombuffer(plan.parameters, np.dtype((np.void, len(plan.parameters))))
    shapes = [*zip(case.shapes, case.op.inputs, strict=True), *zip(plan.output_shapes, case.op.outputs, strict=True)]
    size = sum(int(np.prod(s)) * np.dtype(ops.NUMPY[t]).itemsize for s, t in shapes)
    rounds = []
    for _ in range(max(4, ROTATED // size)):
        arrays = [cupy.asarray(noise(s, t)) for s, t in shapes]
        arguments = (*(np.uint64(a.data.ptr) for a in arrays), parameters)
        rounds.append(lambda arguments=arguments, arrays=arrays: function(plan.grid, plan.block, arguments))
    return seconds(rounds, samples), size


def small_launches(samples: int) -> None:
    """Print the time per launch of small kernels beside that of an empty one: what a launch costs on the GPU."""
    empty = kernels.load(EMPTY, 0)
    rounds = [lambda: empty((1,), (32,), ())] * 200
    print(f"\n{'small, back to back':40} {seconds(rounds, samples) * 1e6:8.2f} us   empty kernel")
    for name, text, shapes, template in (
        ("bias + Gelu 128 x 768", "(x, b) => (y) { s = Add(x, b) y = Gelu (s) }", ((128, 768), (768,)), "pointwise"),
        ("residual + layernorm 128 x 768", LAYER_NORM, ((128, 768),) * 2 + ((768,),) * 2, "row"),
    ):
        outputs = (HALF,) * (2 if template == "row" else 1)
        case = Case(name, ops.op(text, (HALF,) * len(shapes), outputs, template), shapes)
        taken, _ = measure(case, Tuning(), samples)
        print(f"{name:40} {taken * 1e6:8.2f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=128, help="size of one full tensor (fp16)")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--only", default="", help="measure the cases whose name holds this text")
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="NAME=A,B",
        help="a constant of Tuning, such as pointwise_threads=128,256,512 or bytes_in_flight=32,64,128",
    )  # fmt: skip
    options = parser.parse_args()

    names = [s.split("=")[0] for s in options.sweep]
    values = [[int(v) for v in s.split("=")[1].split(",")] for s in options.sweep]
    variants = [replace(Tuning(), **dict(zip(names, v, strict=True))) for v in itertools.product(*values)]

    copied = copy_bandwidth(options.megabytes, options.samples)
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"{device}, driver {cupy.cuda.runtime.driverGetVersion()}: copy {copied / 1e12:.3f} TB/s")
    print(f"{'kernel':40} {'us':>9} {'TB/s':>7} {'of copy':>8}  " + "  ".join(names))
    for case in cases(options.megabytes):
        if options.only not in case.name:
            continue
        for tuning in variants:
            taken, size = measure(case, tuning, options.samples)
            rate = size / taken
            chosen = "  ".join(str(getattr(tuning, n)) for n in names)
            print(f"{case.name:40} {taken * 1e6:9.1f} {rate / 1e12:7.3f} {rate / copied:8.1%}  {chosen}", flush=True)
    if not options.only:
        small_launches(options.samples)


if __name__ == "__main__":
    main()
