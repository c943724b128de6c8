"""ONNX Runtime's GroupQueryAttention in the reference: attention of new tokens behind a KV cache, which they join."""

from typing import Any

import numpy as np
import numpy.typing as npt

from onnxfuse.ops.registry import MICROSOFT
from onnxfuse.verification.reference.factors import Multiplying

Array = npt.NDArray[Any]


class GroupQueryAttention(Multiplying):
    """softmax(q k^T * scale) v, in the type of the queries; rows of the caches behind the last token are zeros.

    What pads a prompt behind a row's own tokens is no key of any query; ONNX Runtime's kernel on the CPU does the same.
    """

    op_domain = MICROSOFT

    def _run(
        self,
        query: Array,
        key: Array | None = None,
        value: Array | None = None,
        past_key: Array | None = None,
        past_value: Array | None = None,
        seqlens_k: Array | None = None,
        total_sequence_length: Array | None = None,
        cos_cache: Array | None = None,
        sin_cache: Array | None = None,
        position_ids: Array | None = None,
        attention_bias: Array | None = None,
        head_sink: Array | None = None,
        k_scale: Array | None = None,
        v_scale: Array | None = None,
        q_norm_weight: Array | None = None,
        k_norm_weight: Array | None = None,
        **said: Any,
    ) -> tuple[Array, ...]:
        """Raise NotImplementedError for other masks and positions, quantized caches, and a cache of a window."""
        others = (position_ids, attention_bias, k_scale, v_scale)
        unusual = not said.get("causal", 1) or said.get("sliding_window_cache") or said.get("qk_output")
        unusual = unusual or said.get("local_window_size") == 0 or said.get("softcap", 0) < 0
        if unusual or any(x is not None for x in others) or past_key is None or past_value is None:
            raise NotImplementedError("GroupQueryAttention of another form than a causal one beside a cache")
        assert seqlens_k is not None
        assert total_sequence_length is not None
        batch, count, _ = query.shape
        heads, of_keys, dtype = int(said["num_heads"]), int(said["kv_num_heads"]), query.dtype
        size, total = past_key.shape[3], int(total_sequence_length)
        if key is None or value is None:
            query, key, value = np.split(query, [heads * size, (heads + of_keys) * size], axis=2)
        q, k, v = (x.reshape(batch, count, -1, size).swapaxes(1, 2) for x in (query, key, value))
        if q_norm_weight is not None and k_norm_weight is not None:
            epsilon = dtype.type(said.get("qk_norm_epsilon", 1e-6))
            q, k = (_normalized(x, w, epsilon) for x, w in ((q, q_norm_weight), (k, k_norm_weight)))
        tokens_of = seqlens_k.reshape(-1).astype(np.int64) + 1
        before = np.maximum(tokens_of - count, 0)
        if said.get("do_rotary"):
            assert cos_cache is not None
            assert sin_cache is not None
            tokens = before[:, None] + np.arange(count)
            tables = cos_cache[tokens][:, None], sin_cache[tokens][:, None]
            q, k = (_rotated(x, *tables, bool(said.get("rotary_interleaved"))) for x in (q, k))
        shape = (batch, of_keys, max(total, past_key.shape[2]), size)
        present_k, present_v, y = np.zeros(shape, dtype), np.zeros(shape, dtype), np.zeros_like(q)
        scale = dtype.type(said.get("scale") or size**-0.5)
        for row, past in enumerate(before):
            for present, cache, fresh in ((present_k, past_key, k), (present_v, past_value, v)):
                present[row, :, :past] = cache[row, :, :past]
                present[row, :, past : past + count] = fresh[row]
            for head in range(heads):
                own = slice(min(past + count, tokens_of[row]))
                keys, values = (p[row, head // (heads // of_keys), own] for p in (present_k, present_v))
                scores = (self.factor(q[row, head]) @ self.factor(keys).T) * scale
                if softcap := said.get("softcap"):
                    scores = dtype.type(softcap) * np.tanh(scores / dtype.type(softcap))
                sink = None if head_sink is None else head_sink[head]
                sink = dtype.type(0) if sink is None and said.get("smooth_softmax", 0) > 0 else sink
                weights = _weights(scores, int(past), int(said.get("local_window_size", -1)), sink)
                y[row, head] = self.factor(weights) @ self.factor(values)
        return y.swapaxes(1, 2).reshape(batch, count, heads * size), present_k, present_v


def _normalized(x: Array, weight: Array, epsilon: Any) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + epsilon) * weight, x.dtype)


def _rotated(x: Array, cos: Array, sin: Array, interleaved: bool) -> Array:
    """Return rows whose first elements are rotated, as many as the tables have twice."""
    half, y = cos.shape[-1], x.copy()
    first, second = (slice(i, 2 * half, 2) if interleaved else slice(i * half, (i + 1) * half) for i in (0, 1))
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


def _weights(scores: Array, past: int, window: int, sink: Any) -> Array:
    """Return the softmax of the scores that each query sees, with a score of nothing if there is a sink."""
    count, keys = scores.shape
    ends, columns = past + np.arange(count)[:, None] + 1, np.arange(keys)
    seen = columns < ends
    if window > 0:
        seen &= columns >= ends - window
    masked = np.where(seen, scores, -np.inf)
    top = masked.max(-1, keepdims=True, initial=-np.inf if sink is None else sink)
    top = np.where(np.isneginf(top), 0, top)  # a query that sees nothing has no weights
    weights = np.exp(masked - top)
    total = weights.sum(-1, keepdims=True) + (0 if sink is None else np.exp(sink - top))
    return np.asarray(weights / np.where(total == 0, 1, total), scores.dtype)


OPERATORS: tuple[type[Multiplying], ...] = (GroupQueryAttention,)
