"""BERT (Devlin et al., 2018, arXiv:1810.04805), exported with eager attention."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models import layers
from models.network import Network
from onnxfuse.support.errors import UsageError

EPSILON = 1e-12
INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class Bert:
    """BERT-base: 12 post-norm layers of 768, eager attention with a padding mask, erf GELU, pooler."""

    layers: int = 12
    """Encoder layers."""
    hidden: int = 768
    """Width of the residual stream."""
    heads: int = 12
    """Attention heads; a divisor of `hidden`."""
    intermediate: int = 3072
    """Width inside the feed-forward network."""
    vocabulary: int = 30522
    """Word pieces."""
    positions: int = 512
    """Longest sequence."""

    def write(self, net: Network) -> None:
        """Write ids, mask, types [batch, sequence] -> last_hidden_state and pooler_output."""
        hidden, _ = encode(net, self)
        # The pooler reads the first token, [CLS].
        first = net.at("pooler").Gather(hidden, 0, axis=1)
        pooled = net.at("pooler").Tanh(layers.dense(net.at("pooler.dense"), first, self.hidden, self.hidden))
        net.output("last_hidden_state", hidden, (net.form.batch, net.form.sequence, self.hidden))
        net.output("pooler_output", pooled, (net.form.batch, self.hidden))

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return random ids in two segments, every row but the first padded to a length of its own."""
        lengths = rng.integers((sequence + 1) // 2, sequence + 1, size=(batch, 1))
        lengths[0] = sequence
        place = np.arange(sequence)
        mask = (place < lengths).astype(np.int64)
        return {
            "input_ids": rng.integers(1, self.vocabulary, size=(batch, sequence)) * mask,
            "attention_mask": mask,
            "token_type_ids": (place >= lengths // 2).astype(np.int64) * mask,
        }


def encode(net: Network, size: Bert) -> tuple[str, str]:
    """Write inputs, embeddings and encoder; return the last hidden state and the attention mask as given."""
    if size.hidden % size.heads:
        raise UsageError(f"hidden is {size.hidden}, expected a multiple of heads, which is {size.heads}.")
    shape = (net.form.batch, net.form.sequence)
    ids = net.input("input_ids", INT64, shape)
    mask = net.input("attention_mask", INT64, shape)
    types = net.input("token_type_ids", INT64, shape)

    x = _embeddings(net.at("embeddings"), ids, types, size)
    mask_scores = _mask_scores(net, mask)
    for i in range(size.layers):
        x = _layer(net.at(f"encoder.layer.{i}"), x, mask_scores, size)
    return x, mask


def _embeddings(net: Network, ids: str, types: str, size: Bert) -> str:
    def table(name: str, rows: int) -> str:
        return net.at(name).weight("weight", (rows, size.hidden), std=0.05)

    words = net.Gather(table("word_embeddings", size.vocabulary), ids)
    kinds = net.Gather(table("token_type_embeddings", 2), types)
    places = net.Gather(table("position_embeddings", size.positions), _places(net, ids, size))
    x = net.Add(net.Add(words, kinds), places)
    return layers.layer_norm(net.at("LayerNorm"), x, size.hidden, EPSILON)


def _places(net: Network, ids: str, size: Bert) -> str:
    """Return [1, sequence] holding 0, 1, ..., cut out of a buffer where the sequence is open."""
    buffer = np.arange(size.positions)[np.newaxis]
    if isinstance(net.form.sequence, str):
        length = net.Unsqueeze(net.Gather(net.Shape(ids), 1, axis=0), [0])
        return net.Slice(buffer, [0], length, [1])
    if net.form.sequence > size.positions:
        raise UsageError(f"sequence is {net.form.sequence}, expected at most {size.positions}, the model's positions.")
    return net.constant(buffer[:, : net.form.sequence])


def _mask_scores(net: Network, mask: str) -> str:
    """(1 - mask) * lowest, [batch, 1, 1, sequence]: 0 for a token, the lowest number for padding."""
    padding = net.Sub(1.0, net.Cast(net.Unsqueeze(mask, [1, 2]), to=net.element_type))
    return net.Mul(padding, float(np.finfo(net.dtype).min))


def _layer(net: Network, x: str, mask: str, size: Bert) -> str:
    attended = _attention(net.at("attention.self"), x, mask, size)
    attended = layers.linear(net.at("attention.output.dense"), attended, size.hidden, size.hidden)
    x = layers.layer_norm(net.at("attention.output.LayerNorm"), net.Add(attended, x), size.hidden, EPSILON)
    out = layers.feed_forward(net, x, size.hidden, size.intermediate, "intermediate.dense", "output.dense")
    return layers.layer_norm(net.at("output.LayerNorm"), net.Add(out, x), size.hidden, EPSILON)


def _attention(net: Network, x: str, mask: str, size: Bert) -> str:
    """softmax(Q K^T / sqrt(d) + mask) V, each head on its own."""
    width = size.hidden // size.heads

    def heads(name: str, perm: list[int]) -> str:
        projected = layers.linear(net.at(name), x, size.hidden, size.hidden)
        return net.Transpose(net.Reshape(projected, [0, 0, size.heads, width]), perm=perm)

    query, key, value = heads("query", [0, 2, 1, 3]), heads("key", [0, 2, 3, 1]), heads("value", [0, 2, 1, 3])
    scores = net.Add(net.Div(net.MatMul(query, key), math.sqrt(width)), mask)
    mixed = net.MatMul(net.Softmax(scores, axis=-1), value)
    return net.Reshape(net.Transpose(mixed, perm=[0, 2, 1, 3]), [0, 0, size.hidden])
