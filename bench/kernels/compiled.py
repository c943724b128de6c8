"""Compare kernels with torch.compile of the same expressions and with ONNX Runtime's own kernels of the same nodes.

Buffers rotate through more memory than the L2 cache holds; our side and torch's are CUDA graphs, timed in turns; of
ONNX Runtime only the time in its kernels counts, one after the other. Medians. `--help` for the choice of rows.
"""

import argparse
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import onnx
import torch
from onnx import helper

from bench.cases.ops import FLOAT
from bench.kernels import timing
from bench.kernels.bandwidth import Case, cases, ours
from bench.launches import launched
from onnxfuse import cuda
from onnxfuse.measure.timing.settings import DEFAULT

F = torch.nn.functional


def _channel_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    d = x - x.mean(1, keepdim=True)
    return d / torch.sqrt((d * d).mean(1, keepdim=True) + 1e-6) * g + b


def _grouped(x: torch.Tensor, i: torch.Tensor, z: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    each = x.shape[1] // len(i)
    scale, shift = (t.repeat_interleave(each)[:, None, None] for t in (i, z))
    return F.silu((F.group_norm(x, len(i)) * scale + shift) * g + b)


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


def _halves_turned(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def _rope(x: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x * c + _halves_turned(x) * s


def _split_heads(x: torch.Tensor, size: int) -> torch.Tensor:
    return x.unflatten(-1, (-1, size)).transpose(1, 2)


def _rope_of_projection(w: torch.Tensor, b: torch.Tensor, c: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return _rope(_split_heads(w + b, c.shape[-1]), c, s)


def _cut(x: torch.Tensor, window: int, channels: int) -> torch.Tensor:
    n, h, w, _ = x.shape
    return x.view(n, h // window, window, w // window, window, channels).transpose(2, 3)


def _merged_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    n, h, w, c = x.shape
    patches = x.view(n, h // 2, 2, w // 2, 2, c).permute(0, 1, 3, 4, 2, 5).reshape(n, h // 2, w // 2, 4 * c)
    return F.layer_norm(patches, g.shape, g, b)


def _windows(x: torch.Tensor, window: int = 7) -> torch.Tensor:
    n, h, w, c = x.shape
    rolled = torch.roll(x, (-3, -3), (1, 2)).view(n, h // window, window, w // window, window, c)
    return rolled.transpose(2, 3).reshape(-1, window * window, c)


def _unwindowed(x: torch.Tensor, h: torch.Tensor, window: int = 7) -> torch.Tensor:
    n, height, width, c = h.shape
    tiles = x.view(n, height // window, width // window, window, window, c).transpose(2, 3)
    return torch.roll(tiles.reshape(h.shape), (3, 3), (1, 2)) + h


def _shuffle(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.channel_shuffle(x, 2).contiguous())


def _depth_to_space(x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, 2, 2, c // 4, h, w).permute(0, 3, 4, 1, 5, 2).reshape(n, c // 4, 2 * h, 2 * w)


def _space_to_depth(x: torch.Tensor) -> torch.Tensor:
    n, c, h, w = x.shape
    return x.view(n, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4).reshape(n, 4 * c, h // 2, w // 2)


def _embedded(
    w: torch.Tensor, i: torch.Tensor, p: torch.Tensor, j: torch.Tensor, *scale: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    s = F.embedding(i, w) + F.embedding(j, p)
    return s, F.layer_norm(s, s.shape[-1:], *scale)


def _keys(x: torch.Tensor, b: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return ((x + b) * k).unflatten(-1, (12, 64)).permute(0, 2, 3, 1).contiguous()


def _gated(act: Callable[[torch.Tensor], torch.Tensor], first: bool) -> Callable[[torch.Tensor], torch.Tensor]:
    def run(x: torch.Tensor) -> torch.Tensor:
        a, b = x.chunk(2, -1)
        return act(a) * b if first else a * act(b)

    return run


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
    "layer norm into windows": lambda x, g, b: _cut(F.layer_norm(x, g.shape, g, b), 7, 96).contiguous(),
    "layer norm of merged patches": _merged_norm,
    "instance norm + relu": lambda x, g, b: torch.relu(F.instance_norm(x, weight=g, bias=b)),
    "group norm + silu": lambda x, g, b: F.silu(F.group_norm(x, 4, g, b)),
    "group norm of 320 channels + silu": lambda x, g, b: F.silu(F.group_norm(x, 32, g, b)),
    "group norm of NHWC + silu": lambda x, g, b: F.silu(F.group_norm(x.permute(0, 3, 1, 2), 32, g, b)),
    "group norm as instance norm": _grouped,
    "embedding + group norm of NHWC": lambda x, a, t, g, b: F.silu(
        F.group_norm((x + a + t).permute(0, 3, 1, 2), 32, g, b)
    ),
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
    "embeddings": _embedded,
    "residual + rmsnorm": lambda x, r, g: (F.rms_norm(x + r, g.shape, g, 1e-5), x + r),
    'bias + Gelu <approximate = "tanh">': lambda x, b: F.gelu(x + b, approximate="tanh"),
    "bias + Mish": lambda x, b: F.mish(x + b),
    "bias + Relu": lambda x, b: torch.relu(x + b),
    "rope": _rope,
    "bias + heads + rope": _rope_of_projection,
    "swiglu": _gated(F.silu, first=True),
    "geglu": _gated(F.gelu, first=False),
    "window partition": _windows,
    "window reverse": _unwindowed,
    "channel shuffle": _shuffle,
    "bias + heads 12x64": lambda x, b: _split_heads(x + b, 64).contiguous(),
    "bias + packed heads": lambda x, b: [_split_heads(t, 64).contiguous() for t in (x + b).chunk(3, -1)],
    "bias + keys": _keys,
    "concat + relu": lambda x, z: torch.relu(torch.cat((x, z), 1)),
    "dense layer": lambda *given: torch.relu(torch.cat(given[:-2], -1) * given[-2] + given[-1]),
    "pad + mul": lambda x, k: F.pad(x, (1, 1, 1, 1)) * k,
    "upsample + concat": lambda x, z: torch.cat((F.interpolate(x, scale_factor=2, mode="nearest"), z), 1),
    "depth to space": lambda x: torch.relu(_depth_to_space(x)),
    "space to depth": lambda x: torch.relu(_space_to_depth(x)),
    "to nhwc": lambda x, k, b: (x.permute(0, 2, 3, 1) * k + b).contiguous(),
    "to nchw": lambda x: torch.relu(x).permute(0, 3, 1, 2).contiguous(),
    "transpose + add": lambda x, z: (x.transpose(1, 2) + z).contiguous(),
}
"""Expressions by how the name of a case begins; the longest beginning counts."""


def expression(name: str) -> Callable[..., object] | None:
    """Return the torch expression of a case."""
    fitting = [start for start in SAME if name.startswith(start)]
    return SAME[max(fitting, key=len)] if fitting else None


def unfused(case: Case) -> onnx.ModelProto:
    """Return the body as a model that ONNX Runtime runs with its own kernels, node by node."""

    def values(
        names: Iterable[str], types: Iterable[int], shapes: Iterable[Sequence[int]]
    ) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, t, s) for n, t, s in zip(names, types, shapes, strict=True)]

    body = case.op.body
    inputs = values(body.input, case.op.inputs, case.shapes)
    outputs = values(body.output, case.op.outputs, cuda.output_shapes(case.op, case.shapes))
    graph = helper.make_graph(list(body.node), "body", inputs, outputs)
    # At opset 22 and later some of ONNX Runtime's kernels are for the CPU alone.
    opset = 23 if any(n.op_type == "RMSNormalization" for n in body.node) else 21
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def onnx_runtime(case: Case, inputs: list[torch.Tensor]) -> float:
    """Return the time of all kernels that ONNX Runtime's CUDA provider launches for the body, microseconds."""
    feeds = {name: x.cpu().numpy() for name, x in zip(case.op.body.input, inputs, strict=True)}
    kernels = launched(unfused(case), feeds, DEFAULT, fused=False, runs=5)
    return sum(us for _, us in kernels.values())


@dataclass(frozen=True)
class Times:
    """Microseconds of one case; NaN where it was not measured."""

    ours: float
    compiled: float
    unfused: float
    size: int
    """Bytes read and written once."""


def compare(case: Case, samples: int, with_ort: bool) -> Times:
    """Return the times of a case: our kernel and torch.compile in turns, and ONNX Runtime's kernels."""
    mine = ours(case)
    sides = [mine.works]
    theirs = expression(case.name)
    if theirs is not None:
        torch._dynamo.reset()
        run = torch.compile(theirs, dynamic=False)
        # The graphs hold addresses: the rounds keep what is there.
        sides.append([partial(run, *arrays) for arrays in mine.inputs])
    taken, *rest = timing.microseconds(sides, samples)
    plain = onnx_runtime(case, mine.inputs[0]) if with_ort else math.nan
    return Times(taken, rest[0] if rest else math.nan, plain, mine.size)


def warm(case: Case) -> None:
    """Let torch.compile and our own compiler fill their caches on disk."""
    mine, theirs = ours(case, least=1), expression(case.name)
    if theirs is not None:
        torch.compile(theirs, dynamic=False)(*mine.inputs[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=64, help="size of one full tensor (fp16)")
    parser.add_argument("--samples", type=int, default=11)
    parser.add_argument("--only", default="", help="compare the cases whose name holds this text")
    parser.add_argument("--dtype", choices=["float16", "float32", "both"], default="both")
    parser.add_argument("--no-ort", action="store_true", help="leave ONNX Runtime out")
    parser.add_argument("--warm", metavar="I/N", help="only compile part I of N, for a run that follows")
    options = parser.parse_args()
    chosen = [c for c in cases(options.megabytes) if options.only in c.name]
    if options.dtype != "both":
        chosen = [c for c in chosen if (FLOAT in c.op.inputs[:1]) == (options.dtype == "float32")]
    if options.warm:
        part, parts = map(int, options.warm.split("/"))
        for case in chosen[part::parts]:
            warm(case)
        return
    copied = timing.copy_bandwidth(options.megabytes)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: copy {copied / 1e12:.3f} TB/s; microseconds")
    print(f"{'kernel':40} {'us':>8} {'of copy':>8} {'compile':>8} {'faster':>8} {'ORT':>9} {'faster':>8}")
    found = {}
    for case in chosen:
        t = found[case.name] = compare(case, options.samples, not options.no_ort)
        share = t.size / (t.ours / 1e6) / copied
        print(f"{case.name:40} {t.ours:8.1f} {share:8.1%} {t.compiled:8.1f} {t.compiled / t.ours:7.2f}x "
              f"{t.unfused:9.1f} {t.unfused / t.ours:7.2f}x", flush=True)  # fmt: skip
    for name, ratios in (
        ("torch.compile", {n: t.compiled / t.ours for n, t in found.items() if not math.isnan(t.compiled)}),
        ("ONNX Runtime's own kernels", {n: t.unfused / t.ours for n, t in found.items() if not math.isnan(t.unfused)}),
    ):
        if ratios:
            worst = min(ratios, key=lambda n: ratios[n])
            print(f"{name}: {len(ratios)} rows, median {statistics.median(ratios.values()):.2f}x, "
                  f"least {ratios[worst]:.2f}x ({worst})")  # fmt: skip


if __name__ == "__main__":
    main()
