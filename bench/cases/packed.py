"""Bodies of products by weights in few bits, and their inputs, that tests on the host and on the GPU share."""

from collections.abc import Mapping

import numpy as np
from onnx import TensorProto

from bench.cases import ops
from onnxfuse.model.fused import FusedOp
from onnxfuse.symbolic.packing import Packing

NUMBERS = TensorProto.UINT8
PLAIN = "y = P0 (x, w0, s0)"
BIASED = "m = P0 (x, w0, s0) a = Add (m, b) y = Gelu (a)"
RESIDUAL = "m = P0 (x, w0, s0) a = Add (m, b) y = Add (a, r)"
SWIGLU = "m = P0 (x, w0, s0) n = P1 (x, w1, s1) s = Sigmoid (m) t = Mul (m, s) y = Mul (t, n)"
PAIR = "m = P0 (x, w0, s0) y = Add (m, b) n = P1 (x, w1, s1) z = Add (n, b)"
HEADS = """m = P0 (x, w0, s0) a = Add (m, b) shape = Constant <value = int64[4] {0, 0, -1, 8}> ()
  h = Reshape (a, shape) y = Transpose <perm = [0, 2, 1, 3]> (h)"""
BODIES: Mapping[str, str] = {
    "plain": PLAIN, "biased": BIASED, "residual": RESIDUAL, "swiglu": SWIGLU, "pair": PAIR, "heads": HEADS,
}  # fmt: skip
ZEROS = ("none", "packed", "real")
"""Zero points: the middle of the numbers, packed like these, or of the type of the scales."""


def case(
    body: str, dtype: int, rows: tuple[int, ...], n: int, packing: Packing, zeros: str = "none"
) -> tuple[FusedOp, list[np.ndarray]]:
    """Return the fused op of one of BODIES, [*rows, k] by [k, n], and drawn inputs; scales are of either sign."""
    text, rng, element = BODIES[body], np.random.default_rng(0), ops.NUMPY[dtype]
    k, blocks = packing.terms, packing.blocks
    inputs: dict[str, tuple[int, np.ndarray]] = {"x": (dtype, rng.standard_normal((*rows, k)).astype(element))}
    for i in range(2):
        if f"P{i}" not in text:
            continue
        inputs[f"w{i}"] = (NUMBERS, packing.pack(rng.integers(0, 1 << packing.bits, (n, k))))
        size = 0.5 / packing.middle / np.sqrt(k)
        inputs[f"s{i}"] = (dtype, (rng.standard_normal((n, blocks)) * size).astype(element))
        if zeros == "packed":
            inputs[f"z{i}"] = (NUMBERS, packing.pack_zero_points(rng.integers(0, 1 << packing.bits, (n, blocks))))
        if zeros == "real":
            inputs[f"z{i}"] = (dtype, (rng.random((n, blocks)) * 2 * packing.middle).astype(element))
        read = f"(x, w{i}, s{i}{f', z{i}' * (zeros != 'none')})"
        product = (
            f"com.microsoft.MatMulNBits <K = {k}, N = {n}, bits = {packing.bits}, block_size = {packing.block}> {read}"
        )
        text = text.replace(f"P{i} (x, w{i}, s{i})", product)
    if "b)" in text:
        inputs["b"] = (dtype, rng.standard_normal(n).astype(element))
    if "r)" in text:
        inputs["r"] = (dtype, rng.standard_normal((*rows, n)).astype(element))
    outputs = ("y", "z") if "z = " in text else ("y",)
    head = f"({', '.join(inputs)}) => ({', '.join(outputs)})"
    types, arrays = zip(*inputs.values(), strict=True)
    return ops.op(f"{head} {{ {text} }}", types, (dtype,) * len(outputs), "gemm"), list(arrays)


def shapes(inputs: list[np.ndarray]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of inputs."""
    return tuple(tuple(x.shape) for x in inputs)
