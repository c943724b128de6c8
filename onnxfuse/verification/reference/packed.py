"""ONNX Runtime's product by a weight in few bits in the reference: computed in the type of the activations."""

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.ops.registry import MICROSOFT
from onnxfuse.symbolic.packing import packing_of
from onnxfuse.verification.reference.factors import Multiplying

Array = npt.NDArray[Any]


class MatMulNBits(Multiplying):
    """x by (numbers - zero points) * scales, and a bias."""

    op_domain = MICROSOFT

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


OPERATORS: tuple[type[Multiplying], ...] = (MatMulNBits,)
