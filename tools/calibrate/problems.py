"""Fused ops to measure: those from which costs are fitted, and others, held out, on which the choice is judged."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, parser

from onnxfuse.graph.concrete_shapes import every_type, fused_nodes, input_shapes, with_sizes
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.shapes.inference import infer

Shape = tuple[int, ...]

HALF, FLOAT = int(TensorProto.FLOAT16), int(TensorProto.FLOAT)
TEXT = {HALF: "float16", FLOAT: "float"}
GELU = "(x, w, b) => (y) { m = Gemm <transB = 1> (x, w) a = Add(m, b) y = Gelu(a) }"
BIAS = "(x, w, b) => (y) { m = Gemm <transB = 1> (x, w) y = Add(m, b) }"
"""Epilogues of many instructions and of few."""
CONVOLUTION = """(x, w, b) => (y) {
  a = Transpose <perm = [0, 3, 1, 2]> (x) v = Transpose <perm = [0, 3, 1, 2]> (w)
  c = Conv <pads = [PAD, PAD, PAD, PAD]> (a, v) m = Transpose <perm = [0, 2, 3, 1]> (c) h = Add(m, b) y = Relu(h) }"""

SWEPT = (
    (1, 768, 768), (16, 768, 3072), (128, 768, 768), (128, 3072, 768), (512, 768, 768), (512, 3072, 768),
    (1024, 1024, 1024), (1024, 640, 5760), (2048, 3072, 768), (4096, 768, 768), (4096, 2304, 768), (4096, 768, 3072),
    (6304, 768, 768), (6304, 3072, 768), (4096, 4096, 4096), (16384, 768, 768), (1568, 320, 320), (6272, 640, 640),
)  # fmt: skip
"""Rows, columns and terms of the products of BERT, ViT, MLPs and diffusion models, from one row to 16384."""
DRAWN = 60
"""Products of other sizes besides: tiles that no model's sizes fill."""


DEPTHWISE = """(x, w, b) => (y) {
  a = Transpose <perm = [0, 3, 1, 2]> (x) v = Transpose <perm = [2, 3, 0, 1]> (w)
  c = Conv <group = CHANNELS, pads = [PAD, PAD, PAD, PAD], strides = [STRIDE, STRIDE]> (a, v)
  m = Transpose <perm = [0, 2, 3, 1]> (c) h = Add(m, b) s = Sigmoid(h) y = Mul(h, s) }"""


@dataclass(frozen=True)
class Library:
    """What computes a problem's product, attention or convolution, without its epilogue, in NVIDIA's libraries."""

    function: str
    """`product` (cuBLAS), `attention` (cuDNN, for float32 what torch has) or `convolution` (cuDNN)."""
    exact: bool = False
    """Whether float32 is not rounded to TF32."""
    heads: int = 1
    causal: bool = False
    pad: int = 0
    stride: int = 1
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Problem:
    """A fused op on inputs of certain shapes."""

    name: str
    op: FusedOp
    shapes: tuple[Shape, ...]
    library: Library | None = None
    """None: the libraries have no single kernel for it."""


def product(m: int, n: int, k: int, dtype: int = HALF, *, exact: bool = False, light: bool = False) -> Problem:
    """Return [m, k] by [n, k] with a bias, and a GELU unless `light`; `exact`: float32 that is not rounded to TF32."""
    name = f"{m}x{n}x{k} {TEXT[dtype]}{' exact' * exact}{' light' * light}"
    op = _op(BIAS if light else GELU, "gemm", 3, dtype, tf32=not exact)
    return Problem(name, op, ((m, k), (n, k), (n,)), Library("product", exact=exact))


def swept(dtype: int, *, exact: bool) -> list[Problem]:
    """Return the products from which the costs of tiles are fitted: of models, and of sizes drawn between theirs."""
    known = [product(*sizes, dtype, exact=exact, light=light) for sizes in SWEPT for light in (False, True)]
    random = np.random.default_rng(1)
    drawn = [_sizes(random) for _ in range(DRAWN)]
    return known + [product(*sizes, dtype, exact=exact, light=n % 2 == 1) for n, sizes in enumerate(drawn)]


def _sizes(random: np.random.Generator) -> tuple[int, int, int]:
    """Return rows, columns and terms of a product."""
    m = _between(random, 1, 16384)
    n, k = (8 * _between(random, 8, 512) for _ in range(2))
    return m, n, k


def held_out_products(random: np.random.Generator, count: int) -> Iterator[Problem]:
    """Yield products of sizes between those of the models, in float16 and float32, that no cost was fitted to."""
    for number in range(count):
        yield product(*_sizes(random), FLOAT if number % 4 == 3 else HALF, light=number % 2 == 1)


def held_out_skinny(random: np.random.Generator, count: int) -> Iterator[Problem]:
    """Yield products of few rows, in float16 and float32."""
    for number in range(count):
        m = _between(random, 1, 64)
        n, k = (64 * _between(random, 2, 256) for _ in range(2))
        yield product(m, n, k, FLOAT if number % 4 == 3 else HALF, light=number % 2 == 1)


