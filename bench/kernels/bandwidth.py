"""Measure the share of the copy bandwidth that the memory-bound kernels reach: python -m bench.kernels.bandwidth --help

Buffers rotate through more memory than the L2 cache holds; a sample is the GPU time of a round of launches in a CUDA
graph, and the table shows medians. `--sweep NAME=A,B,C` measures every combination of fields of a
template's variants (`variant.py` in its folder).
"""

import argparse
import itertools
import statistics
from dataclasses import dataclass
from functools import cache

import cupy
import numpy as np
import torch

from bench.cases import moved, ops
from bench.cases.ops import BOOL, FLOAT, HALF, INT32, INT64
from bench.cases.rows import TEMPLATES, topk
from bench.kernels import timing
from bench.kernels.launching import early_launch
from onnxfuse import cuda
from onnxfuse.codegen.emit.source import DEVICE, Section, template
from onnxfuse.cuda import KernelSource
from onnxfuse.cuda.dispatch.dispatch import variant_kinds
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import NoPlanError

EMPTY = KernelSource("empty", (Section("empty.cu", 'extern "C" __global__ void empty() {}'),))
ONE_WORD = KernelSource("one_word", (template(DEVICE), Section("one_word.cu", """
extern "C" __global__ void one_word(const unsigned* from, unsigned* to) {
  join_stream();
  to[threadIdx.x] = from[threadIdx.x];
}
""")))  # fmt: skip
"""What no kernel that reads and writes can be faster than."""
COPY_THREADS = 128


def copying(inputs: list[int], outputs: list[int]) -> KernelSource:
    """Return a kernel by hand that reads inputs and writes outputs of so many bytes, a word a thread."""
    pointers = [
        *(f"const unsigned* i{n}" for n in range(len(inputs))),
        *(f"unsigned* o{n}" for n in range(len(outputs))),
    ]
    reads = " ^ ".join(f"(t < {max(size // 4, 1)}u ? i{n}[t] : 0u)" for n, size in enumerate(inputs))
    writes = "".join(f"  if (t < {max(size // 4, 1)}u) o{n}[t] = word;\n" for n, size in enumerate(outputs))
    text = (
        f'extern "C" __global__ void copying({", ".join(pointers)}) {{\n  join_stream();\n'
        f"  const unsigned t = blockIdx.x * {COPY_THREADS}u + threadIdx.x, word = {reads};\n{writes}}}\n"
    )
    return KernelSource("copying", (template(DEVICE), Section("copying.cu", text)))


