"""Every kind of body that some template takes, with shapes for its inputs: for the kernel that takes all shapes."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bench.cases import attentions, images, moved, ops, packed, products, row_products, rows
from bench.cases.images import SILU
from bench.cases.ops import BRAIN, DOUBLE, FLOAT, HALF, INT32
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.packing import Packing
from tests.support.kernels import joined, pools, resized, windows

Shapes = tuple[tuple[int, ...], ...]

POINTWISE = "(x, b, k) => (y, z) { a = Add(x, b) y = Gelu(a) s = Sigmoid(a) z = Mul(s, k) }"
RUNNING = """(x, b) => (y) { i = Constant <value_int = AXIS> () n = Neg(x) s = CumSum <ATTRIBUTES> (n, i)
  m = Mul(s, b) y = Add(m, x) }"""
SLID, SAME = "strides = [2, 2], pads = [1, 2, 1, 2]", 'auto_pad = "SAME_LOWER"'
VOLUMES = "strides = [1, 2, 1], dilations = [2, 1, 1], pads = [1, 1, 0, 2, 0, 1]"
ALIASED = "(x, b) => (y, x_again) { y = Add(x, b) x_again = Identity(x) }"


def _scan(axis: int, attributes: str, dtype: int) -> tuple[FusedOp, Shapes]:
    text = RUNNING.replace("AXIS", str(axis)).replace("<ATTRIBUTES>", attributes)
    return ops.op(text, (dtype,) * 2, (dtype,), "scan"), ((3, 41), (41,))


def _of(case: Any) -> tuple[FusedOp, Shapes]:
    return case.op(), tuple(map(tuple, case.shapes()))


def _packed(bits: int, zeros: str) -> tuple[FusedOp, Shapes]:
    fused, inputs = packed.case("residual", HALF, (5,), 7, Packing(bits, 16, 48), zeros)
    return fused, packed.shapes(inputs)


def cases() -> dict[str, tuple[FusedOp, Shapes]]:
    """Return the bodies and the shapes of their inputs, by what they are."""
    row: dict[str, Any] = {n: (f.op(HALF), f.small) for n, f in rows.TEMPLATES.items()}
    return {
        "elementwise": (ops.op(POINTWISE, (HALF,) * 3, (HALF,) * 2), ((3, 1, 33), (5, 33), ())),
        "an input is an output": (ops.op(ALIASED, (FLOAT,) * 2, (FLOAT,) * 2), ((7, 3), (3,))),
        **moved.small(HALF),
        "RoPE of queries and keys": (moved.ropes(HALF, 24), ((2, 3, 4, 24), (2, 3, 2, 24), *((2, 3, 1, 24),) * 2)),
        **row,
        "softmax in double": (rows.TEMPLATES["log softmax"].op(DOUBLE), rows.TEMPLATES["log softmax"].small),
        "a running sum": _scan(-1, "", HALF),
        "a running sum before it, from the end": _scan(0, "<exclusive = 1, reverse = 1>", BRAIN),
        "a running sum of integers": _scan(1, "", INT32),
        **{n: _shaped(*products.table(n, HALF)) for n in products.TABLE},
        "a product by a weight of few bits": _packed(4, "packed"),
        "a product by a weight in bytes": _packed(8, "real"),
        "a norm before a product": _shaped(*row_products.case("residual", HALF, (3,), 24, 40)),
        "a product in float": _shaped(*products.table("batched, odd", FLOAT)),
        **{n: _shaped(*products.prologue(n, BRAIN, 5, 19, 41)) for n in products.PROLOGUES},
        "convolution": _shaped(*products.window(HALF, (2, 9, 8, 5), 7, (3, 5), SLID)),
        "convolution of volumes": _shaped(*products.window(HALF, (2, 4, 5, 3, 5), 7, (2, 3, 1), VOLUMES)),
        "convolution in groups": _shaped(*products.window(HALF, (2, 9, 8, 6), 9, (3, 5), f"group = 3, {SLID}")),
        "convolution of the same size": _shaped(*products.window(HALF, (1, 9, 8, 5), 7, (3, 5), SAME)),
        "depthwise": _of(images.Case(images.SEVERAL, HALF, True, 2, 11, (9, 8), (3, 5), (2, 1), (1, 2), (1, 4, 1, 4))),
        "depthwise in a row, with its mean": _of(images.Case(images.SILU, HALF, True, 2, 11, (9, 8), (3, 3), mean=1)),
        "in groups": _of(windows.Case(SILU, HALF, True, 2, 3, 5, (9, 8), (3, 3), 4, pads=(1, 1, 1, 1))),
        "greatest, beyond the end": _of(
            pools.Pool("MaxPool", pools.BIAS_RELU, FLOAT, 2, 5, (9, 8), (3, 2), (2, 2), (2, 1), (1, 0, 2, 1), ceil=True)
        ),
        "mean without padding": _of(
            pools.Pool("AveragePool", pools.BIAS_RELU, HALF, 2, 5, (9, 8), (3, 2), (2, 2), pads=(1, 1, 2, 0))
        ),
        "mean with padding": _of(
            pools.Pool("AveragePool", pools.ALONE, HALF, 2, 5, (9, 8), (3, 2), pads=(1, 1, 2, 0), padded=True)
        ),
        **{
            f"resized, {centre}": _of(resized.Resize(HALF, centre, (2.0, 1.5), (5, 6), 7))
            for centre in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
        },
        "parts side by side": _shaped(*joined.case(HALF)),
    }  # fmt: skip


def _shaped(op: FusedOp, shapes: Sequence[tuple[int, ...]]) -> tuple[FusedOp, Shapes]:
    return op, tuple(map(tuple, shapes))


ATTENTIONS = {
    "attention": attentions.Case(1, 2, 17, 40, 20),
    "attention with a bias, heads first": attentions.Case(2, 2, 9, 21, 48, bias=(9, 21), heads_first="qkvy"),
    "attention to what came before": attentions.Case(2, 2, 9, 9, 16, dtype=BRAIN, causal=True),
    "attention in float32": attentions.Case(1, 2, 9, 21, 16, dtype=FLOAT, bias=(21,)),
    "attention with one number for a bias": attentions.Case(2, 3, 9, 21, 16, apart="qk", bias=()),
}
"""Ops that are read from the library's form, with a truth of their own."""


def inputs(op: FusedOp, shapes: Shapes, rng: np.random.Generator) -> list[np.ndarray]:
    """Return random inputs."""
    return [ops.random(rng, t, s) for t, s in zip(op.inputs, shapes, strict=True)]
