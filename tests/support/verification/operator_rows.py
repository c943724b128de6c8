"""The rows of `operators`: each operator in the forms that matter, in every rank that it takes."""

from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from tests.support.verification.operators import LAST, Row

RNG = np.random.default_rng(0)


def n(*shape: int) -> np.ndarray:
    """Return normal numbers that float32 holds exactly."""
    return np.asarray(RNG.standard_normal(shape)).astype(np.float32).astype(np.float64)


def u(*shape: int, low: float = 0.1, high: float = 0.9) -> np.ndarray:
    """Return numbers between `low` and `high` that float32 holds exactly."""
    return np.asarray(RNG.uniform(low, high, shape)).astype(np.float32).astype(np.float64)


def i(*numbers: int) -> np.ndarray:
    """Return whole numbers as a list."""
    return np.array(numbers, np.int64)


def b(*shape: int) -> np.ndarray:
    """Return truth values."""
    return RNG.integers(0, 2, shape).astype(np.bool_)


def f(number: float) -> np.ndarray:
    """Return a scalar."""
    return np.array(number, np.float64)


def of(op: str, *inputs: np.ndarray | None, since: int = 7, until: int = LAST, outputs: int = 1, **more: Any) -> Row:
    """Return a row."""
    return Row(op, inputs, more, since, until, outputs)


def over(op: str, x: np.ndarray, axes: list[int], change: int, **more: Any) -> list[Row]:
    """Return the rows of an operator whose axes are an attribute before opset `change`, an input from there on."""
    positive = [a % x.ndim for a in axes]
    return [
        of(op, x, until=10, axes=positive, **more),
        of(op, x, since=11, until=change - 1, axes=axes, **more),
        of(op, x, i(*axes), since=change, **more),
    ]


SIGNED = np.concatenate([n(20), [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, 3.0, -3.0, 6.0, -6.0, 10.0, -10.0, 88.0, -88.0]])
ANY = ("Abs", "Atan", "Ceil", "Cos", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
       "LeakyRelu", "Mish", "Neg", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Softplus", "Softsign", "Swish",
       "Tanh", "ThresholdedRelu", "Asinh", "Celu", "Dropout", "IsNaN", "IsInf", "Shrink")  # fmt: skip
WITHIN_ONE = ("Acos", "Asin", "Atanh", "Cosh", "Sinh", "Tan")
ABOVE_ZERO = ("Log", "Sqrt", "Reciprocal", "Acosh")

