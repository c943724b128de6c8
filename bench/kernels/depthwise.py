"""Depthwise layers of real nets on the GPU at hand: the fused kernel beside cuDNN and ONNX Runtime.

Each row is a depthwise convolution with bias and SiLU: one kernel of ours; torch's convolution (cuDNN or its own) and
its activation; the same through torch.compile; ONNX Runtime's nodes, the kernels' time alone. Buffers rotate through
more memory than the L2 cache holds, CUDA graphs, in turns, medians. `--help` for types and batches.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper

from bench.cases.images import PLAIN, SILU, Case
from bench.kernels import timing
from bench.launches import launched
from onnxfuse import cuda
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.measure.timing.settings import DEFAULT, NHWC, Setting

TYPES = {"float16": (TensorProto.FLOAT16, torch.float16), "float32": (TensorProto.FLOAT, torch.float32)}
LAYERS = [
    # channels, size, kernel, stride
    (32, 112, 3, 1), (96, 112, 3, 2), (144, 56, 3, 1), (144, 56, 5, 2), (240, 28, 5, 1), (240, 28, 3, 2),
    (480, 14, 3, 1), (480, 14, 5, 1), (672, 14, 5, 1), (672, 14, 5, 2), (1152, 7, 5, 1), (1152, 7, 3, 1),
    (16, 112, 3, 1), (64, 112, 3, 2), (72, 56, 3, 1), (72, 56, 5, 2), (120, 28, 5, 1), (200, 14, 3, 1), (184, 14, 3, 1),
    (672, 14, 3, 1), (960, 7, 5, 1),
    (96, 56, 7, 1), (192, 28, 7, 1), (384, 14, 7, 1), (768, 7, 7, 1),
]  # fmt: skip
"""The distinct ones of EfficientNet-B0, MobileNet-V3-Large and ConvNeXt-Tiny, in this order."""
ROTATED = 300 * 2**20  # bytes: five times the L2 cache of an H200
Work = Callable[[int], object]
"""Runs once, on the buffers of this number."""


def case(layer: tuple[int, int, int, int], batch: int, dtype: int, text: str, last: bool = True) -> Case:
    """Return the convolution of a layer, padded as the nets do."""
    channels, size, kernel, stride = layer
    pads = (kernel // 2,) * 4
    return Case(text, dtype, last, batch, channels, (size,) * 2, (kernel,) * 2, (stride,) * 2, (), pads)


@dataclass
class Buffers:
    """What one layer reads and writes, several times over."""

    xs: list[torch.Tensor]
    ys: list[torch.Tensor]
    w: torch.Tensor
    """[R, S, C, 1], or [C, 1, R, S]."""
    b: torch.Tensor
    size: int
    """Bytes of a launch."""


def buffers(of: Case, element: torch.dtype) -> Buffers:
    """Return random inputs and room for outputs, enough that none is in the cache when its turn comes."""
    x, w, *_ = of.shapes()
    y = of.op(), cuda.output_shapes(of.op(), tuple(of.shapes()))[0]
    bytes_ = (int(np.prod(x)) + int(np.prod(y[1])) + int(np.prod(w))) * element.itemsize
    count = max(2, min(64, ROTATED // bytes_))
    make = [torch.randn(x, device="cuda").to(element) for _ in range(count)]
    room = [torch.empty(y[1], device="cuda", dtype=element) for _ in range(count)]
    bias = torch.randn(of.channels if of.channels_last else (of.channels, 1, 1), device="cuda").to(element)
    return Buffers(make, room, (torch.randn(w, device="cuda") / of.kernel[0]).to(element), bias, bytes_)


def ours(of: Case, on: Buffers, tuning: Variant | None = None) -> Work:
    """Return what launches the fused kernel."""
    plan = cuda.plan(of.op(), tuple(of.shapes()), True, cuda.arch_of(0), tuning)
    rest = [on.w, on.b] if of.text != PLAIN else [on.w]
    launches = [timing.launcher(plan, [t.data_ptr() for t in (x, *rest, y)]) for x, y in zip(on.xs, on.ys, strict=True)]
    return lambda turn: launches[turn]()


def torchs(of: Case, on: Buffers, compiled: bool) -> Work:
    """Return torch's convolution and activation, images channels last where ours are."""
    last = of.channels_last
    xs = [x.permute(0, 3, 1, 2) if last else x for x in on.xs]
    w = on.w.permute(2, 3, 0, 1).contiguous(memory_format=torch.channels_last) if last else on.w
    bias = on.b.reshape(-1) if of.text != PLAIN else None
    stride, pad, groups = of.strides[0], of.pads[0], of.channels

    def forward(x: torch.Tensor) -> torch.Tensor:
        c = torch.nn.functional.conv2d(x, w, bias, stride, pad, 1, groups)
        return torch.nn.functional.silu(c) if of.text == SILU else c

    run = torch.compile(forward, dynamic=False) if compiled else forward
    return lambda turn: run(xs[turn])


