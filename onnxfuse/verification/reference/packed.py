"""ONNX Runtime's product by a weight in few bits in the reference: computed in the type of the activations."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun

from onnxfuse.ops.registry import MICROSOFT
from onnxfuse.symbolic.packing import packing_of

Array = npt.NDArray[Any]


class MatMulNBits(OpRun):
    """x by (numbers - zero points) * scales, and a bias."""

    op_domain = MICROSOFT

    @staticmethod
    def factor(x: Array) -> Array:
        """Return a factor of the product as hardware reads it."""
        return x

    def _run(
        self,
        x: Array,
        packed: Array,
        scales: Array,
        zeros: Array | None = None,
        groups: Array | None = None,
        bias: Array | None = None,
        **said: int,
    ) -> tuple[Array]:
        """Raise NotImplementedError for an order of the terms, or bytes that are in the order of one GPU's kernels."""
        if groups is not None or said.get("weight_prepacked"):
            raise NotImplementedError("MatMulNBits with g_idx or weight_prepacked")
        weight = packing_of(said.get).unpack(packed, scales, zeros, x.dtype)
        y = np.asarray(self.factor(x) @ self.factor(weight).T, x.dtype)
        return (y if bias is None else y + bias,)


def operators(factor: Callable[[Array], Array] = MatMulNBits.factor) -> tuple[type[OpRun], ...]:
    """Return the operators; `factor` rounds the factors of their products."""
    return (type(MatMulNBits.__name__, (MatMulNBits,), {"factor": staticmethod(factor)}),)