def held_out_depthwise(random: np.random.Generator, count: int) -> Iterator[Problem]:
    """Yield depthwise convolutions by windows of 3, 5 and 7, one pixel or two apart, with a SiLU."""
    for number in range(count):
        size, images = int(random.choice([7, 14, 28, 56, 112])), int(random.choice([1, 8, 32]))
        channels, window, stride = 8 * _between(random, 2, 128), 3 + 2 * (number % 3), int(random.choice([1, 1, 2]))
        text = DEPTHWISE.replace("CHANNELS", str(channels)).replace("PAD", str(window // 2))
        op = _op(text.replace("STRIDE", str(stride)), "depthwise", 3, HALF)
        shapes = ((images, size, size, channels), (window, window, channels, 1), (channels,))
        library = Library("convolution", pad=window // 2, stride=stride, groups=channels)
        yield Problem(f"{images}x{size}x{size}x{channels} by {window} stride {stride}", op, shapes, library)


def held_out_convolutions(random: np.random.Generator, count: int) -> Iterator[Problem]:
    """Yield convolutions by windows and by pixels, of many channels (gemm) and of few (direct)."""
    for number in range(count):
        few = number % 3 == 2
        size, images = int(random.choice([7, 14, 28, 56])), int(random.choice([1, 8, 32]))
        channels, filters = (8 * _between(random, 1 if few else 6, 4 if few else 64) for _ in range(2))
        window = 3 if few else int(random.choice([1, 3]))
        op = _op(CONVOLUTION.replace("PAD", str(window // 2)), "direct" if few else "gemm", 3, HALF)
        shapes = ((images, size, size, channels), (filters, window, window, channels), (filters,))
        name = f"{images}x{size}x{size}x{channels} by {window} to {filters}"
        yield Problem(name, op, shapes, Library("convolution", pad=window // 2))


def held_out_attentions(random: np.random.Generator, count: int) -> Iterator[Problem]:
    """Yield attentions of encoders, of causal models and of a step of decoding, in float16 and float32."""
    while count:
        dtype = FLOAT if count % 4 == 0 else HALF
        heads, size = int(random.choice([4, 8, 12, 16])), int(random.choice([32, 64, 64, 128]))
        keys, batch = _between(random, 64, 2048), _between(random, 1, 32)
        queries, causal = (1, 0) if count % 3 == 0 else (keys, count % 2)
        columns, element = heads * size, TEXT[dtype]
        found = _fused(f"""<ir_version: 10, opset_import: ["" : 23]>
          g ({element}[{batch},{queries},{columns}] q, {element}[{batch},{keys},{columns}] k,
             {element}[{batch},{keys},{columns}] v) => ({element}[{batch},{queries},{columns}] y) {{
            y = Attention <q_num_heads = {heads}, kv_num_heads = {heads}, is_causal = {causal}> (q, k, v) }}""")
        if found is not None and found.op.template == "attention":
            count -= 1
            name = f"{batch}x{heads}x{queries},{keys}x{size} {element}{' causal' * causal}"
            yield Problem(name, found.op, found.shapes, Library("attention", heads=heads, causal=bool(causal)))


def held_out_memory_bound(random: np.random.Generator, count: int) -> Iterator[Problem]:
    """Yield elementwise work, softmaxes, norms and means along rows and columns."""
    texts = (
        ("pointwise", 2, "(x, b) => (y) { s = Add(x, b) y = Gelu(s) }"),
        ("row", 1, "(x) => (y) { y = Softmax <axis = -1> (x) }"),
        ("row", 2, "(x, b) => (y) { s = Add(x, b) y = Softmax <axis = -1> (s) }"),
        ("row", 1, "(x) => (y) { a = Constant <value = int64[1] {0}> () y = ReduceMean <keepdims = 1> (x, a) }"),
    )
    for number in range(count):
        kind = number % len(texts)
        template, inputs, text = texts[kind]
        columns = _between(random, 24, 16384)
        rows = max(1, _between(random, 2**16, 2**26) // columns)
        shapes: tuple[Shape, ...] = ((rows, columns), (columns,))
        yield Problem(f"{template} {kind} {rows}x{columns}", _op(text, template, inputs, HALF), shapes[:inputs])


def _between(random: np.random.Generator, low: int, high: int) -> int:
    """Return an integer, small and large ones alike often."""
    return round(math.exp(random.uniform(math.log(low), math.log(high))))


def _op(text: str, template: str, inputs: int, dtype: int, *, tf32: bool = True) -> FusedOp:
    head = '<domain: "onnxfuse", opset_import: ["" : 23]> calibrated '
    return FusedOp(
        "calibrated", "calibrate", template, (dtype,) * inputs, (dtype,), parser.parse_function(head + text), tf32=tf32
    )


def _fused(text: str) -> Problem | None:
    """Return the only fused op of an optimized model; None if there is another number of them."""
    model = onnx.parser.parse_model(text)
    pipeline.run(model)
    graph = infer(with_sizes(model, {})[0]).graph
    placed = [(name, nodes[0]) for name, nodes in fused_nodes(graph).items()]
    if len(placed) != 1:
        return None
    ((name, node),) = placed
    shapes = input_shapes(node, every_type(graph))
    return None if shapes is None else Problem(name, fused_ops(model)[name], shapes)
