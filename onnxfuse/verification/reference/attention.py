"""ONNX's Attention in the reference: onnx's implementation, with corrected scores before the softcap."""

from typing import Any

import numpy as np
import numpy.typing as npt
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_attention import _compute_attention

Array = npt.NDArray[Any]

ONNX_ATTENTION: Any = _compute_attention
"""onnx's implementation, for all opsets."""

SCORES = 3
"""Index of the output that holds the scores."""


class Attention(OpRun):
    """softmax(cap(Q K^T) + mask) V; onnx's implementation returns capped scores where those of the product are
    requested."""

    def _run(self, *inputs: Array | None, **attributes: Any) -> tuple[Array, ...]:
        newest = int(self.run_params["opsets"][self.onnx_node.domain]) >= 25
        extended = {**attributes, "_validate_attention25": newest}
        results: tuple[Array, ...] = ONNX_ATTENTION(*inputs, **extended)
        wants_scores = len(self.onnx_node.output) > SCORES and bool(self.onnx_node.output[SCORES])
        if wants_scores and attributes.get("softcap") and not attributes.get("qk_matmul_output_mode"):
            raw = ONNX_ATTENTION(*inputs, **{**extended, "softcap": 0.0})[SCORES]
            results = (*results[:SCORES], np.asarray(raw))
        return results


OPERATORS: tuple[type[OpRun], ...] = (Attention,)
