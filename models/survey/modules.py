"""What modules of all sources go through before they are exported: tensors in, tensors out, and weights off 0 and 1."""

# mypy: disallow-subclassing-any=False, disallow-untyped-calls=False
# (where torch is not installed, torch.nn.Module is Any)

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from models.survey import REFUSALS, Made

ROWS = 2
"""Torch's exporters take a dimension of one for a constant."""

OTHER = 32
"""An image that is so much wider and less high says whether a module takes any size."""


class Flat(nn.Module):
    """A module on positional tensors, that returns its floating-point outputs, however they were packed."""

    def __init__(self, inner: nn.Module, names: tuple[str, ...] = (), **fixed: Any) -> None:
        super().__init__()
        self.inner, self.names, self.fixed = inner, names, fixed

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.names, inputs, strict=True)) if self.names else {}
        out = self.inner(*(() if self.names else inputs), **named, **self.fixed)
        return tuple(tensors(out))


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in a module's output, those of integers too, each once."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from tensors(one)
    elif isinstance(value, tuple | list):
        for one in value:
            yield from tensors(one)


def stirred(module: nn.Module) -> nn.Module:
    """Move biases, scales, statistics and tables of biases off 0 and 1: a model that loses one gives other numbers."""
    generator = torch.Generator().manual_seed(1)
    for name, values in module.state_dict().items():
        if values.is_floating_point() and (values.ndim == 1 or "bias_table" in name or "gamma" in name):
            values.add_(0.1 * torch.randn(values.shape, generator=generator).to(values))
    return module.eval()


def of_images(module: nn.Module, *sides: int, channels: int = 3) -> Made:
    """Return the model on a batch of images of the first of `sides` that it takes; it may take other sizes, too."""
    flat = Flat(stirred(module))
    for side in sides:
        images = torch.randn(ROWS, channels, side, side)
        try:
            with torch.no_grad():
                flat(images)
        except REFUSALS:
            if side == sides[-1]:
                raise
            continue
        axes = {0: "batch"}
        with contextlib.suppress(*REFUSALS), torch.no_grad():
            flat(torch.randn(ROWS, channels, side - OTHER, side + OTHER))
            axes |= {2: "height", 3: "width"}
        return Made(flat, {"image": images}, {"image": axes})
    raise AssertionError("no side was given")
