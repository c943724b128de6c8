"""Convolutions of real nets on a GPU, our kernel and cuDNN's: `python -m bench.kernels.convolutions --help`.

Each row is a convolution with bias and ReLU, with a residual between them where the net has one, images channels last:
one kernel of ours, as the plan chooses or, with --tune, the best of all candidates; torch's `cudnn_convolution_relu` or
`cudnn_convolution_add_relu`, cuDNN's fused plan, chosen by its own benchmark; cuDNN's convolution alone. Buffers rotate
through more memory than the L2 cache holds, CUDA graphs, in turns, medians. Needs torch.
"""

import argparse
import math
import multiprocessing
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from onnx import TensorProto

from bench.cases import ops
from bench.kernels.depthwise import ROTATED, Work, microseconds
from onnxfuse import cuda
from onnxfuse.cuda import KernelSource
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.bridge import bridge
from onnxfuse.support.errors import KernelError

TYPES = {
    "float16": (TensorProto.FLOAT16, torch.float16), "bfloat16": (TensorProto.BFLOAT16, torch.bfloat16),
    "float32": (TensorProto.FLOAT, torch.float32),
}  # fmt: skip


Along = int | tuple[int, ...]
"""Of each axis of an image or a volume; one number for both axes of an image."""


@dataclass(frozen=True)
class Layer:
    """A convolution."""

    times: int
    """How often the net has it."""
    size: Along
    channels: int
    filters: int
    kernel: Along
    stride: Along
    groups: int = 1
    residual: bool = False

    @property
    def first(self) -> bool:
        """Whether it reads the model's own images, channels first."""
        return self.channels < 8

    @property
    def space(self) -> tuple[int, ...]:
        return along(self.size, 2)

    @property
    def window(self) -> tuple[int, ...]:
        return along(self.kernel, len(self.space))

    @property
    def steps(self) -> tuple[int, ...]:
        return along(self.stride, len(self.space))

    @property
    def pads(self) -> tuple[int, ...]:
        return tuple(k // 2 for k in self.window)

    @property
    def out(self) -> tuple[int, ...]:
        each = zip(self.space, self.pads, self.window, self.steps, strict=True)
        return tuple((n + 2 * pad - kernel) // step + 1 for n, pad, kernel, step in each)

    def __str__(self) -> str:
        space, window = ("x".join(map(str, of)) for of in (self.space, self.window))
        what = f"{space}x{self.channels} -> {self.filters}, {window} /{self.steps[-1]}"
        return what + (f" groups {self.groups}" if self.groups > 1 else "") + (" +" if self.residual else "")


def along(told: Along, axes: int) -> tuple[int, ...]:
    """Return the number of each axis."""
    return (told,) * axes if isinstance(told, int) else told


RESNET50 = [
    Layer(1, 224, 3, 64, 7, 2), Layer(1, 56, 64, 64, 1, 1), Layer(3, 56, 64, 64, 3, 1),
    Layer(3, 56, 64, 256, 1, 1, residual=True), Layer(1, 56, 64, 256, 1, 1), Layer(2, 56, 256, 64, 1, 1),
    Layer(1, 56, 256, 128, 1, 1), Layer(1, 56, 128, 128, 3, 2), Layer(4, 28, 128, 512, 1, 1, residual=True),
    Layer(1, 56, 256, 512, 1, 2), Layer(3, 28, 512, 128, 1, 1), Layer(3, 28, 128, 128, 3, 1),
    Layer(1, 28, 512, 256, 1, 1), Layer(1, 28, 256, 256, 3, 2), Layer(6, 14, 256, 1024, 1, 1, residual=True),
    Layer(1, 28, 512, 1024, 1, 2), Layer(5, 14, 1024, 256, 1, 1), Layer(5, 14, 256, 256, 3, 1),
    Layer(1, 14, 1024, 512, 1, 1), Layer(1, 14, 512, 512, 3, 2), Layer(3, 7, 512, 2048, 1, 1, residual=True),
    Layer(1, 14, 1024, 2048, 1, 2), Layer(2, 7, 2048, 512, 1, 1), Layer(2, 7, 512, 512, 3, 1),
]  # fmt: skip
FIRST = [
    Layer(1, 224, 3, 64, 7, 2), Layer(1, 224, 3, 32, 3, 2), Layer(1, 224, 3, 64, 3, 1), Layer(1, 224, 3, 24, 3, 2),
    Layer(1, 299, 3, 32, 3, 2), Layer(1, 640, 3, 16, 3, 2), Layer(1, 28, 1, 20, 5, 1),
]  # fmt: skip
GROUPS = [
    Layer(1, 56, 128, 128, 3, 1, 32), Layer(1, 56, 256, 256, 3, 2, 32), Layer(1, 28, 256, 256, 3, 1, 32),
    Layer(1, 14, 512, 512, 3, 1, 32), Layer(1, 7, 1024, 1024, 3, 1, 32), Layer(1, 56, 48, 48, 3, 1, 6),
    Layer(1, 28, 104, 104, 3, 1, 13), Layer(1, 14, 208, 208, 3, 1, 26), Layer(1, 7, 440, 440, 3, 1, 55),
    Layer(1, 28, 128, 128, 3, 1, 8), Layer(1, 14, 320, 320, 3, 1, 20), Layer(1, 28, 192, 192, 3, 1, 8),
    Layer(1, 56, 224, 224, 3, 1, 4), Layer(1, 28, 448, 448, 3, 1, 8), Layer(1, 14, 896, 896, 3, 1, 16),
    Layer(1, 28, 240, 240, 1, 1, 3), Layer(1, 28, 60, 240, 1, 1, 3), Layer(1, 14, 480, 120, 1, 1, 3),
]  # fmt: skip
"""ResNeXt-50 32x4d, RegNetX-800MF and -400MF, RegNetY-1.6GF and -8GF, ShuffleNet v1 with 3 groups."""
SPLIT = [
    Layer(1, (1, 49), 768, 768, (1, 128), 1, 16), Layer(1, (1, 499), 768, 768, (1, 128), 1, 16),
    Layer(1, 56, 64, 128, 3, 1, 2), Layer(1, 56, 128, 256, 3, 1, 2), Layer(1, 28, 128, 256, 3, 1, 2),
    Layer(1, 28, 256, 512, 3, 1, 2), Layer(1, 14, 256, 512, 3, 1, 2), Layer(1, 14, 512, 1024, 3, 1, 2),
    Layer(1, 7, 512, 1024, 3, 1, 2), Layer(1, 28, 192, 192, 3, 1, 4), Layer(1, 14, 1024, 1024, 3, 1, 32),
    Layer(1, 56, 256, 256, 3, 1, 4), Layer(1, 28, 240, 240, 3, 1, 5),
]  # fmt: skip
"""Groups of 32 channels and more: Wav2Vec2's positional convolution of one and ten seconds, ResNeSt-50d, others."""
VOLUMES = [
    Layer(4, (16, 56, 56), 64, 64, 3, 1, residual=True), Layer(1, (16, 56, 56), 64, 128, 3, 2),
    Layer(3, (8, 28, 28), 128, 128, 3, 1, residual=True), Layer(1, (8, 28, 28), 128, 256, 3, 2),
    Layer(3, (4, 14, 14), 256, 256, 3, 1, residual=True), Layer(1, (4, 14, 14), 256, 512, 3, 2),
    Layer(3, (2, 7, 7), 512, 512, 3, 1, residual=True), Layer(1, (16, 56, 56), 64, 144, (1, 3, 3), 1),
    Layer(1, (16, 56, 56), 144, 64, (3, 1, 1), 1),
]  # fmt: skip
"""R3D-18 and, the last two, R(2+1)D-18: depth, height, width."""
ODD = [
    Layer(1, 56, 20, 20, 3, 1), Layer(1, 56, 30, 60, 3, 1), Layer(1, 28, 36, 36, 3, 1), Layer(1, 112, 12, 12, 3, 1),
    Layer(1, 56, 50, 50, 3, 1), Layer(1, 28, 70, 70, 3, 1), Layer(1, 64, 64, 21, 3, 1), Layer(1, 256, 32, 3, 3, 1),
]  # fmt: skip
"""Channels or filters that are no multiples of 8."""
FEW = [
    Layer(1, 128, 8, 8, 3, 1), Layer(1, 128, 16, 16, 3, 1), Layer(1, 64, 24, 24, 3, 1), Layer(1, 128, 32, 32, 3, 1),
    Layer(1, 128, 16, 32, 3, 1), Layer(1, 128, 32, 16, 3, 1), Layer(1, 128, 8, 32, 5, 1), Layer(1, 64, 32, 8, 5, 1),
    Layer(1, 128, 64, 32, 3, 1), Layer(1, 128, 96, 32, 3, 1), Layer(1, 128, 160, 32, 3, 1), Layer(1, 64, 48, 48, 3, 1),
    Layer(1, 128, 32, 64, 3, 1), Layer(1, 64, 48, 96, 3, 1), Layer(1, 64, 40, 40, 3, 1), Layer(1, 128, 64, 16, 3, 1),
    Layer(1, 128, 192, 64, 3, 1), Layer(1, 28, 128, 128, 5, 1), Layer(1, 14, 512, 512, 3, 1),
    Layer(1, 56, 64, 64, 5, 1),
]  # fmt: skip
"""Few channels or filters, multiples of 8: of both the steps and the tiles of the gemm template a part is idle."""
DENOISER = [
    Layer(5, 64, 320, 320, 3, 1), Layer(1, 64, 640, 320, 3, 1), Layer(1, 64, 960, 320, 3, 1),
    Layer(1, 64, 320, 320, 3, 2),
    Layer(6, 32, 640, 640, 3, 1), Layer(1, 32, 320, 640, 3, 1), Layer(1, 32, 960, 640, 3, 1),
    Layer(1, 32, 1280, 640, 3, 1), Layer(1, 64, 640, 640, 3, 1),
]  # fmt: skip
"""Latent diffusion's U-Net, the widths 320 and 640."""
SETS = {
    "denoiser": DENOISER, "resnet50": RESNET50, "first": FIRST, "groups": GROUPS, "split": SPLIT, "volumes": VOLUMES,
    "odd": ODD, "few": FEW,
}  # fmt: skip


TEMPLATE: str | None = None
"""The template that computes all convolutions over windows; None: the one that the rules choose."""


def fused(layer: Layer, batch: int, dtype: int) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return the fused op as the rules make it, and the shapes of its inputs."""
    n, axes = batch, len(layer.space)
    image: tuple[int, ...] = (n, *layer.space, layer.channels)
    w: tuple[int, ...] = (layer.filters, *layer.window, layer.channels // layer.groups)
    rest = "h = Add(m, b) " + ("s = Add(h, r) y = Relu(s)" if layer.residual else "y = Relu(h)")
    names = "x, w, b" + ", r" * layer.residual
    if layer.kernel == 1 and layer.stride == 1 and layer.groups == 1:
        text, template, w = "m = MatMul(x, w)", "gemm", (layer.channels, layer.filters)
        if dtype == TensorProto.FLOAT:
            text, w = "m = Gemm <transB = 1> (x, w)", w[::-1]
            image = (math.prod(image[:-1]), layer.channels)
    else:
        last, first = [0, *range(2, axes + 2), 1], [0, axes + 1, *range(1, axes + 1)]
        turned = f"l = Transpose <perm = {last}> (x) " if layer.first else ""
        facts = f"group = {layer.groups}, strides = {list(layer.steps)}, pads = {list(layer.pads * 2)}"
        text = (
            f"{turned}a = Transpose <perm = {first}> ({'l' if layer.first else 'x'}) "
            f"v = Transpose <perm = {first}> (w) c = Conv <{facts}> (a, v) m = Transpose <perm = {last}> (c)"
        )
        each = layer.channels // layer.groups
        whole = layer.groups == 1 or each in (32, 48, 64) or (each > 64 and each % 32 == 0)
        plain = layer.channels % 8 == 0 and layer.filters % 8 == 0 and whole
        template = TEMPLATE or ("gemm" if plain else "direct")
        image = (n, layer.channels, *layer.space) if layer.first else image
    shapes: list[tuple[int, ...]] = [image, w, (layer.filters,)]
    full = (n, *layer.out, layer.filters)
    shapes += [full if len(image) > 2 else (math.prod(full[:-1]), layer.filters)] * layer.residual
    op = ops.op(f"({names}) => (y) {{ {text} {rest} }}", (dtype,) * len(shapes), (dtype,), template)
    return op, shapes


@dataclass
class Buffers:
    """What one layer reads and writes, several times over; images as torch has them, channels last."""

    xs: list[torch.Tensor]
    rs: list[torch.Tensor]
    ys: list[torch.Tensor]
    w: torch.Tensor
    b: torch.Tensor


def buffers(layer: Layer, batch: int, element: torch.dtype) -> Buffers:
    lies = torch.channels_last if len(layer.space) == 2 else torch.channels_last_3d

    def image(channels: int, space: tuple[int, ...]) -> torch.Tensor:
        made = torch.randn(batch, channels, *space, device="cuda").to(element)
        return made.contiguous(memory_format=lies)

    y = batch * math.prod(layer.out) * layer.filters
    x = batch * math.prod(layer.space) * layer.channels
    count = max(2, min(48, ROTATED // ((x + y * (1 + layer.residual)) * element.itemsize)))
    terms = layer.channels // layer.groups * math.prod(layer.window)
    w = torch.randn(layer.filters, layer.channels // layer.groups, *layer.window, device="cuda")
    return Buffers(
        [image(layer.channels, layer.space) for _ in range(count)],
        [image(layer.filters, layer.out) for _ in range(count)] if layer.residual else [],
        [image(layer.filters, layer.out) for _ in range(count)],
        (w / math.sqrt(terms)).to(element).contiguous(memory_format=lies),
        torch.randn(layer.filters, device="cuda").to(element),
    )


def ours(layer: Layer, on: Buffers, batch: int, dtype: int, tuning: Variant | None) -> Work:
    """Return what launches our kernel."""
    op, shapes = fused(layer, batch, dtype)
    plan = cuda.plan(op, tuple(shapes), True, cuda.arch_of(0), tuning)
    function = cuda.load(plan.kernel, 0)
    if plan.shared_bytes > function.max_dynamic_shared_size_bytes:  # of all launches of the function: it only grows
        function.max_dynamic_shared_size_bytes = plan.shared_bytes
    matrix = len(shapes[1]) == 2
    w = on.w[:, :, 0, 0] if matrix else on.w
    if matrix:
        w = w.contiguous() if shapes[1] == tuple(w.shape) and dtype == TensorProto.FLOAT else w.t().contiguous()
    xs = [x.contiguous() for x in on.xs] if layer.first else on.xs
    arguments = []
    for turn, x in enumerate(xs):
        tensors = [x, w, on.b, *([on.rs[turn]] if layer.residual else []), on.ys[turn]]
        addresses = [t.data_ptr() for t in tensors]
        blobs = [bridge().encoded_tensor_maps(plan.tensor_maps, addresses)] if plan.tensor_maps else []
        by_value = [np.frombuffer(b, np.dtype((np.void, len(b)))) for b in (*blobs, plan.parameters)]
        arguments.append((*map(np.uint64, addresses), *by_value))
    kept = (xs, w)  # as long as the launches that read them

    def launch(turn: int, kept: object = kept) -> None:
        function(plan.grid, plan.block, arguments[turn], shared_mem=plan.shared_bytes)

    return launch


def cudnn(layer: Layer, on: Buffers, alone: bool) -> Work:
    """Return cuDNN's fused convolution, or its convolution alone."""
    strides, pads, ones = list(layer.steps), list(layer.pads), [1] * len(layer.space)
    if alone:
        return lambda turn: convolution(layer)(on.xs[turn], on.w, None, strides, pads, ones, layer.groups)
    if layer.residual:
        return lambda turn: torch.cudnn_convolution_add_relu(
            on.xs[turn], on.w, on.rs[turn], 1.0, on.b, strides, pads, ones, layer.groups
        )
    return lambda turn: torch.cudnn_convolution_relu(on.xs[turn], on.w, on.b, strides, pads, ones, layer.groups)


def convolution(layer: Layer) -> Callable[..., torch.Tensor]:
    """Return torch's convolution over so many axes."""
    found: Callable[..., torch.Tensor] = torch.nn.functional.conv2d
    return found if len(layer.space) == 2 else torch.nn.functional.conv3d


def right(layer: Layer, on: Buffers) -> bool:
    """Return whether our last result is what torch computes in float64, within two roundings of the type."""
    want = convolution(layer)(on.xs[0].double(), on.w.double(), on.b.double(), layer.steps, layer.pads, 1, layer.groups)
    want = (want + on.rs[0].double() if layer.residual else want).relu()
    error = (on.ys[0].double() - want).norm() / want.norm()
    return bool(error < {2: 1e-2 if on.w.dtype == torch.bfloat16 else 1e-3, 4: 1e-3}[on.w.dtype.itemsize])


def runs(work: Callable[[], Work]) -> Work | None:
    """Return the work where it runs at all: some plans fit no memory, some of cuDNN's fused ones do not exist."""
    try:
        made = work()
        made(0)
        torch.cuda.synchronize()
    except (RuntimeError, KernelError) as refused:
        print(f"  {type(refused).__name__}: {str(refused).splitlines()[0][:100]}")
        return None
    return made


def row(layer: Layer, batch: int, dtype: int, element: torch.dtype, tune: bool) -> tuple[float, float, float, str]:
    """Return our time, cuDNN's fused and cuDNN's alone, and our variant."""
    on = buffers(layer, batch, element)
    op, shapes = fused(layer, batch, dtype)
    tunings = [None, *(cuda.candidates(op, tuple(shapes), cuda.arch_of(0))[1:] if tune else ())]
    mine = [(t, w) for t in tunings if (w := runs(partial(ours, layer, on, batch, dtype, t))) is not None]
    mine[0][1](0)
    torch.cuda.synchronize()
    wrong = "" if right(layer, on) else " WRONG"
    theirs = [runs(partial(cudnn, layer, on, alone)) for alone in (False, True)]
    times = microseconds([w for _, w in mine] + [w for w in theirs if w is not None], len(on.xs))
    found = iter(times[len(mine) :])
    fused_time, alone_time = (next(found) if w is not None else math.nan for w in theirs)
    best = min(range(len(mine)), key=lambda i: times[i])
    shown = mine[best][0]
    variant = f"{times[0]:.1f} by plan; {shown}" if best else ""
    return times[best], fused_time, alone_time, variant + wrong


def compile_all(layers: Sequence[Layer], batches: Sequence[int], dtypes: Sequence[int], tune: bool) -> None:
    """Compile every kernel that will be measured, by all processors of the host."""
    arch = cuda.arch_of(0)
    found = dict[KernelSource, None]()
    for layer in layers:
        for op, shapes in (fused(layer, batch, dtype) for batch in batches for dtype in dtypes):
            for tuning in cuda.candidates(op, tuple(shapes), arch) if tune else (None,):
                try:
                    found[cuda.plan(op, tuple(shapes), True, arch, tuning).kernel] = None
                except KernelError as refused:
                    print(f"  {layer}: {str(refused).splitlines()[0][-90:]}")
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        list(pool.map(cuda.compile, found, [arch] * len(found)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", nargs="+", choices=TYPES, default=["float16"])
    parser.add_argument("--batch", nargs="+", type=int, default=[32, 1])
    parser.add_argument("--net", nargs="+", choices=SETS, default=["resnet50"])
    parser.add_argument(
        "--tune", action="store_true", help="measure every candidate of ours, not the plan's choice alone"
    )
    parser.add_argument("--template", choices=["gemm", "direct"], help="of all convolutions over windows")
    options = parser.parse_args()
    global TEMPLATE
    TEMPLATE = options.template
    torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = True
    layers = [layer for net in options.net for layer in SETS[net]]
    compile_all(layers, options.batch, [TYPES[name][0] for name in options.dtype], options.tune)
    print(f"{torch.cuda.get_device_name()}, cuDNN {torch.backends.cudnn.version()}; microseconds")
    for name in options.dtype:
        for net in options.net:
            for batch in options.batch:
                print(f"\n{net}, {name}, batch {batch}\n{'':44}    ours  cuDNN fused  alone   fused / ours")
                ratios, sums = [], [0.0, 0.0]
                for layer in SETS[net]:
                    mine, theirs, alone, variant = row(layer, batch, *TYPES[name], options.tune)
                    whole = theirs if theirs == theirs else alone
                    ratios.append(whole / mine)
                    sums = [sums[0] + layer.times * mine, sums[1] + layer.times * whole]
                    numbers = f"{mine:7.1f} {theirs:9.1f} {alone:9.1f} {whole / mine:10.2f}x"
                    print(f"{layer.times:2} x {layer!s:40} {numbers}  {variant}", flush=True)
                print(f"all layers: {sums[0]:.0f} and {sums[1]:.0f} us; geometric mean of the ratios "
                      f"{statistics.geometric_mean(ratios):.2f}x, least {min(ratios):.2f}x")  # fmt: skip


if __name__ == "__main__":
    main()
