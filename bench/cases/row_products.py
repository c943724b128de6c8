"""Bodies of a norm and the products that read it, and their inputs, that tests on the host and on the GPU share."""

from collections.abc import Mapping

import numpy as np

from bench.cases import ops, packed
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.packing import Packing

RMS = """e = Constant <value = float {0.00001}> () two = Constant <value = float {2.0}> ()
  axes = Constant <value = int64[1] {-1}> ()
  f = Cast <to = 1> (s) p = Pow (f, two) mean = ReduceMean (p, axes) a = Add (mean, e) d = Sqrt (a) q = Div (f, d)
  c = Cast <to = HALF> (q) h = Mul (c, g) """
LAYER = "h = LayerNormalization <axis = -1> (s, g) "
RESIDUAL = "s = Add (x, r) "
BODIES: Mapping[str, tuple[str, str, str]] = {
    "alone": (RMS, "y = MatMul (h, w)", "w"),
    "gate": (RMS, "m = MatMul (h, w) n = MatMul (h, v) t = Sigmoid (m) u = Mul (m, t) y = Mul (u, n)", "wv"),
    "beside": (RMS, "y = MatMul (h, w) z = MatMul (h, v)", "wv"),
    "residual": (RMS, "m = MatMul (h, w) y = Add (m, b)", "wb"),
    "layer norm": (LAYER, "y = MatMul (h, w)", "w"),
}  # fmt: skip
"""The norm, what reads it, and the operands of that."""


def case(body: str, dtype: int, rows: tuple[int, ...], n: int, k: int) -> tuple[FusedOp, list[tuple[int, ...]]]:
    """Return the fused op of a residual, one of BODIES, [*rows, k] by [k, n], and the shapes of its inputs."""
    norm, products, others = BODIES[body]
    outputs = ["s", "h", "y", *(["z"] if "z =" in products else [])]
    head = f"(x, r, g{''.join(f', {o}' for o in others)}) => ({', '.join(outputs)})"
    text = f"{head} {{ {(RESIDUAL + norm + products).replace('HALF', str(dtype))} }}"
    fused = ops.op(text, (dtype,) * (3 + len(others)), (dtype,) * len(outputs), "row_product")
    of = {"w": (k, n), "v": (k, n), "b": (*rows, n)}
    return fused, [(*rows, k), (*rows, k), (k,), *(of[o] for o in others)]


def drawn(fused: FusedOp, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Return drawn inputs of a case. Sums are of the size of the factors, so that the product of a gate's two stays
    within float16."""
    rng, terms = np.random.default_rng(0), shapes[2][0]
    found = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    weights = [name in ("w", "v") for name in fused.body.input]
    return [x / x.dtype.type(terms**0.5) if w else x for x, w in zip(found, weights, strict=True)]


def few_bits(dtype: int, rows: tuple[int, ...], n: int, packing: Packing) -> tuple[FusedOp, list[np.ndarray]]:
    """Return the fused op of a norm and a gate of two products by weights in few bits, and drawn inputs."""
    product, given = packed.case("swiglu", dtype, rows, n, packing)
    norm = RMS.replace("HALF", str(dtype)).replace("(s)", "(x0)").replace("h = Mul", "x = Mul")
    rng, k = np.random.default_rng(1), packing.terms
    fused = ops.op(
        f"(x0, g{''.join(f', {v}' for v in product.body.input[1:])}) => (x, y) {{ {norm} NODES }}".replace(
            "NODES", _text(product)
        ),
        (dtype, dtype, *product.inputs[1:]), (dtype, dtype), "row_product",
    )  # fmt: skip
    gain = (1 + 0.1 * rng.standard_normal(k)).astype(ops.NUMPY[dtype])
    return fused, [given[0], gain, *given[1:]]


def _text(fused: FusedOp) -> str:
    """Return the nodes of a body in ONNX's text syntax."""
    lines = []
    for node in fused.body.node:
        given = ", ".join(f"{a.name} = {a.i}" for a in node.attribute)
        name = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
        attributes = f" <{given}>" if given else ""
        lines.append(f"{node.output[0]} = {name}{attributes} ({', '.join(node.input)})")
    return " ".join(lines)
