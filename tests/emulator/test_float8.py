"""float8 e4m3 in kernels: how it is read, rounded and written, by the software of GPUs before Ada."""

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from bench.cases import ops
from onnxfuse import cuda
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.arch import H200, SUPPORTED, Arch
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate

FLOAT, HALF, EIGHT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.FLOAT8E4M3FN
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
MOST = 448.0


def run(text: str, x: np.ndarray, to: int) -> np.ndarray:
    """Return what a kernel computes of one input."""
    given = {np.dtype(np.float32): FLOAT, np.dtype(np.float16): HALF, E4M3: EIGHT}[x.dtype]
    plan = cuda.plan(ops.op(f"(x) => (y) {{ {text} }}", (given,), (to,), "pointwise"), (x.shape,), True, H200)
    return emulate.run(plan, [x], [E4M3 if to == EIGHT else ops.NUMPY[to]])[0]


def test_every_byte_is_read_as_its_number() -> None:
    every = np.arange(256, dtype=np.uint8).view(E4M3)
    for to in (FLOAT, HALF):
        got = run(f"y = Cast <to = {to}> (x)", every, to)
        np.testing.assert_array_equal(got.astype(np.float32), every.astype(np.float32))


def test_numbers_are_rounded_to_nearest_even_and_saturate() -> None:
    """Of all sizes, the middle of each two numbers and what is beside it; infinities become the greatest number."""
    every = np.sort(np.arange(0x7F, dtype=np.uint8).view(E4M3).astype(np.float32))
    middle = (every[1:] + every[:-1]) / 2
    beside = [np.nextafter(middle, np.float32(way)) for way in (-np.inf, np.inf)]
    random = np.exp2(np.random.default_rng(0).uniform(-14, 10, 2000)).astype(np.float32)
    x = np.concatenate([every, middle, *beside, random, [449, 463.9, 464, 465, 1e30, np.inf, 1e-30, 0]])
    x = np.concatenate([x, -x]).astype(np.float32)
    got = run(f"y = Cast <to = {EIGHT}> (x)", x, EIGHT)
    np.testing.assert_array_equal(got.view(np.uint8), np.clip(x, -MOST, MOST).astype(E4M3).view(np.uint8))
    assert (np.abs(got.astype(np.float32)) <= MOST).all()


def test_no_number_stays_none() -> None:
    got = run(f"y = Cast <to = {EIGHT}> (x)", np.full(32, np.nan, np.float32), EIGHT)
    assert np.isnan(got.astype(np.float32)).all()


@pytest.mark.parametrize("real", [FLOAT, HALF])
def test_values_between_are_rounded(real: int) -> None:
    """QuantizeLinear and DequantizeLinear in one kernel: the value has three bits of mantissa."""
    x = (np.random.default_rng(0).standard_normal((33, 64)) * 3).astype(ops.NUMPY[real])
    name = "float {0.02}" if real == FLOAT else "float16 {9503}"
    scale = np.float32(0.02) if real == FLOAT else np.uint16(9503).view(np.float16)
    text = f"""s = Constant <value = {name}> () q = QuantizeLinear <output_dtype = {EIGHT}> (x, s)
      d = DequantizeLinear (q, s) y = Neg (d)"""
    steps = np.clip(x.astype(np.float32) / np.float32(scale), -MOST, MOST).astype(E4M3)
    wanted = -(steps.astype(np.float32) * np.float32(scale)).astype(ops.NUMPY[real])
    np.testing.assert_array_equal(run(text, x, real), wanted)
    assert len(np.unique(wanted)) < 200


REFUSED = {
    "QuantizeLinear <output_dtype = 17, saturate = 0> (x, s)": "does not saturate",
    "QuantizeLinear <output_dtype = 19> (x, s)": "no integers",
    "Cast <to = 17, saturate = 0> (x)": "does not saturate",
    "Cast <to = 19> (x)": "FLOAT8E5M2",
}


@pytest.mark.parametrize("node", REFUSED)
def test_other_float8_is_refused(node: str) -> None:
    text = f"(x) => (y) {{ s = Constant <value = float {{0.5}}> () q = {node} y = Cast <to = 1> (q) }}"
    with pytest.raises(KernelError, match=REFUSED[node]):
        cuda.plan(ops.op(text, (FLOAT,), (FLOAT,), "pointwise"), ((4, 8),), True, H200)


@pytest.mark.parametrize("arch", {a.name: a for a in SUPPORTED}.values(), ids=lambda a: a.name)
def test_the_kernels_compile_for_each_gpu(arch: Arch) -> None:
    text = "(x) => (y) { s = Constant <value = float {0.5}> () y = QuantizeLinear <output_dtype = 17> (x, s) }"
    plan = cuda.plan(ops.op(text, (FLOAT,), (EIGHT,), "pointwise"), ((64, 64),), True, arch)
    nvrtc.compile(plan.kernel, arch)