ELEMENTWISE = [
    *(of(op, SIGNED) for op in ANY),
    *(of(op, n(*shape)) for op in ANY for shape in ((), (3, 4, 5, 2, 3))),
    *(of(op, u(3, 4, low=-0.9)) for op in WITHIN_ONE),
    *(of(op, u(3, 4, low=1.1, high=9)) for op in ABOVE_ZERO),
    of("IsNaN", np.array([1.0, np.nan, np.inf])),
    of("IsInf", np.array([1.0, np.nan, np.inf, -np.inf])),
    of("IsInf", np.array([1.0, np.nan, np.inf, -np.inf]), detect_negative=0),
    of("IsInf", np.array([1.0, np.nan, np.inf, -np.inf]), detect_positive=0),
    of("Elu", SIGNED, alpha=0.3), of("Celu", SIGNED, alpha=0.3), of("LeakyRelu", SIGNED, alpha=0.3),
    of("Selu", SIGNED, alpha=1.5, gamma=0.7), of("ThresholdedRelu", SIGNED, alpha=0.3),
    of("HardSigmoid", SIGNED, alpha=0.3, beta=0.4), of("Shrink", SIGNED, lambd=0.7, bias=0.2),
    of("Gelu", SIGNED, approximate="tanh"), of("Swish", SIGNED, alpha=1.7),
    of("Neg", i(1, -2, 3)), of("Abs", i(1, -2, 3)), of("Sign", i(1, -2, 0)),
    of("Relu", np.array([1, -2, 3], np.int32), since=14),
    *(of(op, n(3, 1, 4), n(2, 1)) for op in ("Add", "Sub", "Mul", "Div")),
    *(of(op, i(7, -7, 8), i(2, 2, -3)) for op in ("Add", "Sub", "Mul", "Div")),
    *(of(op, n(3, 1, 4), n(2, 1)) for op in ("Greater", "Less")),
    *(of(op, i(1, 2, 3), i(3, 2, 1), since=9) for op in ("Greater", "Less")),
    *(of(op, n(3, 1, 4), n(2, 1)) for op in ("GreaterOrEqual", "LessOrEqual")),
    of("Equal", i(1, 2, 3), i(3, 2, 1)), of("Equal", b(3, 1), b(4)),
    of("Equal", np.round(n(9)), np.round(n(9)), since=11),
    *(of(op, b(3, 1), b(4)) for op in ("And", "Or", "Xor")), of("Not", b(5)),
    of("Pow", u(3, 4), n(4)), of("Pow", n(3, 4), f(2.0)), of("Pow", n(3, 4), f(3.0)), of("Pow", u(3, 4), f(0.5)),
    of("Pow", n(3, 4), i(2), since=12), of("Pow", i(2, 3), i(2, 2), since=12),
    of("Mod", i(7, -7, 7, -7), i(3, 3, -3, -3)), of("Mod", i(7, -7, 7, -7), i(3, 3, -3, -3), fmod=1),
    of("Mod", n(9) * 5, u(9), fmod=1),
    *(of(op, n(3, 4)) for op in ("Max", "Min", "Mean", "Sum")),
    *(of(op, n(3, 4), n(3, 4), n(3, 4)) for op in ("Max", "Min", "Mean", "Sum")),
    *(of(op, n(3, 1), n(4), n(1), since=8) for op in ("Max", "Min", "Mean", "Sum")),
    *(of(op, i(1, 5), i(3, 2), since=12) for op in ("Max", "Min")),
    of("PRelu", n(2, 3, 4), n(3, 1)), of("PRelu", n(2, 3, 4), n(1)), of("PRelu", n(2, 3, 4, 4), n(3, 1, 1)),
    of("Where", b(3, 1), n(4), n(2, 1, 1)),
    of("Clip", SIGNED, until=10, min=-0.5, max=1.5), of("Clip", SIGNED, until=10),
    of("Clip", SIGNED, until=10, max=0.25),
    of("Clip", SIGNED, f(-0.5), f(1.5), since=11), of("Clip", SIGNED, since=11),
    of("Clip", SIGNED, None, f(1.5), since=11),
    of("Clip", SIGNED, f(0.5), since=11), of("Clip", i(1, 5, 9), np.array(2), np.array(6), since=12),
    of("Clip", SIGNED, f(2.0), f(-2.0), since=11),
    of("Cast", n(3, 4) * 9), of("Cast", n(3, 4) * 9, to=TensorProto.INT64), of("Cast", n(3, 4), to=TensorProto.BOOL),
    of("Cast", i(1, 0, 3)), of("Cast", b(4)), of("Cast", np.array([3, 200], np.uint8)),
    of("Cast", i(300, -1), to=TensorProto.UINT8), of("Cast", i(1, 0, 3), to=TensorProto.BOOL),
    of("CastLike", n(3) * 9, i(1)), of("CastLike", i(1, 2), n(1)),
    of("BitShift", np.array([1, 16], np.uint32), np.array([3, 2], np.uint32), direction="LEFT"),
    of("BitShift", np.array([1, 16], np.uint32), np.array([3, 2], np.uint32), direction="RIGHT"),
    *(of(op, i(12, 10), i(10, 7)) for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")), of("BitwiseNot", i(5, -3)),
    of("Dropout", n(3, 4), until=11, ratio=0.7), of("Dropout", n(3, 4), f(0.7), since=12),
    of("Dropout", n(3, 4), f(0.7), np.array(False), since=12),
]  # fmt: skip

MOVING = [
    *(of(op, n(*shape), axis=axis) for op in ("Flatten",) for shape, axis in (((2, 3, 4), 1), ((2, 3, 4), 0), ((2,
         3), 2))),
    of("Flatten", n(2, 3, 4), axis=-1, since=11),
    of("Reshape", n(2, 3, 4), i(0, -1)), of("Reshape", n(2, 3, 4), i(4, 6)),
    of("Reshape", n(0, 3), i(0, 3), allowzero=1, since=14),
    of("Transpose", n(2, 3, 4)), of("Transpose", n(2, 3, 4), perm=[1, 2, 0]),
    of("Squeeze", n(1, 3, 1), until=12), of("Squeeze", n(1, 3, 1), since=13),
    *over("Squeeze", n(1, 3, 1), [-1], 13), *over("Unsqueeze", n(3, 4), [0, -1], 13)[1:],
    of("Unsqueeze", n(3, 4), axes=[0, 3], until=10),
    of("Expand", n(3, 1), i(2, 1, 4)), of("Tile", n(3, 2), i(2, 3)),
    of("Concat", n(2, 3), n(2, 1), axis=1), of("Concat", n(2, 3), n(1, 3), axis=-2, since=11),
    of("Concat", n(2), axis=0),
    of("Split", n(5, 4), axis=0, split=[2, 3], until=12, outputs=2), of("Split", n(6, 4), axis=1, until=12, outputs=2),
    of("Split", n(5, 4), i(2, 3), axis=0, since=13, outputs=2),
    of("Split", n(6, 4), axis=-1, since=13, until=17, outputs=2),
    of("Split", n(6, 5), axis=1, num_outputs=3, since=18, outputs=3),
    of("Slice", n(5, 6), until=9, starts=[1, -3], ends=[4, 99]),
    of("Slice", n(5, 6), until=9, axes=[1], starts=[2], ends=[-1]),
    of("Slice", n(5, 6), i(1, -3), i(4, 99), since=10), of("Slice", n(5, 6), i(-1), i(-99), i(1), i(-2), since=10),
    of("Slice", n(5, 6), i(9), i(0), i(-1), i(-1), since=11),
    of("Gather", n(3, 4), np.array([[0, 2], [1, 1]])), of("Gather", n(3, 4), i(0, 3), axis=1),
    of("Gather", n(3, 4), np.array(-1), axis=-1, since=11),
    of("Pad", n(2, 3), pads=[0, 1, 2, 0], until=10), of("Pad", n(2, 3), pads=[0, 1, 2, 0], value=1.5, until=10),
    of("Pad", n(2, 3), pads=[0, -1, 1, 0], until=10),
    *(of("Pad", n(3, 4), pads=[1, 2, 0, 1], mode=mode, until=10) for mode in ("reflect", "edge")),
    of("Pad", n(2, 3), i(0, 1, 2, 0), since=11), of("Pad", n(2, 3), i(0, 1, 2, 0), f(1.5), since=11),
    of("Pad", n(2, 3), i(0, -1, 1, 0), f(1.5), since=11),
    *(of("Pad", n(3, 4), i(1, 2, 0, 1), mode=mode, since=11) for mode in ("reflect", "edge")),
    of("Pad", n(2, 3, 4), i(1, 2), f(0.5), i(-2), since=18),
    of("Pad", n(2, 3, 4), i(1, 2), None, i(1), mode="edge", since=18),
    of("Pad", n(3, 4), i(1, 2, 0, 9), mode="wrap", since=19),
    *(of(op, n(1, 8, 2, 6), blocksize=2) for op in ("DepthToSpace", "SpaceToDepth")),
    of("DepthToSpace", n(2, 8, 3, 2), blocksize=2, mode="CRD", since=11),
    of("DepthToSpace", n(2, 8, 3, 2), blocksize=2, mode="DCR", since=11),
    of("Shape", n(2, 3, 4)), of("Shape", n(2, 3, 4), start=1, since=15),
    of("Shape", n(2, 3, 4), start=-2, end=-1, since=15),
    of("Range", i(3)[0:1].reshape(()), np.array(9), np.array(2)), of("Range", f(1.0), f(-1.0), f(-0.25)),
    of("Constant", value=numpy_helper.from_array(np.arange(6, dtype=np.int64).reshape(2, 3))),
    of("Constant", value_ints=[1, 2], since=12), of("Constant", value_float=0.5, since=12),
    of("Size", n(2, 3)), of("ConstantOfShape", i(2, 3), since=9),
    of("ConstantOfShape", i(2), value=numpy_helper.from_array(np.array([7], np.int64)), since=9),
    of("EyeLike", n(3, 4), k=1), of("Compress", n(3, 4), np.array([True, False, True]), axis=0, since=9),
    of("Compress", n(3, 4), np.array([True, False, True, True, False]), since=9),
    of("NonZero", np.array([[1.0, 0], [2, 3]])),
    *(of("OneHot", i(0, 2, -1), np.array(4), np.array([0.5, 2.0]), axis=axis, since=9) for axis in (-1, 0)),
    of("OneHot", RNG.integers(-4, 6, (2, 3)), np.array([5]), np.array([0.5, 2.0]), axis=1, since=9),
    of("CumSum", n(3, 4), np.array(1)),
    *(of("CumSum", n(3, 4), np.array(-1), exclusive=e, reverse=r) for e in (0, 1) for r in (0, 1)),
    of("GatherElements", n(3, 4), RNG.integers(-3, 3, (2, 4)), axis=0),
    of("GatherElements", n(3, 4), RNG.integers(0, 4, (3, 2)), axis=-1),
    of("GatherND", n(3, 4, 2), RNG.integers(0, 3, (5, 2))),
    of("GatherND", n(3, 4, 2), RNG.integers(0, 4, (3, 5, 1)), batch_dims=1, since=12),
    of("Scatter", n(3, 4), np.array([[0, 2]]), n(1, 2), axis=1, until=10, since=9),
    of("ScatterElements", n(3, 4), np.array([[0, 2], [1, -1]]), n(2, 2), axis=1, since=11),
    *(of("ScatterElements", n(3, 4), np.array([[0, 2, 0]]), n(1, 3), axis=1, reduction=how, since=16)
         for how in ("add", "mul")),
    *(of("ScatterElements", n(3, 4), np.array([[0, 2, 0]]), n(1, 3), axis=1, reduction=how, since=18)
         for how in ("max", "min")),
    of("ScatterND", n(4, 3), np.array([[3], [0]]), n(2, 3)),
    *(of("ScatterND", n(4, 3), np.array([[3], [3]]), n(2, 3), reduction=how, since=16) for how in ("add", "mul")),
    *(of("ScatterND", n(4, 3), np.array([[3], [3]]), n(2, 3), reduction=how, since=18) for how in ("max", "min")),
    *(of("Trilu", n(2, 4, 5), np.array(k), upper=upper) for k in (-1, 0, 2) for upper in (0, 1)),
    of("ReverseSequence", n(4, 3, 2), i(1, 4, 2), batch_axis=1, time_axis=0),
    of("ReverseSequence", n(3, 4), i(1, 4, 2), batch_axis=0, time_axis=1),
    of("CenterCropPad", n(5, 7), i(3, 9), since=18), of("Unique", np.array([2.0, 1, 1, 3]), outputs=4),
    of("Unique", n(3, 4), axis=0, outputs=4),
    of("TopK", n(3, 5), until=9, k=2, outputs=2), of("TopK", n(3, 5), i(2), since=10, outputs=2),
    of("TopK", n(3, 5), i(3), axis=0, since=10, outputs=2),
    of("TopK", n(3, 5), i(3), largest=0, since=11, outputs=2),
    of("TopK", np.array([[1.0, 2, 2, 1, 2]]), i(4), since=10, outputs=2),
    of("TopK", np.array([[1.0, 2, 2, 1, 2]]), i(3), largest=0, since=11, outputs=2),
]  # fmt: skip

REDUCING = [
    row
    for op in ("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin",
         "ReduceProd",
               "ReduceSum", "ReduceSumSquare")
    for change in (13 if op == "ReduceSum" else 18,)
    for row in (
        *over(op, u(3, 4), [1], change), *over(op, u(3, 4, 2), [-1], change, keepdims=0),
        *over(op, u(2, 3, 4, 2, 3), [1, -2], change),
        of(op, u(3, 4)), of(op, u(4), keepdims=0), of(op, u(3, 4), since=change, noop_with_empty_axes=1),
        of(op, u(3, 4), i(), since=change), of(op, u(3, 4), i(), since=change, noop_with_empty_axes=1),
    )
] + [
    of("ReduceSum", i(3, -4, 5)), of("ReduceMax", i(3, -4, 5)),
    *(of(op, x, axis=axis, keepdims=keep) for op in ("ArgMax", "ArgMin") for x in (n(3, 4, 2), np.array([[1.0, 2,
         2], [0, 0, 1]]))
      for axis in (0, 1) for keep in (0, 1)),
    *(of(op, np.array([[1.0, 2, 2], [0, 0, 1]]), axis=-1, select_last_index=1, since=12) for op in ("ArgMax",
         "ArgMin")),
    *(of(op, n(3), keepdims=0) for op in ("ArgMax", "ArgMin")),
    *(of(op, n(*shape)) for op in ("Softmax", "LogSoftmax", "Hardmax") for shape in ((2, 3), (2, 3, 4), (2, 3, 4,
         2), (2, 3, 2, 2, 3))),
    of("Hardmax", np.array([[1.0, 2, 2], [0, 0, 1]])),
    *(of(op, n(2, 3, 4), axis=axis, since=11 if axis < 0 else 7) for op in ("Softmax", "LogSoftmax", "Hardmax")
         for axis in (0, 1, 2, -1, -2)),
    of("Softmax", n(2, 3, 4) * 300), of("LogSoftmax", n(2, 3, 4) * 300), of("Softmax", n(5), axis=0),
    of("Hardmax", n(5), axis=0),
    *(of("LpNormalization", n(2, 3, 4), p=p, axis=axis) for p in (1, 2) for axis in (0, 1, -1)),
    of("LpNormalization", np.zeros((2, 3))),
    of("LRN", n(2, 5, 3, 3), size=3), of("LRN", n(2, 5, 3, 3), size=5, alpha=0.5, beta=0.6, bias=2.0),
    of("LRN", n(2, 6, 3, 3), size=2),
    of("LRN", n(1, 6, 3), size=3),
    of("MeanVarianceNormalization", n(2, 3, 4, 5), since=9),
    of("MeanVarianceNormalization", n(2, 3, 4, 5), axes=[1], since=9),
]  # fmt: skip

MATRICES = [
    *(of("MatMul", n(*a), n(*c)) for a, c in (((3, 4), (4, 2)), ((4,), (4, 2)), ((3, 4), (4,)), ((4,), (4,)), ((2,
         3, 4), (4, 2)),
                                                ((2, 1, 3, 4), (5, 4, 2)), ((1, 2, 3, 4, 2), (2, 1, 2, 3)))),
    of("MatMul", np.arange(12).reshape(3, 4), np.arange(8).reshape(4, 2), since=9),
    of("Gemm", n(3, 4), n(4, 2), n(2)), of("Gemm", n(4, 3), n(2, 4), n(3, 1), transA=1, transB=1, alpha=0.5, beta=2.0),
    of("Gemm", n(3, 4), n(4, 2), n(1)), of("Gemm", n(3, 4), n(4, 2), n(3, 2), beta=0.0),
    of("Gemm", n(3, 4), n(4, 2), f(0.5)),
    of("Gemm", n(3, 4), n(4, 2), since=11), of("Gemm", n(3, 4), n(2, 4), transB=1, alpha=2.0, since=11),
    *(of("Einsum", n(*a), n(*c), equation=e) for e, a, c in (
        ("ij,jk->ik", (3, 4), (4, 2)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)),
        ("...ij,...jk", (2, 3, 4), (2, 4, 2)), ("i,j->ij", (3,), (2,)))),
    of("Einsum", n(3, 3), equation="ii->i"), of("Einsum", n(3, 4), equation="ij->j"),
    of("Det", n(2, 3, 3), since=11),
]  # fmt: skip