LAYER_NORM = "(x, r, g, b) => (y, s) { s = Add(x, r) y = LayerNormalization <axis = -1> (s, g, b) }"
RMS_NORM = "(x, r, g) => (y, s) { s = Add(x, r) y = RMSNormalization <axis = -1> (s, g) }"
UNET = ((8, 64, 64, 320), (8, 64, 64, 960), (8, 32, 32, 640), (8, 32, 32, 1280), (1, 64, 64, 320), (1, 512, 512, 128))
"""Images of latent diffusion: what its U-Net norms, and the largest one of its decoder; whatever the size asked for."""
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

    def scan(columns: int, inner: int = 1, dtype: int = HALF) -> Case:
        count = elements * 2 // np.dtype(ops.NUMPY[dtype]).itemsize
        axis = -1 if inner == 1 else -2
        text = f"(x, b) => (y) {{ i = Constant <value_int = {axis}> () s = CumSum (x, i) y = Mul (s, b) }}"
        shape = (count // columns // inner, columns) + ((inner,) if inner > 1 else ())
        name = f"scan {columns}{f' across {inner}' if inner > 1 else ''}{' fp32' if dtype == FLOAT else ''}"
        return Case(name, ops.op(text, (dtype,) * 2, (dtype,), "scan"), (shape, (1,)))

    def chosen(k: int, columns: int, rows: int = 0, dtype: int = HALF) -> Case:
        name = f"top {k} of {f'{rows} x ' if rows else ''}{columns}{' fp32' if dtype == FLOAT else ''}"
        return Case(name, topk(k, dtype), ((rows or elements // columns, columns),))

    images, norm = elements // (256 * 56 * 56), TEMPLATES["group norm of NHWC + silu"]
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
        *(scan(c) for c in (64, 197, 1024, 4096, 65536)),
        *(scan(c, inner) for c, inner in ((128, 768), (1024, 768), (4096, 8))),
        scan(4096, dtype=FLOAT),
        *(chosen(k, c) for k, c in ((1, 1000), (5, 1000), (8, 64), (32, 1024), (32, 4096), (32, 50257))),
        *(chosen(32, 250_000, rows, FLOAT) for rows in (1, 8)),
        *(Case(name, family.op(HALF), family.large(elements)) for name, family in TEMPLATES.items()),
        *(Case(f"group norm of NHWC + silu {'x'.join(map(str, s))}", norm.op(HALF), (s, *[s[-1:]] * 2)) for s in UNET),
        *(
            Case(f"{name}, fp32", TEMPLATES[name].op(FLOAT), TEMPLATES[name].large(elements // 2))
            for name in ("group norm + silu", "layer norm of NCHW", "sum over the batch", "mean of the middle")
        ),
        *(Case(name, *case) for name, case in moved.large(HALF, megabytes).items()),
        *(Case(f"{name} fp32", *case) for name, case in moved.large(FLOAT, megabytes).items()),
    ]


@cache
def noise(dtype: int) -> torch.Tensor:
    """Return random values on the GPU; made on the host, so that CuPy needs no kernels of its own."""
    rng = np.random.default_rng(0)
    if dtype in (BOOL, INT32, INT64):
        return torch.from_numpy(rng.integers(0, 2, 2**20 + 7).astype(ops.NUMPY[dtype])).cuda()
    return torch.from_numpy(rng.standard_normal(2**20 + 7).astype(ops.NUMPY[dtype])).cuda()


def tensor(shape: tuple[int, ...], dtype: int) -> torch.Tensor:
    """Return random values of this shape on the GPU: a megabyte of them again and again."""
    count, values = int(np.prod(shape)), noise(dtype)
    return values.repeat(-(-count // len(values)))[:count].clone().reshape(shape)


@dataclass(frozen=True)
class Ours:
    """A kernel of ours on buffers that rotate."""

    works: list[timing.Work]
    """One launch on each set of buffers."""
    inputs: list[list[torch.Tensor]]
    size: int
    """Bytes that a launch must read and write."""
    plan: cuda.LaunchPlan


def ours(case: Case, tuning: Variant | None = None, least: int = 4) -> Ours:
    """Return the kernel of a case on at least so many sets of buffers, more than the cache holds."""
    plan = cuda.plan(case.op, case.shapes, True, cuda.arch_of(0), tuning)
    given = [*zip(case.shapes, case.op.inputs, strict=True)]
    made = [*zip(plan.output_shapes, case.op.outputs, strict=True)]
    size = sum(int(np.prod(s)) * np.dtype(ops.NUMPY[t]).itemsize for s, t in (*given, *made))
    turns = max(least, min(64, timing.ROTATED // size))
    inputs = [[tensor(s, t) for s, t in given] for _ in range(turns)]
    outputs = [[tensor(s, t) for s, t in made] for _ in range(turns)]
    rounds = [[*one, *other] for one, other in zip(inputs, outputs, strict=True)]
    works = [
        timing.keeping(timing.launcher(plan, [t.data_ptr() for t in tensors], early=True), tensors)
        for tensors in rounds
    ]
    return Ours(works, inputs, size, plan)


def measure(case: Case, tuning: Variant | None, samples: int) -> tuple[float, int]:
    """Return (seconds per launch, bytes that must be read and written)."""
    found = ours(case, tuning)
    return timing.microseconds([found.works], samples)[0] / 1e6, found.size


def small_launches(samples: int) -> None:
    """Print the time per launch of small kernels beside that of an empty one and of one that copies a word a thread."""
    empty, one_word = cuda.load(EMPTY, 0), cuda.load(ONE_WORD, 0)
    chained = [lambda: empty((1,), (32,), ())] * 64
    words = [torch.zeros(32, device="cuda", dtype=torch.int32) for _ in range(65)]
    one_by_one = [
        early_launch(one_word, (1, 1, 1), (32, 1, 1), 0, (a.data_ptr(), b.data_ptr()), ())
        for a, b in itertools.pairwise(words)
    ]
    least, floor = timing.microseconds([chained, one_by_one], samples)
    print(f"\nan empty kernel {least:.2f} us; one that copies a word a thread {floor:.2f} us, {floor / least:.2f}x")
    print(f"{'small tensors, in a CUDA graph':40} {'us':>9} {'of empty':>9} {'of a word':>10} {'of a copy':>10}")
    bias = ops.op("(x, b) => (y) { s = Add(x, b) y = Gelu (s) }", (HALF,) * 2, (HALF,))
    norm = ops.op(LAYER_NORM, (HALF,) * 4, (HALF,) * 2, "row")
    small = [
        Case("bias + Gelu 128 x 768", bias, ((128, 768), (768,))),
        Case("residual + layernorm 128 x 768", norm, ((128, 768),) * 2 + ((768,),) * 2),
        *(Case(name, family.op(HALF), family.small) for name, family in TEMPLATES.items()),
        *(Case(name, of, tuple(shapes)) for name, (of, shapes) in moved.small(HALF).items()),
    ]
    ratios, copied = [], []
    for case in small:
        mine = ours(case, least=64)
        copies = _copies(case, mine)
        least, copy, taken = timing.microseconds([chained, copies, mine.works], samples)
        ratios.append(taken / least)
        copied.append(taken / copy)
        print(f"{case.name:40} {taken:9.2f} {ratios[-1]:8.2f}x {taken / floor:9.2f}x {copied[-1]:9.2f}x", flush=True)
    for of, found in (("an empty kernel", ratios), ("a copy by hand of as many bytes", copied)):
        print(f"{of}: median {statistics.median(found):.2f}x, worst {max(found):.2f}x")


def _copies(case: Case, mine: Ours) -> list[timing.Work]:
    """Return launches that move as many bytes as a case does, on its own inputs and on outputs of their own."""
    sizes = [t.numel() * t.element_size() for t in mine.inputs[0]]
    made = [
        int(np.prod(s)) * np.dtype(ops.NUMPY[t]).itemsize
        for s, t in zip(mine.plan.output_shapes, case.op.outputs, strict=True)
    ]
    kernel = cuda.load(copying(sizes, made), 0)
    grid = (-(-max(*sizes, *made) // (4 * COPY_THREADS)), 1, 1)
    works = []
    for inputs in mine.inputs:
        outputs = [torch.empty(max(n, 4), device="cuda", dtype=torch.uint8) for n in made]
        addresses = [t.data_ptr() for t in (*inputs, *outputs)]
        works.append(timing.keeping(early_launch(kernel, grid, (COPY_THREADS, 1, 1), 0, addresses, ()), outputs))
    return works


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=128, help="size of one full tensor (fp16)")
    parser.add_argument("--samples", type=int, default=30)
    parser.add_argument("--only", default="", help="measure the cases whose name holds this text")
    parser.add_argument("--small", action="store_true", help="measure small tensors, whatever --only says")
    parser.add_argument(
        "--sweep", action="append", default=[], metavar="NAME=A,B",
        help="a field of a template's variants, such as pointwise_threads=128,256,512 or bytes_in_flight=32,64,128",
    )  # fmt: skip
    options = parser.parse_args()

    names = [s.split("=")[0] for s in options.sweep]
    values = [s.split("=")[1].split(",") for s in options.sweep]
    kind = next((k for k in variant_kinds() if k.accepts(dict.fromkeys(names))), None)
    if kind is None:
        parser.error(f"no template's variants have all of {', '.join(names)}")
    variants = []
    for combination in itertools.product(*values):
        variant = kind()
        for name, value in zip(names, combination, strict=True):
            variant = variant.with_field(name, value)
        variants.append(variant if names else None)

    copied = timing.copy_bandwidth(options.megabytes)
    device = cupy.cuda.runtime.getDeviceProperties(0)["name"].decode()
    print(f"{device}, driver {cupy.cuda.runtime.driverGetVersion()}: copy {copied / 1e12:.3f} TB/s")
    print(f"{'kernel':40} {'us':>9} {'TB/s':>7} {'of copy':>8}  " + "  ".join(names))
    for case in cases(options.megabytes):
        if options.only not in case.name:
            continue
        for tuning in variants:
            try:
                taken, size = measure(case, tuning, options.samples)
            except NoPlanError as refused:
                print(f"{case.name:40} {refused}")
                continue
            rate = size / taken
            chosen = "  ".join(str(getattr(tuning, n)) for n in names)
            print(f"{case.name:40} {taken * 1e6:9.1f} {rate / 1e12:7.3f} {rate / copied:8.1%}  {chosen}", flush=True)
    if not options.only or options.small:
        small_launches(options.samples)


if __name__ == "__main__":
    main()
