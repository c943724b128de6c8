"""Products whose blocks compute the rows before them, by the host's compiler: residual, norm, gate, siblings."""

from dataclasses import replace

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BRAIN, HALF
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import A100, H200, Arch
from onnxfuse.model.fused import FusedOp
from tests.emulator import emulate

RMS = """e = Constant <value = float {0.00001}> () two = Constant <value = float {2.0}> ()
  axes = Constant <value = int64[1] {-1}> ()
  f = Cast <to = 1> (s) p = Pow (f, two) mean = ReduceMean (p, axes) a = Add (mean, e) d = Sqrt (a) q = Div (f, d)
  c = Cast <to = HALF> (q) h = Mul (c, g) """
PRODUCTS = {
    "alone": ("(x, r, g, w) => (s, h, y)", "s = Add (x, r) ", " y = MatMul (h, w)", "w"),
    "gate": (
        "(x, r, g, w, v) => (s, h, y)", "s = Add (x, r) ",
        " m = MatMul (h, w) n = MatMul (h, v) t = Sigmoid (m) u = Mul (m, t) y = Mul (u, n)", "wv",
    ),
    "beside": (
        "(x, r, g, w, v) => (s, h, y, z)", "s = Add (x, r) ", " y = MatMul (h, w) z = MatMul (h, v)", "wv",
    ),
    "residual": ("(x, r, g, w, b) => (s, h, y)", "s = Add (x, r) ", " m = MatMul (h, w) y = Add (m, b)", "wb"),
}  # fmt: skip


def case(body: str, dtype: int, rows: tuple[int, ...], n: int, k: int) -> tuple[FusedOp, list[tuple[int, ...]]]:
    head, before, after, others = PRODUCTS[body]
    text = f"{head} {{ {(before + RMS + after).replace('HALF', str(dtype))} }}"
    outputs = head.partition("=>")[2].count(",") + 1
    fused = ops.op(text, (dtype,) * (3 + len(others)), (dtype,) * outputs, "row_product")
    of = {"w": (k, n), "v": (k, n), "b": (*rows, n)}
    return fused, [(*rows, k), (*rows, k), (k,), *(of[o] for o in others)]


def emulated(
    fused: FusedOp, shapes: list[tuple[int, ...]], launches: int, arch: Arch = H200, aligned: bool = True
) -> None:
    rng = np.random.default_rng(0)
    inputs = [ops.random(rng, t, s) for t, s in zip(fused.inputs, shapes, strict=True)]
    plan = cuda.plan(fused, tuple(shapes), aligned, arch)
    assert 1 + len(plan.then) == launches
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned)
    ops.within_budget(fused, inputs, got)


@pytest.mark.parametrize("body", PRODUCTS)
@pytest.mark.parametrize(("dtype", "rows", "n", "k"), [
    (HALF, (1,), 40, 264), (BRAIN, (1, 3), 72, 2048), (HALF, (8, 1), 136, 520), (HALF, (2,), 40, 4096),
])  # fmt: skip
def test_few_rows_take_one_launch(body: str, dtype: int, rows: tuple[int, ...], n: int, k: int) -> None:
    """One row by all threads, several at once by fewer; rows that threads hold in several vectors."""
    fused, shapes = case(body, dtype, rows, n, k)
    emulated(fused, shapes, 1)
    emulated(replace(fused, constants=frozenset(range(2, len(shapes)))), shapes, 1)


def test_rows_that_no_block_holds_take_two_launches() -> None:
    emulated(*case("gate", HALF, (9,), 40, 264), 2, A100)
    emulated(*case("alone", HALF, (8,), 40, 8192), 2, A100)
    emulated(*case("alone", HALF, (2,), 40, 264), 2, A100, aligned=False)