WINDOWS: list[dict[str, Any]] = [
    {}, {"pads": [1, 0, 2, 1], "strides": [1, 2]}, {"strides": [2, 3]}, {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    {"auto_pad": "SAME_LOWER"}, {"auto_pad": "SAME_LOWER", "strides": [2, 3]}, {"auto_pad": "VALID", "strides": [3, 1]},
    {"pads": [0, 1, 0, 0]}, {"pads": [0, 0, 1, 1], "strides": [2, 2]}, {"pads": [2, 1, 0, 1], "strides": [3, 2]},
]  # fmt: skip
CEILED: list[dict[str, Any]] = [{**w, "ceil_mode": 1} for w in WINDOWS]
DILATED: dict[str, Any] = {"dilations": [2, 1], "pads": [1, 1, 1, 1]}
IMAGE = n(2, 6, 11, 9)

SLIDING = [
    *(of("Conv", IMAGE, n(4, 6, 3, 2), n(4), **w) for w in (*WINDOWS, DILATED)),
    of("Conv", IMAGE, n(12, 1, 3, 2), group=6), of("Conv", IMAGE, n(4, 3, 3, 2), n(4), group=2, kernel_shape=[3, 2]),
    of("Conv", n(2, 3, 9), n(4, 3, 3), pads=[2, 0]), of("Conv", n(1, 2, 5, 4, 6), n(3, 2, 2, 2, 3), strides=[2, 1, 1]),
    *(of("ConvTranspose", n(2, 6, 5, 4), n(6, 4, 3, 2), n(4), **w) for w in (
        {}, {"strides": [2, 3]}, {"strides": [2, 2], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}, DILATED,
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"auto_pad": "VALID", "strides": [2, 2]},
        {"output_shape": [11, 9], "strides": [2, 2]}, {"output_shape": [9, 8], "strides": [2, 2]},
        {"auto_pad": "SAME_UPPER", "output_shape": [9, 7], "strides": [2, 2]},
        {"auto_pad": "SAME_UPPER", "strides": [3, 3]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 3], "dilations": [2, 1]})),
    of("ConvTranspose", n(2, 6, 5, 4), n(6, 2, 3, 2), n(6), group=3, strides=[2, 1]),
    of("ConvTranspose", n(2, 6, 5), n(6, 4, 3), strides=[2], output_padding=[1]),
    of("ConvTranspose", n(1, 2, 3, 4, 3), n(2, 3, 2, 2, 2), strides=[1, 2, 1]),
    *(of("MaxPool", IMAGE, kernel_shape=[3, 2], **w) for w in WINDOWS),
    *(of("MaxPool", IMAGE, kernel_shape=[3, 2], since=10, **w) for w in (DILATED, *CEILED)),
    *(of("MaxPool", IMAGE, kernel_shape=[3, 2], since=8, outputs=2, **w) for w in WINDOWS[:4]),
    of("MaxPool", IMAGE, kernel_shape=[3, 2], since=8, outputs=2, storage_order=1),
    of("MaxPool", n(2, 3, 9), kernel_shape=[3], pads=[1, 0], strides=[2]),
    of("MaxPool", n(2, 3, 5, 4, 6), kernel_shape=[2, 3, 2], pads=[1, 0, 0, 0, 1, 1]),
    of("MaxPool", RNG.integers(-9, 9, (1, 2, 5, 5)).astype(np.int8), kernel_shape=[2, 2], pads=[1, 0, 0, 1], since=12),
    *(of("AveragePool", IMAGE, kernel_shape=[3, 2], count_include_pad=c, **w) for w in WINDOWS for c in (0, 1)),
    *(of("AveragePool", IMAGE, kernel_shape=[3, 2], count_include_pad=c, since=10, **w) for w in CEILED for c in (0,
         1)),
    *(of("AveragePool", IMAGE, kernel_shape=[3, 2], count_include_pad=c, since=19, **DILATED) for c in (0, 1)),
    of("AveragePool", n(2, 3, 9), kernel_shape=[3], pads=[1, 0], strides=[2]),
    of("AveragePool", n(2, 3, 5, 4, 6), kernel_shape=[2, 3, 2]),
    *(of("LpPool", IMAGE, kernel_shape=[3, 2], p=p, **w) for w in WINDOWS[:6] for p in (1, 2, 3)),
    of("LpPool", n(2, 3, 9), kernel_shape=[3]),
    *(of(op, n(2, 3, *shape)) for op in ("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool") for shape in ((9,),
         (4, 5), (3, 4, 2))),
    of("GlobalLpPool", n(2, 3, 4, 5), p=3),
    of("MaxUnpool", n(1, 1, 2, 2), np.array([[[[0, 2], [8, 10]]]]), kernel_shape=[2, 2], strides=[2, 2], since=9),
]  # fmt: skip

