"""Small fused ops for the kernel tests, and the truth about them: the body by onnx.reference."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxfuse.model.fused import FusedOp
from onnxfuse.verification.reference import cached_attention, recurrent
from onnxfuse.verification.reference.packed import MatMulNBits
from onnxfuse.verification.reference.windows import MaxPool

HALF, BRAIN, FLOAT, DOUBLE = TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT, TensorProto.DOUBLE
BOOL, INT32, INT64 = TensorProto.BOOL, TensorProto.INT32, TensorProto.INT64

NUMPY: Mapping[int, Any] = {
    HALF: np.float16, BRAIN: ml_dtypes.bfloat16, FLOAT: np.float32, DOUBLE: np.float64, BOOL: np.bool_,
    INT32: np.int32, INT64: np.int64, TensorProto.INT8: np.int8, TensorProto.INT16: np.int16,
    TensorProto.UINT8: np.uint8, TensorProto.UINT16: np.uint16, TensorProto.UINT32: np.uint32,
    TensorProto.UINT64: np.uint64, TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
}  # fmt: skip
# Half the distance between neighbours, relative to their size: what one rounding may lose.
ROUNDING: Mapping[int, float] = {HALF: 2.0**-11, BRAIN: 2.0**-8, FLOAT: 2.0**-24, DOUBLE: 2.0**-53}
# The same, absolute, among the smallest numbers. Float: below 2^-126 the GPU may flush to 0.
LEAST: Mapping[int, float] = {HALF: 2.0**-25, BRAIN: 2.0**-126, FLOAT: 2.0**-126, DOUBLE: 2.0**-1074}
# Relative error of the arithmetic that both sides are granted: float32, or, for double, that of the truth itself.
ARITHMETIC: Mapping[int, float] = {HALF: 2.0**-24, BRAIN: 2.0**-24, FLOAT: 2.0**-24, DOUBLE: 2.0**-49}


class Erf(OpRun):
    """erf in the type of x; the one of onnx.reference is good for float32 only."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (np.vectorize(math.erf, otypes=[np.float64])(x.astype(np.float64)).astype(x.dtype),)


class Gelu(OpRun):
    """x Phi(x) in the type of x, without cancellation; the one of onnx.reference rounds to float32 inside."""

    op_domain = ""

    def _run(self, x: np.ndarray, approximate: str = "none") -> tuple[np.ndarray]:
        wide = x.astype(np.float64)
        if approximate == "none":
            gate = np.vectorize(math.erfc, otypes=[np.float64])(-wide / math.sqrt(2)) / 2
        else:
            gate = 1 / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
        return ((wide * gate).astype(x.dtype),)


def op(
    text: str, inputs: tuple[int, ...], outputs: tuple[int, ...], template: str = "pointwise", opset: int = 23
) -> FusedOp:
    """Return the fused op with the body `text`, such as `(x, b) => (y) { y = Add(x, b) }`."""
    head = f'<domain: "onnxfuse", opset_import: ["" : {opset}, "com.microsoft" : 1]> tested '
    return FusedOp("tested", "test", template, inputs, outputs, parser.parse_function(head + text))


def truth(fused: FusedOp, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of the body computed in float64, from the very same input values."""
    return _evaluate(fused, inputs, lambda t: DOUBLE if t in ROUNDING else t)


def unfused(fused: FusedOp, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Return the outputs of the body in the element types of the model, rounded after every node."""
    return _evaluate(fused, inputs, lambda t: t)


def _evaluate(fused: FusedOp, inputs: list[np.ndarray], element_type: Callable[[int], int]) -> list[np.ndarray]:
    nodes = []
    for node in fused.body.node:
        node = onnx.NodeProto.FromString(node.SerializeToString())
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                array = numpy_helper.to_array(attribute.t)
                to = NUMPY[element_type(attribute.t.data_type)]
                attribute.t.CopyFrom(numpy_helper.from_array(array.astype(to)))
            if node.op_type == "Cast" and attribute.name == "to":
                attribute.i = element_type(attribute.i)
            if attribute.name == "stash_type":
                attribute.i = element_type(attribute.i)
        nodes.append(node)
    values = [
        helper.make_tensor_value_info(name, element_type(t), None)
        for name, t in zip(fused.body.input, fused.inputs, strict=True)
    ]
    results = [
        helper.make_tensor_value_info(name, element_type(t), None)
        for name, t in zip(fused.body.output, fused.outputs, strict=True)
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "body", values, results), opset_imports=list(fused.body.opset_import)
    )
    feeds = {
        name: x.astype(NUMPY[element_type(t)])
        for name, x, t in zip(fused.body.input, inputs, fused.inputs, strict=True)
    }
    with np.errstate(all="ignore"):
        # onnx's own (1.23): MaxPool goes wrong where padding differs from side to side, LSTM in two directions.
        own: list[type[OpRun]] = [Gelu, Erf, MatMulNBits, MaxPool, *recurrent.OPERATORS, *cached_attention.OPERATORS]
        return list(ReferenceEvaluator(model, new_ops=own).run(None, feeds))


