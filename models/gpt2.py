"""GPT-2 (Radford et al., 2019, Language Models are Unsupervised Multitask Learners), no cache, eager attention."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models import layers
from models.network import Network
from onnxfuse.support.errors import UsageError

EPSILON = 1e-5
INT64 = np.dtype(np.int64)


@dataclass(frozen=True)
class Gpt2:
    """GPT-2: 12 pre-norm layers of 768, packed QKV, causal mask, tanh GELU, Gemms; gives hidden states, not words."""

    layers: int = 12
    """Decoder layers."""
    hidden: int = 768
    """Width of the residual stream."""
    heads: int = 12
    """Attention heads; a divisor of `hidden`."""
    intermediate: int = 3072
    """Width inside the feed-forward network."""
    vocabulary: int = 50257
    """Byte pairs."""
    positions: int = 1024
    """Longest sequence."""

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise UsageError(f"hidden is {self.hidden}, expected a multiple of heads, which is {self.heads}.")

    def write(self, net: Network) -> None:
        """Write input_ids [batch, sequence] -> last_hidden_state [batch, sequence, hidden]."""
        ids = net.input("input_ids", INT64, (net.form.batch, net.form.sequence))
        place = _places(net, ids, self)
        words = net.Gather(net.at("wte").weight("weight", (self.vocabulary, self.hidden), std=0.5), ids)
        table = net.at("wpe").weight("weight", (self.positions, self.hidden), std=0.2)
        x = net.Add(words, net.Gather(table, net.Unsqueeze(place, [0])))
        mask = _causal_mask(net, place)
        for i in range(self.layers):
            x = _layer(net.at(f"h.{i}"), x, mask, self)
        x = layers.layer_norm(net.at("ln_f"), x, self.hidden, EPSILON)
        net.output("last_hidden_state", x, (net.form.batch, net.form.sequence, self.hidden))

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return random ids, all rows of full length."""
        return {"input_ids": rng.integers(0, self.vocabulary, size=(batch, sequence))}


def _places(net: Network, ids: str, size: Gpt2) -> str:
    """Return [sequence] holding 0, 1, ..."""
    if isinstance(net.form.sequence, str):
        return net.Range(0, net.Gather(net.Shape(ids), 1, axis=0), 1)
    if net.form.sequence > size.positions:
        raise UsageError(f"sequence is {net.form.sequence}, expected at most {size.positions}, the model's positions.")
    return net.constant(np.arange(net.form.sequence))


def _causal_mask(net: Network, place: str) -> str:
    """Return [1, 1, sequence, sequence]: 0 where the key is no later than the query, else the lowest number."""
    seen = net.LessOrEqual(net.Unsqueeze(place, [0, 1, 2]), net.Unsqueeze(place, [0, 1, 3]))
    return net.Where(seen, 0.0, float(np.finfo(net.dtype).min))


def _layer(net: Network, x: str, mask: str, size: Gpt2) -> str:
    normal = layers.layer_norm(net.at("ln_1"), x, size.hidden, EPSILON)
    x = net.Add(_attention(net.at("attn"), normal, mask, size), x)
    normal = layers.layer_norm(net.at("ln_2"), x, size.hidden, EPSILON)
    inner = _gelu(net.at("mlp.act"), _conv1d(net.at("mlp.c_fc"), normal, size.hidden, size.intermediate))
    return net.Add(x, _conv1d(net.at("mlp.c_proj"), inner, size.intermediate, size.hidden))


def _attention(net: Network, x: str, mask: str, size: Gpt2) -> str:
    """softmax(Q K^T / sqrt(d) + mask) V, each head on its own."""
    width = size.hidden // size.heads
    parts = net.split(_conv1d(net.at("c_attn"), x, size.hidden, 3 * size.hidden), [size.hidden] * 3, axis=2)

    def heads(part: str, perm: list[int]) -> str:
        return net.Transpose(net.Reshape(part, _rows(net, part, [size.heads, width])), perm=perm)

    query, key, value = heads(parts[0], [0, 2, 1, 3]), heads(parts[1], [0, 2, 3, 1]), heads(parts[2], [0, 2, 1, 3])
    scores = net.Add(net.Mul(net.MatMul(query, key), 1 / math.sqrt(width)), mask)
    mixed = net.Transpose(net.MatMul(net.Softmax(scores, axis=-1), value), perm=[0, 2, 1, 3])
    return _conv1d(net.at("c_proj"), net.Reshape(mixed, _rows(net, mixed, [size.hidden])), size.hidden, size.hidden)


def _conv1d(net: Network, x: str, inputs: int, outputs: int) -> str:
    """y = x W + b as a Gemm of all tokens in one axis; W is [inputs, outputs], unlike that of a linear layer."""
    weight = net.weight("weight", (inputs, outputs), std=inputs**-0.5)
    product = net.Gemm(net.Reshape(x, [-1, inputs]), weight, net.weight("bias", (outputs,), std=layers.BIAS))
    return net.Reshape(product, _rows(net, x, [outputs]))


def _rows(net: Network, x: str, rest: list[int]) -> str | list[int]:
    """Return the shape [batch, sequence, *rest], asked of `x` where one of the two is open."""
    known = (net.form.batch, net.form.sequence)
    if isinstance(known[0], int) and isinstance(known[1], int):
        return [known[0], known[1], *rest]
    shape = net.Shape(x)
    return net.Concat(*(net.Unsqueeze(net.Gather(shape, axis, axis=0), [0]) for axis in (0, 1)), rest, axis=0)


def _gelu(net: Network, x: str) -> str:
    """y = x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), spelled out as transformers' NewGELUActivation is."""
    inner = net.Add(x, net.Mul(net.Pow(x, 3.0), 0.044715))
    tanh = net.Tanh(net.Mul(inner, math.sqrt(2 / math.pi)))
    return net.Mul(net.Mul(x, 0.5), net.Add(tanh, 1.0))