MOMENTS: tuple[dict[str, Any], ...] = ({}, {"epsilon": 0.1}, {"momentum": 0.3})
NORMS = [
    *(of("BatchNormalization", n(2, 3, *shape), n(3), n(3), n(3), u(3), **more) for shape in ((), (4,), (4, 5), (2,
         3, 2))
      for more in MOMENTS),
    of("BatchNormalization", n(2, 3, 4), n(3), n(3), n(3), u(3), training_mode=0, since=14),
    of("BatchNormalization", n(2, 3, 4), n(3), n(3), n(3), u(3), spatial=1, until=8),
    of("BatchNormalization", n(2, 3, 4), n(3, 4), n(3, 4), n(3, 4), u(3, 4), spatial=0, until=8),
    of("BatchNormalization", n(2, 3, 4), n(3), n(3), n(3), u(3), training_mode=1, momentum=0.3, since=14, outputs=3),
    *(of("InstanceNormalization", n(2, 3, *shape), n(3), n(3), epsilon=0.01) for shape in ((4,), (4, 5), (2, 3, 2))),
    of("InstanceNormalization", n(2, 3, 4), n(3), n(3)),
    *(of("LayerNormalization", n(2, 3, 4), n(*n4), n(*n4), axis=axis, epsilon=0.01) for axis, n4 in ((-1, (4,)), (1,
         (3, 4)), (0, (2, 3, 4)))),
    of("LayerNormalization", n(2, 3, 4), n(4)), of("LayerNormalization", n(3, 4), n(4), n(4), outputs=3),
    of("LayerNormalization", n(2, 3, 4), n(3, 4), axis=-2),
    *(of("RMSNormalization", n(2, 3, 4), n(*n4), axis=axis, epsilon=0.01) for axis, n4 in ((-1, (4,)), (1, (3, 4)))),
    of("RMSNormalization", n(2, 4), n(4)),
    of("GroupNormalization", n(2, 6, 4), n(3), n(3), num_groups=3, until=20),
    of("GroupNormalization", n(2, 6, 4, 2), n(6), n(6), num_groups=3, since=21),
    of("GroupNormalization", n(2, 6, 4, 2), n(6), n(6), num_groups=2, epsilon=0.1, since=21),
    of("GroupNormalization", n(2, 6, 4), n(2), n(2), num_groups=2, epsilon=0.1, until=20),
]  # fmt: skip

