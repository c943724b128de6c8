"""A survey of exports: small models of every family, by both exporters of torch, taken through everything we promise.

`python -m models.survey --stage cpu --out FOLDER` needs no GPU, `--stage gpu` one or several; both need the extra
`survey` for exporting. `SURVEY.md` is written from the rows that they leave. Nothing is downloaded: all weights are
drawn.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Way:
    """One way to export a model."""

    dynamo: bool
    """By torch.export, else by tracing."""
    opset: int
    dtype: str
    """float16, bfloat16 or float32: the type of the module."""
    dynamic: bool
    """The batch stays open, and the length where there are tokens."""
    sizes: bool = False
    """Height and width stay open, too: extents come from Shape, and the channels alone are known."""

    def __str__(self) -> str:
        exporter = "dynamo" if self.dynamo else "trace"
        leaves = "sizes" if self.sizes else "dynamic" if self.dynamic else "static"
        return f"{exporter} {self.opset} {self.dtype} {leaves}"

    def opened(self, axes: "Axes") -> "Axes":
        """Return what of these axes stays open. Raises ValueError where a model has no sizes to open."""
        if not self.sizes:
            return {n: {i: d for i, d in a.items() if self.dynamic and d not in IMAGE} for n, a in axes.items()}
        if not any(d in IMAGE for a in axes.values() for d in a.values()):
            raise ValueError("it takes no images, or images of one size alone: no sizes to leave open")
        return axes


Axes = Mapping[str, Mapping[int, str]]
"""Input -> axis -> name of the dimension."""

IMAGE = ("height", "width")
"""The dimensions that `Way.sizes` opens."""


WAYS = (
    Way(False, 17, "float16", True),
    Way(True, 18, "float16", False),
    Way(False, 17, "float32", True),
    Way(True, 18, "bfloat16", True),
    Way(True, 18, "float32", False),
    Way(False, 17, "bfloat16", False),
    Way(False, 17, "float16", True, sizes=True),
)
"""Both exporters with each type; each type, and each exporter, with the batch open and fixed; images of any size."""


@dataclass(frozen=True)
class Subject:
    """One model that is exported."""

    name: str
    """`SOURCE:MODEL`, such as `timm:vgg11`."""
    family: str
    """What it stands for: a module of timm, an architecture of transformers."""


@dataclass(frozen=True)
class Made:
    """A model, ready to be exported."""

    module: Any
    """Takes the inputs by position and returns tensors."""
    inputs: Mapping[str, Any]
    """Name -> tensor, in order."""
    axes: Axes
    """Name -> axis -> name of the dimension that may stay open."""
