"""Real architectures as ONNX models, built on demand: no network, no torch, the same bytes every time.

>>> model = models.build("bert_base", dtype="float16", batch=32, sequence=128)
>>> feeds = models.example_inputs("bert_base", batch=32, sequence=128, dtype="float16")
"""

import difflib
from dataclasses import Field, fields, replace
from typing import Any, ClassVar, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray

from models.bert import Bert
from models.convnext import ConvNext
from models.efficientnet import EfficientNet
from models.gpt2 import Gpt2
from models.lenet import LeNet5
from models.minilm import MiniLm
from models.mlp import Mlp
from models.network import Dimension, Form, Network
from models.network import start as begin
from models.resnet import ResNet
from models.training_step import TrainingStep
from models.vit import Vit
from models.weights import seeded
from onnxfuse.support.errors import UsageError

__all__ = ["ARCHITECTURES", "Architecture", "Form", "Size", "architecture", "build", "example_inputs"]


Size = int | bool | tuple[int, ...]


class Architecture(Protocol):
    """A frozen dataclass whose fields are the sizes, with those of the published model as defaults."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def write(self, net: Network) -> None:
        """Write inputs, layers and outputs into `net`."""

    def example(
        self, rng: np.random.Generator, batch: int, sequence: int, dtype: str
    ) -> dict[str, NDArray[np.generic]]:
        """Return one array per input, such as the model meets in real life."""


ARCHITECTURES: dict[str, Architecture] = {
    "mlp": Mlp(),
    "lenet5": LeNet5(),
    "resnet50": ResNet(),
    "efficientnet_b0": EfficientNet(),
    "convnext_tiny": ConvNext(),
    "bert_base": Bert(),
    "vit_b_16": Vit(),
    "gpt2": Gpt2(),
    "minilm": MiniLm(),
    "training_step": TrainingStep(),
}


def build(
    name: str,
    *,
    dtype: str = "float32",
    batch: Dimension = "batch",
    sequence: Dimension = "sequence",
    opset: int = 17,
    seed: int = 0,
    **sizes: Size,
) -> onnx.ModelProto:
    """Return the model `name`, one of ARCHITECTURES, with weights drawn from `seed` (minilm has its trained ones).

    `sizes` replaces fields of the architecture: `build("bert_base", layers=2)`. Raises UsageError for a name, a size
    or a form that does not exist, DeviceError where the files of minilm are not installed.
    """
    chosen = architecture(name, **sizes)
    net = begin(name, Form(dtype=dtype, batch=batch, sequence=sequence, opset=opset), seeded(seed))
    chosen.write(net)
    return net.model


def example_inputs(
    name: str, *, batch: int = 1, sequence: int = 128, dtype: str = "float32", seed: int = 0, **sizes: Size
) -> dict[str, NDArray[np.generic]]:
    """Return an input for the model `name` built with the same sizes: by input name, realistic, signed, seeded."""
    return architecture(name, **sizes).example(np.random.default_rng(seed), batch, sequence, dtype)


def architecture(name: str, **sizes: Size) -> Architecture:
    """Return the architecture `name` with `sizes` in place of its own."""
    if name not in ARCHITECTURES:
        raise UsageError(f"There is no model {name!r}.", hint=_nearest(name, list(ARCHITECTURES)))
    published = ARCHITECTURES[name]
    known = [field.name for field in fields(published)]
    for size, value in sizes.items():
        if size not in known:
            raise UsageError(f"{name} has no size {size!r}.", hint=_nearest(size, known))
        if not isinstance(value, bool) and np.min(value) < 1:
            raise UsageError(f"{name}: {size} is {value}, expected at least 1.")
    return replace(published, **sizes)


def _nearest(word: str, known: list[str]) -> str:
    """Return a hint with the known word that `word` was likely meant to be, or with all of them."""
    near = difflib.get_close_matches(word, known, n=1)
    return f"Did you mean {near[0]}?" if near else f"Known: {', '.join(known)}."