SIZES = {"sizes": i(1, 2, 6, 7), "scales": np.array([1, 1, 1.5, 1.75])}
SMALL = {"sizes": i(1, 2, 3, 2), "scales": np.array([1, 1, 0.75, 0.5])}
PIXELS = n(1, 2, 4, 4)


def _resized() -> list[Row]:
    rows = [of("Upsample", PIXELS, until=8, scales=[1.0, 1.0, 2.0, 1.5], mode=mode) for mode in ("nearest", "linear")]
    rows += [
        of("Upsample", PIXELS, np.array([1, 1, 2.0, 3.0]), since=9, until=9, mode=mode)
        for mode in ("nearest", "linear")
    ]
    rows += [of("Resize", PIXELS, s, since=10, until=10, mode=mode) for mode in ("nearest", "linear")
             for s in (np.array([1, 1, 2.0, 1.5]), np.array([1, 1, 0.5, 0.75]))]  # fmt: skip
    for to in (SIZES, SMALL):
        for mode in ("linear", "cubic"):
            for where in ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric"):
                more: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": where}
                since = 19 if where == "half_pixel_symmetric" else 11
                rows.append(of("Resize", PIXELS, None, to["scales"], since=max(since, 13), **more))
                rows.append(of("Resize", PIXELS, None, None, to["sizes"], since=max(since, 13), **more))
                rows.append(
                    of("Resize", PIXELS, np.zeros(0), to["scales"], since=11, until=12, **more)
                    if since == 11
                    else rows.pop()
                )
        for where in ("half_pixel", "align_corners", "asymmetric"):
            for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
                more = {"mode": "nearest", "coordinate_transformation_mode": where, "nearest_mode": nearest}
                rows.append(of("Resize", PIXELS, np.zeros(0), to["scales"], since=11, **more))
                rows.append(of("Resize", PIXELS, None, None, to["sizes"], since=13, **more))
    rows += [of("Resize", n(1, 2, 9), None, np.array([1, 1, scale]), since=13, mode="linear") for scale in (2.0, 0.4)]
    rows += [
        of("Resize", PIXELS, None, np.array([1, 1, 2.0, 2.0]), since=13, mode="cubic", cubic_coeff_a=-0.5),
        of("Resize", PIXELS, None, np.array([1, 1, 2.0, 0.6]), since=13, mode="cubic", exclude_outside=1),
        of("Resize", PIXELS, None, np.array([1, 1, 0.5, 0.5]), since=18, mode="linear", antialias=1),
        of("Resize", PIXELS, None, np.array([1, 1, 0.5, 0.5]), since=18, mode="cubic", antialias=1),
        of("Resize", PIXELS, None, np.array([2.0, 1.5]), since=18, mode="linear", axes=[2, 3]),
        of("Resize", PIXELS, None, None, i(6, 9), since=18, mode="nearest", axes=[2, 3],
             keep_aspect_ratio_policy="not_larger"),
        of("Resize", PIXELS, np.array([0, 0, 0.1, 0.2, 1, 1, 0.9, 0.8]), None, i(1, 2, 3, 3), since=13, mode="linear",
           coordinate_transformation_mode="tf_crop_and_resize"),
        of("Resize", n(2, 3, 4, 4, 4), None, np.array([1, 1, 2.0, 1.5, 0.5]), since=13, mode="linear"),
    ]  # fmt: skip
    return rows