def microseconds(works: list[Work], turns: int) -> list[float]:
    """Return the median time of each, one after the other on all buffers, measured in turns."""
    launches = turns * -(-24 // turns)
    return timing.microseconds([[partial(work, n % turns) for n in range(launches)] for work in works])


def onnx_runtime(of: Case, element: torch.dtype, nhwc: bool) -> float:
    """Return the time of all kernels that ONNX Runtime launches for the layer, microseconds, by its CUDA provider."""
    first = Case(
        of.text, of.dtype, False, of.images, of.channels, of.size, of.kernel, of.strides, of.dilations, of.pads
    )
    dtype: Any = np.float16 if element == torch.float16 else np.float32
    shapes = first.shapes()
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"], group=of.channels, kernel_shape=of.kernel,
                              strides=of.strides, pads=of.pads)]  # fmt: skip
    if of.text == SILU:
        nodes += [helper.make_node("Sigmoid", ["c"], ["s"]), helper.make_node("Mul", ["c", "s"], ["y"])]
    else:
        nodes += [helper.make_node("Identity", ["c"], ["y"])]
    weights = {"w": shapes[1], "b": (of.channels,)}
    stored = [numpy_helper.from_array(rng.standard_normal(s).astype(dtype) / 5, n) for n, s in weights.items()]
    x, y = (
        [helper.make_tensor_value_info(n, of.dtype, s)]
        for n, s in (("x", shapes[0]), ("y", (of.images, of.channels, *of.output())))
    )
    model = helper.make_model(
        helper.make_graph(nodes, "layer", x, y, stored), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    feeds = {"x": rng.standard_normal(shapes[0]).astype(dtype)}
    setting = Setting("NHWC", NHWC) if nhwc else DEFAULT
    return sum(us for _, us in launched(model, feeds, setting, fused=False, runs=10).values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=TYPES, default=list(TYPES))
    parser.add_argument("--batch", nargs="+", type=int, default=[32, 1])
    parser.add_argument("--plain", action="store_true", help="the convolution alone, without bias and SiLU")
    parser.add_argument("--nchw", action="store_true", help="images [N, C, H, W] instead of [N, H, W, C]")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out, which takes seconds a row")
    parser.add_argument("--no-ort", action="store_true", help="leave ONNX Runtime out")
    options = parser.parse_args()
    text = PLAIN if options.plain else SILU
    copied = timing.copy_bandwidth()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copy {copied / 1e12:.2f} TB/s; microseconds")
    for name in options.dtype:
        dtype, element = TYPES[name]
        for batch in options.batch:
            rows = []
            print(f"\n{name}, batch {batch}")
            print("channels size kernel stride   ours of copy    torch  compile      ORT ORT nhwc")
            for layer in LAYERS:
                of = case(layer, batch, dtype, text, not options.nchw)
                on = buffers(of, element)
                works = [ours(of, on), torchs(of, on, False)]
                works += [] if options.no_compile else [torchs(of, on, True)]
                taken, *theirs = microseconds(works, len(on.xs))
                theirs += [float("nan")] * options.no_compile
                theirs += [
                    float("nan") if options.no_ort else onnx_runtime(of, element, nhwc) for nhwc in (False, True)
                ]
                share = on.size / (taken / 1e6) / copied
                rows.append([t / taken for t in theirs])
                print("{:8} {:4} {:6} {:6}".format(*layer), f"{taken:6.1f} {share:7.0%}",
                      " ".join(f"{t:8.1f}" for t in theirs), flush=True)  # fmt: skip
            means = " ".join(f"{statistics.geometric_mean(c):7.2f}x" for c in zip(*rows, strict=True))
            print(f"times as long, geometric mean                {means}")


if __name__ == "__main__":
    main()
