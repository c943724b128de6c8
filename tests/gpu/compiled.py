"""Compare kernels with torch.compile of the same expressions, on the same buffers: python tests/gpu/compiled.py

Buffers rotate through more memory than the L2 cache holds; both sides are timed in turns; medians of GPU time.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from onnxfuse import kernels
from onnxfuse.kernels import LaunchPlan, Tuning
from onnxfuse.kernels.plans import DEFAULT
from tests.gpu.bandwidth import ROTATED, Case, cases, cupy, noise
from tests.kernels import ops
from tests.kernels.ops import BOOL, INT64

F = torch.nn.functional


def _channel_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    d = x - x.mean(1, keepdim=True)
    return d / torch.sqrt((d * d).mean(1, keepdim=True) + 1e-6) * g + b


def _grouped(x: torch.Tensor, i: torch.Tensor, z: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    n = F.group_norm(x, 32) * i.view(1, -1)[:, :1, None, None] + z[0]
    return F.silu(n * g + b)


def _residual_norm(x: torch.Tensor, r: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, ...]:
    s = x + r
    return F.layer_norm(s, g.shape, g, b), s


def _chain(x: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    t = (x + b) * c
    return torch.relu(torch.sigmoid(t) * t)


def _statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    m = x.mean((0, 2, 3), keepdim=True)
    return m, ((x - m) ** 2).mean((0, 2, 3))


def _backward(h: torch.Tensor, u: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    d = torch.where(h <= 0, torch.zeros_like(h), u)
    return d, d.sum(0)


def _rms(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    w = x.float()
    return (w * (1 / torch.sqrt((w * w).mean(-1, keepdim=True) + 1e-6))).to(x.dtype) * g


SAME: dict[str, Callable[..., object]] = {
    "residual + layernorm": _residual_norm,
    "bias + Gelu": lambda x, b: F.gelu(x + b),
    "residual add + relu": lambda x, r: torch.relu(x + r),
    "chain of 5": _chain,
    "softmax of ViT": lambda x: torch.softmax(x, -1),
    "softmax over channels": lambda x: torch.softmax(x, 1),
    "softmax": lambda x: torch.softmax(x, -1),
    "log softmax": lambda x: torch.log_softmax(x, -1),
    "mask + softmax": lambda x, m: torch.softmax(x + m, -1),
    "scale + bool mask + softmax": lambda x, k: torch.softmax(torch.where(k, x * 0.125, -10000.0), -1),
    "causal softmax": lambda x, q, k: torch.softmax(torch.where(k <= q, x, -10000.0), -1),
    "layer norm of NCHW": _channel_norm,
    "layer norm of 3 axes": lambda x, g, b: F.layer_norm(x, g.shape, g, b),
    "instance norm + relu": lambda x, g, b: torch.relu(F.instance_norm(x, weight=g, bias=b)),
    "group norm + silu": lambda x, g, b: F.silu(F.group_norm(x, 4, g, b)),
    "group norm of 320 channels + silu": lambda x, g, b: F.silu(F.group_norm(x, 32, g, b)),
    "group norm as instance norm": _grouped,
    "l2 norm over channels": lambda x: x / x.norm(dim=1, keepdim=True),
    "l2 norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "batch statistics": _statistics,
    "pool NCHW": lambda x: torch.relu(x).mean((2, 3), keepdim=True),
    "pool NHWC": lambda x: torch.relu(x).mean((1, 2)),
    "mean of rows": lambda x: torch.sigmoid(x).mean(-1, keepdim=True),
    "mean of the middle": lambda x: (x * x).mean(1),
    "sum over": lambda x: torch.relu(x).sum(0),
    "relu backward": _backward,
    "max over the last two": lambda x: x.abs().amax((-2, -1)),
    "arg max of rows": lambda x: (-x).argmax(-1),
    "arg max over channels": lambda x: (-x).argmax(1),
    "norm in float": _rms,
}
"""Expressions by how the name of a case begins; the longest beginning counts."""


def expression(name: str) -> Callable[..., object] | None:
    """Return the torch expression of a case."""
    fitting = [start for start in SAME if name.startswith(start)]
    return SAME[max(fitting, key=len)] if fitting and "tanh" not in name else None


def tensor(shape: tuple[int, ...], dtype: int) -> torch.Tensor:
    """Return random values on the GPU."""
    if dtype in (BOOL, INT64):
        return torch.from_numpy(np.random.default_rng(0).integers(0, 2, shape).astype(ops.NUMPY[dtype])).cuda()
    return torch.from_numpy(noise(shape, dtype)).cuda()


def launches(plan: LaunchPlan, case: Case, inputs: list[list[torch.Tensor]]) -> list[Callable[[], None]]:
    """Return one launch of the kernel per set of inputs, each with outputs of its own."""
    function = kernels.load(plan.kernel, 0)
    parameters = np.frombuffer(plan.parameters, np.dtype((np.void, len(plan.parameters))))
    rounds = []
    for arrays in inputs:
        outputs = [tensor(s, t) for s, t in zip(plan.output_shapes, case.op.outputs, strict=True)]
        arguments = (*(np.uint64(a.data_ptr()) for a in (*arrays, *outputs)), parameters)
        rounds.append(lambda a=arguments, keep=outputs: function(plan.grid, plan.block, a))
    return rounds


def graph_of(rounds: list[Callable[[], object]]) -> torch.cuda.CUDAGraph:
    """Return the rounds as a CUDA graph: no side pays for its host code."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            for one in rounds:
                one()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        for one in rounds:
            one()
    return graph


def compare(case: Case, samples: int, tuning: Tuning = DEFAULT) -> tuple[float, float, int]:
    """Return (seconds of our kernel, seconds of torch.compile, bytes read and written once)."""
    plan = kernels.plan(case.op, case.shapes, True, kernels.arch_of(0), tuning)
    sizes = [*zip(case.shapes, case.op.inputs, strict=True), *zip(plan.output_shapes, case.op.outputs, strict=True)]
    size = sum(int(np.prod(s)) * np.dtype(ops.NUMPY[t]).itemsize for s, t in sizes)
    turns = max(4, ROTATED // size)
    inputs = [[tensor(s, t) for s, t in zip(case.shapes, case.op.inputs, strict=True)] for _ in range(turns)]
    torch._dynamo.reset()
    theirs = torch.compile(expression(case.name), dynamic=False)
    # The graphs hold addresses: the rounds keep what is there.
    ours_in_turn = launches(plan, case, inputs)
    graphs = [graph_of(ours_in_turn), graph_of([lambda arrays=arrays: theirs(*arrays) for arrays in inputs])]
    times: list[list[float]] = [[], []]
    for _ in range(samples):
        for graph, taken in zip(graphs, times, strict=True):
            start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            graph.replay()
            stop.record()
            stop.synchronize()
            taken.append(start.elapsed_time(stop) / 1e3 / turns)
    ours, compiled = (statistics.median(t[2:]) for t in times)
    return ours, compiled, size


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="size of one full tensor (fp16)")
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--only", default="", help="compare the cases whose name holds this text")
    options = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'expression':40} {'us':>9} {'TB/s':>7} {'torch.compile':>14} {'faster':>8}")
    for case in cases(options.megabytes):
        if options.only in case.name and expression(case.name) is not None:
            ours, theirs, size = compare(case, options.samples)
            rate = size / ours / 1e12
            print(
                f"{case.name:40} {ours * 1e6:9.1f} {rate:7.3f} {theirs * 1e6:14.1f} {theirs / ours:7.2f}x", flush=True
            )


if __name__ == "__main__":
    main()