def _recurrent() -> list[Row]:
    rows = []
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        outputs = 3 if op == "LSTM" else 2
        for direction, d in (("forward", 1), ("reverse", 1), ("bidirectional", 2)):
            w, r, bias = n(d, gates * 4, 3), n(d, gates * 4, 4), n(d, 2 * gates * 4)
            state = [n(d, 2, 4)] * (2 if op == "LSTM" else 1)
            more: dict[str, Any] = {"hidden_size": 4, "outputs": outputs, "direction": direction}
            rows.append(of(op, n(5, 2, 3), w, r, **more))
            rows.append(of(op, n(5, 2, 3), w, r, bias, None, *state, **more))
            rows.append(of(op, n(5, 2, 3), w, r, bias, np.array([5, 3], np.int32), *state, **more))
            if op == "GRU":
                rows.append(of(op, n(5, 2, 3), w, r, bias, linear_before_reset=1, **more))
            if op == "LSTM":
                rows.append(of(op, n(5, 2, 3), w, r, bias, None, *state, n(d, 12), **more))
    w, r, bias = n(1, 16, 3), n(1, 16, 4), n(1, 32)
    rows.append(
        of("LSTM", n(5, 2, 3), w, r, bias, hidden_size=4, activations=["HardSigmoid", "Relu", "Tanh"], outputs=3)
    )
    rows.append(of("LSTM", n(5, 2, 3), w, r, bias, hidden_size=4, input_forget=1, outputs=3))
    rows.append(of("LSTM", n(5, 2, 3), w, r, bias, hidden_size=4, clip=0.3, outputs=3))
    rows.append(of("RNN", n(5, 2, 3), n(1, 4, 3), n(1, 4, 4), hidden_size=4, activations=["Relu"], outputs=2))
    return rows


