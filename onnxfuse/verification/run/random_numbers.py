"""Nodes that draw random numbers, the same in every run: ONNX Runtime 1.31 has no RandomUniformLike of opset 22."""

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfuse import ops

SINCE = 11
"""The operator set from which on there is a Range."""
PRIME, FACTOR = 2**31 - 1, 48271
"""Lehmer's generator (Park and Miller, 1993). The square of its number, modulo the same prime, has no lattice."""


def uniform_like(value: str, result: str, low: float, high: float, seed: int) -> list[NodeProto]:
    """Return the nodes that draw `result` of the shape of `value`, float32 from `low` to `high`.

    Names of the values between begin with `result`.
    """
    numbers = {
        "zero": np.int64(0), "one": np.int64(1), "factor": np.int64(FACTOR), "prime": np.int64(PRIME),
        "start": np.int64(seed % PRIME + 1), "scale": np.float32((high - low) / PRIME), "low": np.float32(low),
    }  # fmt: skip
    nodes = [
        helper.make_node(ops.Constant, [], [f"{result}.{name}"], value=numpy_helper.from_array(np.asarray(number)))
        for name, number in numbers.items()
    ]

    def add(op: str, inputs: str, output: str, to: int | None = None) -> None:
        read = [value if name == "value" else f"{result}.{name}" for name in inputs.split()]
        nodes.append(helper.make_node(op, read, [f"{result}.{output}" if output else result], to=to))

    add(ops.Size, "value", "size")
    add(ops.Range, "zero size one", "index")
    add(ops.Mul, "index factor", "spread")
    add(ops.Add, "spread start", "shifted")
    add(ops.Mod, "shifted prime", "drawn")
    add(ops.Mul, "drawn drawn", "square")
    add(ops.Mod, "square prime", "mixed")
    add(ops.Cast, "mixed", "wide", to=TensorProto.FLOAT)
    add(ops.Mul, "wide scale", "scaled")
    add(ops.Add, "scaled low", "flat")
    add(ops.Shape, "value", "shape")
    add(ops.Reshape, "flat shape", "")
    return nodes
