"""Parse a body of the cached_attention template: one GroupQueryAttention of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import onnx
from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.cuda.isa.factors import BFLOAT16, FLOAT16, TF32, FactorType, factors_of
from onnxfuse.cuda.templates.attention.body import AttentionBody, AttentionOperand
from onnxfuse.model.fused import FusedOp, Meaning
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError

FACTORS = (FLOAT16, BFLOAT16, TF32)
NAMES = (
    "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache", "sin_cache",
    "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight",
)  # fmt: skip
"""The node's inputs, in their order."""
UNSUPPORTED = ("position_ids", "attention_bias", "k_scale", "v_scale")
NEEDED = ("query", "past_key", "past_value", "seqlens_k", "total_sequence_length")
USUAL: Mapping[str, object] = {
    "causal": 1, "sliding_window_cache": 0, "qk_output": 0, "k_quant_type": b"NONE", "v_quant_type": b"NONE",
}  # fmt: skip
"""Supported values of attributes that change what is computed."""


@dataclass(frozen=True)
class CachedAttention:
    """A parsed body: its tensors among the op's, and its configuration."""

    inputs: Mapping[str, int]
    """Indices among the op's inputs, by the node's own names, of those that the node has."""
    heads: int
    heads_of_keys: int
    scale: float
    """Scale of the scores; 0 = 1 / sqrt(size)."""
    softcap: float
    """Bound of the scores, reached by a tanh; 0: none."""
    window: int
    """How many tokens each one sees, itself included; 0: all before it."""
    rotates: bool
    interleaved: bool
    smooth: bool
    """Whether a score of 0 without a value is among those of each query."""
    epsilon: float
    """Added to the mean square of a head that is normalized."""
    factors: FactorType

    @property
    def packed(self) -> bool:
        """Whether queries, keys and values are columns of one input."""
        return "key" not in self.inputs

    @property
    def normalized(self) -> bool:
        """Whether queries and keys are normalized head by head."""
        return "q_norm_weight" in self.inputs

    def of_queries(self) -> AttentionBody:
        """Return the attention of the queries, whose keys and values are the rows of the caches."""
        q, k, v = (self.inputs[name] for name in ("query", "past_key", "past_value"))
        group = self.heads // self.heads_of_keys
        return AttentionBody(
            AttentionOperand(q, heads_first=False), AttentionOperand(k, heads_first=True, group=group),
            AttentionOperand(v, heads_first=True, group=group), AttentionOperand(0, heads_first=False), biases=(),
            windows=False, target=None, safe=True, heads=self.heads, scale=self.scale, causal=False,
            factors=self.factors,
        )  # fmt: skip


def parse_op(op: FusedOp) -> CachedAttention:
    """Parse the body of `op`; raises `UnsupportedError` with the reason if no kernel supports it."""
    return _parse(op.meaning)


@lru_cache(maxsize=1024)
def _parse(meaning: Meaning) -> CachedAttention:
    body = meaning.op().body
    nodes = [n for n in body.node if n.op_type != ops.Constant]
    if len(nodes) != 1 or ops.operator(nodes[0].op_type, nodes[0].domain) is not ops.GroupQueryAttention:
        raise UnsupportedError(f"{plural(nodes, 'node')}, expected a GroupQueryAttention alone")
    (node,) = nodes
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    for name, usual in USUAL.items():
        if attributes.get(name, usual) != usual:
            raise UnsupportedError(f"GroupQueryAttention with {name} = {attributes[name]}, expected {usual}")
    read = {name: value for name, value in zip(NAMES, node.input, strict=False) if value}
    places = [*body.input]
    if not {*read.values()} <= {*places}:
        raise UnsupportedError("GroupQueryAttention of a constant of the body")
    inputs = {name: places.index(value) for name, value in read.items()}
    _check_inputs(inputs, attributes)
    outputs = [o for o in node.output if o]
    if len(outputs) != 3 or outputs != [*body.output]:
        raise UnsupportedError("GroupQueryAttention whose caches are not all outputs")
    dtype = meaning.inputs[inputs["query"]]
    factors = factors_of(dtype, dtype)
    integers = {"seqlens_k", "total_sequence_length"}
    types = {meaning.inputs[i] for name, i in inputs.items() if name not in integers} | {*meaning.outputs}
    if factors not in FACTORS or types != {dtype}:
        raise UnsupportedError(
            f"GroupQueryAttention of {element_types.name(dtype)}, expected float16, bfloat16 or float32 throughout"
        )
    if any(meaning.inputs[inputs[name]] != TensorProto.INT32 for name in integers):
        raise UnsupportedError("lengths of another type than int32")
    heads, of_keys = int(attributes.get("num_heads", 0)), int(attributes.get("kv_num_heads", 0))
    if heads < 1 or of_keys < 1 or heads % of_keys:
        raise UnsupportedError(f"{heads} heads of queries for {of_keys} of keys")
    window, softcap = int(attributes.get("local_window_size", -1)), float(attributes.get("softcap", 0.0))
    if window == 0 or softcap < 0:  # neither is defined
        raise UnsupportedError("GroupQueryAttention with a window of 0 tokens, or a negative softcap")
    return CachedAttention(
        inputs, heads, of_keys, float(attributes.get("scale", 0.0)), softcap,
        max(window, 0), bool(attributes.get("do_rotary", 0)), bool(attributes.get("rotary_interleaved", 0)),
        int(attributes.get("smooth_softmax", 0)) > 0, float(attributes.get("qk_norm_epsilon", 1e-6)), factors,
    )  # fmt: skip


def _check_inputs(inputs: Mapping[str, int], attributes: Mapping[str, Any]) -> None:
    """Raise if the node reads an input that the kernel does not, or lacks one that it needs."""
    for name in UNSUPPORTED:
        if name in inputs:
            raise UnsupportedError(f"GroupQueryAttention with {name}")
    pairs = [("key", "value"), ("cos_cache", "sin_cache"), ("q_norm_weight", "k_norm_weight")]
    lacking = [name for name in NEEDED if name not in inputs]
    lacking += [b if a in inputs else a for a, b in pairs if (a in inputs) != (b in inputs)]
    if attributes.get("do_rotary", 0) and "cos_cache" not in inputs:
        lacking.append("cos_cache")
    if lacking:
        raise UnsupportedError(f"GroupQueryAttention without {lacking[0]}")