def _seen() -> list[Row]:
    """Return what detectors end with."""
    rois, which = np.array([[0.0, 0, 4, 4], [1, 1, 6, 3], [0.5, 2.2, 5.1, 5.9]]), i(0, 1, 0)
    image = n(2, 3, 7, 8)
    roi: dict[str, Any] = {"output_height": 2, "output_width": 3, "spatial_scale": 0.8}
    rows = [of("RoiAlign", image, rois, which, until=15, mode=mode, sampling_ratio=ratio, **roi)
            for mode in ("avg", "max") for ratio in (0, 2)]  # fmt: skip
    rows += [of("RoiAlign", image, rois, which, since=16, mode=mode, sampling_ratio=2,
         coordinate_transformation_mode=where, **roi)
             for mode in ("avg", "max") for where in ("half_pixel", "output_half_pixel")]  # fmt: skip
    grid = u(2, 4, 5, 2, low=-1.3, high=1.3)
    rows += [of("GridSample", image, grid, since=16, until=19, mode=mode, padding_mode=edge, align_corners=corners)
             for mode in ("bilinear", "nearest", "bicubic") for edge in ("zeros", "border", "reflection")
                  for corners in (0, 1)]  # fmt: skip
    rows += [of("GridSample", image, grid, since=20, mode=mode, padding_mode=edge, align_corners=corners)
             for mode in ("linear", "nearest", "cubic") for edge in ("zeros", "border", "reflection")
                  for corners in (0, 1)]  # fmt: skip
    boxes, scores = np.concatenate([u(1, 12, 2), u(1, 12, 2, low=1.0, high=2.0)], -1), u(1, 2, 12)
    rows += [
        of("NonMaxSuppression", boxes, scores, i(3), np.array([0.5]), np.array([0.2]), since=10),
        of("NonMaxSuppression", boxes, scores, since=10),
        of("AffineGrid", n(2, 2, 3), i(2, 3, 4, 5), since=20),
        of("AffineGrid", n(2, 2, 3), i(2, 3, 4, 5), align_corners=1, since=20),
        of("Col2Im", n(1, 12, 16), i(5, 6), i(2, 3), since=18),
        of("STFT", n(1, 16, 1), np.array(4), None, np.array(8), since=17),
        of("DFT", n(1, 8, 2), axis=1, since=17, until=19), of("DFT", n(1, 8, 1), None, np.array(1), since=20),
        of("DFT", n(1, 8, 1), axis=1, onesided=1, since=17, until=19),
        of("DFT", n(1, 8, 2), axis=1, inverse=1, since=17, until=19),
        of("HannWindow", np.array(8), since=17), of("HammingWindow", np.array(8), since=17),
        of("BlackmanWindow", np.array(8), since=17),
    ]  # fmt: skip
    return rows