def random(rng: np.random.Generator, dtype: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return signed values of mixed size."""
    to = NUMPY[dtype]
    if dtype == BOOL:
        return rng.random(shape) < 0.5
    if dtype in ROUNDING:
        return (rng.standard_normal(shape) * 2).astype(to)
    low = 0 if np.iinfo(to).min == 0 else -50
    return rng.integers(low, 100, shape).astype(to)


FEW_ELEMENTS, STEPS = 256, 32
"""An output of fewer can be right by luck, all of it: then inputs beside these tell what the unfused error is."""
DRAWS = 24
"""Such inputs: luck of one in three at each is one in 10^11 at all."""


def within_budget(fused: FusedOp, inputs: list[np.ndarray], got: list[np.ndarray], cuts: int = 0) -> None:
    """Assert the promise: at most twice the error of the unfused computation, plus one rounding of the output type.

    The unfused error is the greatest one of the tensor: at a single element it may be zero by luck. Of few elements it
    is the greatest over the neighbours of the inputs, too. `cuts`: how often the kernel cuts a sum off where the
    unfused computation rounds it; each loses up to two roundings.
    """
    exact, plain = truth(fused, inputs), unfused(fused, inputs)
    for n, (result, true) in enumerate(zip(got, exact, strict=True)):
        dtype = fused.outputs[n]
        assert result.shape == true.shape, f"output {n}"
        assert result.dtype == NUMPY[dtype], f"output {n}"
        if dtype not in ROUNDING:
            np.testing.assert_array_equal(result, true.astype(result.dtype), err_msg=f"output {n}")
            continue
        result = result.astype(np.float64)
        stored = true.astype(NUMPY[dtype]).astype(np.float64)
        np.testing.assert_array_equal(np.isnan(result), np.isnan(true), err_msg=f"NaN of output {n}")
        finite = np.isfinite(stored)
        infinite = ~finite & ~np.isnan(true)
        np.testing.assert_array_equal(result[infinite], stored[infinite], err_msg=f"infinities of output {n}")
        if not finite.any():
            continue
        error, own = np.abs(result[finite] - true[finite]), _greatest(plain[n], true)
        off = error - _allowed(own, true[finite], dtype, cuts)
        if (off > 0).any() and result.size < FEW_ELEMENTS:
            own = max(own, *(_greatest(p[n], t[n]) for p, t in _beside(fused, inputs)))
            off = error - _allowed(own, true[finite], dtype, cuts)
        assert (off <= 0).all(), f"output {n}: {off.max()} above the budget, the unfused error is {own}"


def alike_where_not_finite(got: np.ndarray, want: np.ndarray) -> None:
    """Assert that NaN and infinities stand where they are wanted, of which there are some of each kind."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    assert np.isnan(want).any()
    assert np.isinf(want).any()


def _greatest(plain: np.ndarray, exact: np.ndarray) -> float:
    """Return the greatest error of an unfused output, 0 where all of it is beyond its type."""
    error = np.abs(plain.astype(np.float64) - exact)[np.isfinite(exact.astype(plain.dtype))]
    error = error[np.isfinite(error)]
    return float(error.max()) if error.size else 0.0


def _allowed(own: float, exact: np.ndarray, dtype: int, cuts: int) -> np.ndarray:
    arithmetic = np.abs(exact).max() * (ARITHMETIC[dtype] + 2 * cuts * ROUNDING[FLOAT])
    return np.asarray(2 * own + arithmetic + 2 * ROUNDING[dtype] * np.abs(exact) + LEAST[dtype])


def _beside(fused: FusedOp, inputs: list[np.ndarray]) -> Iterator[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Yield the outputs, unfused and true, at inputs that are up to one rounding step away; the same ones each time."""
    rng = np.random.default_rng(0)
    for _ in range(DRAWS):
        moved = [
            (x.astype(np.float64) * (1 + 2 * ROUNDING[t] * rng.integers(-STEPS, STEPS + 1, x.shape))).astype(x.dtype)
            if t in ROUNDING
            else x
            for t, x in zip(fused.inputs, inputs, strict=True)
        ]
        yield unfused(fused, moved), truth(fused, moved)