def _quantized() -> list[Row]:
    x, scale = n(3, 4), np.array(0.1)
    eight, signed = RNG.integers(0, 255, (3, 4)).astype(np.uint8), RNG.integers(-128, 127, (3, 4)).astype(np.int8)
    wide = RNG.integers(-999, 999, (3, 4)).astype(np.int32)
    return [
        of("QuantizeLinear", x, scale, np.array(3, np.uint8)), of("QuantizeLinear", x, scale, np.array(-3, np.int8)),
        of("QuantizeLinear", x, scale),
        of("QuantizeLinear", x, u(4), np.array([1, 2, 3, 4], np.uint8), since=13),
        of("QuantizeLinear", x, u(3), np.array([1, 2, 3], np.int8), axis=0, since=13),
        of("QuantizeLinear", x * 99, scale, np.array(3, np.uint8)), of("DynamicQuantizeLinear", x, outputs=3, since=11),
        of("QuantizeLinear", x * 1e30, scale, np.array(3, np.int8)), of("QuantizeLinear", x * 99, scale),
        of("QuantizeLinear", x * 99, u(x.shape[1]), np.arange(x.shape[1]).astype(np.int8), since=13),
        of("QuantizeLinear", n(4, 6), u(2, 6), np.ones((2, 6), np.int8), axis=0, block_size=2, since=21),
        of("DequantizeLinear", eight, scale, np.array(3, np.uint8), since=10),
        of("DequantizeLinear", signed, scale, np.array(-3, np.int8), since=10),
        of("DequantizeLinear", signed, scale, since=10), of("DequantizeLinear", wide, scale, since=10),
        of("DequantizeLinear", eight, u(4), np.array([1, 2, 3, 4], np.uint8), since=13),
        of("DequantizeLinear", signed, u(3), axis=0, since=13),
        of("DequantizeLinear", signed, u(3), np.array([1, 2, 3], np.int8), axis=-2, since=13),
        of("DequantizeLinear", RNG.integers(-9, 9, (4, 6)).astype(np.int8), u(2, 6), np.ones((2, 6), np.int8),
             axis=0, block_size=2, since=21),
        of("MatMulInteger", eight, RNG.integers(0, 255, (4, 2)).astype(np.uint8), np.array(3, np.uint8), np.array(5,
             np.uint8), since=10),
        of("ConvInteger", RNG.integers(0, 255, (1, 2, 5, 5)).astype(np.uint8), RNG.integers(0, 255, (3, 2, 3,
             3)).astype(np.uint8), np.array(3, np.uint8), pads=[1, 0, 1, 2], since=10),
        of("QLinearMatMul", eight, scale, np.array(3, np.uint8), RNG.integers(0, 255, (4, 2)).astype(np.uint8),
             np.array(0.2), np.array(5, np.uint8), np.array(3.0), np.array(7, np.uint8), since=10),
        of("QLinearConv", RNG.integers(0, 255, (1, 2, 5, 5)).astype(np.uint8), scale, np.array(3, np.uint8),
             RNG.integers(0, 255, (3, 2, 3, 3)).astype(np.uint8), np.array(0.2),
           np.array(5, np.uint8), np.array(30.0), np.array(7, np.uint8), since=10),
    ]  # fmt: skip


def _attending() -> list[Row]:
    q, k, v = n(2, 2, 3, 4), n(2, 2, 5, 4), n(2, 2, 5, 4)
    return [
        of("Attention", q, k, v, since=23), of("Attention", q, k, v, n(3, 5), since=23),
        of("Attention", q, k, v, is_causal=1, since=23),
        of("Attention", q, k, v, scale=0.3, softcap=2.0, since=23),
        of("Attention", q, k, v, b(3, 5) | np.eye(3, 5, dtype=bool), since=23),
        of("Attention", n(2, 3, 8), n(2, 5, 8), n(2, 5, 8), q_num_heads=2, kv_num_heads=2, since=23),
        of("RotaryEmbedding", n(2, 2, 3, 4), n(9, 2), n(9, 2), RNG.integers(0, 9, (2, 3)), since=23),
    ]  # fmt: skip


ROWS = (
    *ELEMENTWISE, *MOVING, *REDUCING, *MATRICES, *SLIDING, *NORMS, *_resized(), *_recurrent(), *_seen(),
    *_quantized(), *_attending(),
)  # fmt: skip
