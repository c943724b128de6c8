"""A survey of exports: small models of every family, as their exporters write them, taken through all we promise.

`python -m models.survey --stage cpu --out FOLDER` needs no GPU, `--stage gpu` one or several; both need the extra
`survey` for exporting. `SURVEY.md` is written from the rows that they leave. Nothing is downloaded: all weights are
drawn.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AS_EXPORTED, INSIDE, OPTIMUM, SCATTERED = "as exported", "inside", "optimum", "scattered"
"""Where an export has its weights.

`AS_EXPORTED`: wherever the exporter puts them when nobody asks; torch.export writes `m.onnx.data` beside `m.onnx`.
`INSIDE`: in the one file. `OPTIMUM`: `model.onnx` and `model.onnx_data`, as optimum saves. `SCATTERED`: a file for
each, as tracing saves what does not fit into one file.
"""

DYNAMO, TRACE = TORCH = ("dynamo", "trace")
"""The exporters of torch: by torch.export, and by tracing."""


@dataclass(frozen=True)
class Way:
    """One way to export a model."""

    exporter: str
    """One of TORCH, tf2onnx or paddle2onnx."""
    opset: int | None
    """None: what the exporter chooses when nobody asks."""
    dtype: str
    """float16, bfloat16 or float32: the type of the module."""
    dynamic: bool
    """The batch stays open, and the length where there are tokens."""
    sizes: bool = False
    """Height and width stay open, too: extents come from Shape, and the channels alone are known."""
    weights: str = INSIDE
    """Where they are: see above."""

    def __str__(self) -> str:
        leaves = "sizes" if self.sizes else "dynamic" if self.dynamic else "static"
        words = [self.exporter, str(self.opset or "default"), self.dtype, leaves]
        return " ".join(words + [self.weights] * (self.weights in (OPTIMUM, SCATTERED)))

    @property
    def bare(self) -> bool:
        """Whether the exporter is called with the model, its inputs and the file alone."""
        return self.opset is None and not self.dynamic

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
    Way(DYNAMO, None, "float32", False, weights=AS_EXPORTED),
    Way(TRACE, None, "float32", False, weights=AS_EXPORTED),
    Way("tf2onnx", None, "float32", True, weights=AS_EXPORTED),
    Way("paddle2onnx", None, "float32", True, weights=AS_EXPORTED),
    Way(DYNAMO, None, "float32", True, weights=AS_EXPORTED),
    Way(TRACE, 18, "float32", True, weights=OPTIMUM),
    Way(DYNAMO, 18, "float16", True, weights=SCATTERED),
    Way(TRACE, 17, "float16", True),
    Way(DYNAMO, 18, "float16", False),
    Way(TRACE, 17, "float32", True),
    Way(DYNAMO, 18, "bfloat16", True),
    Way(DYNAMO, 18, "float32", False),
    Way(TRACE, 17, "bfloat16", False),
    Way(TRACE, 17, "float16", True, sizes=True),
)
"""What users get when they type the least comes first: each exporter's defaults, weights where it puts them.

Then the other places of weights; then both exporters of torch with each type; each type, and each exporter, with the
batch open and fixed; images of any size.
"""

REFUSALS = (
    ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, NotImplementedError, RuntimeError,
    TypeError, UnboundLocalError, ValueError, OSError,
)  # fmt: skip
"""What modules raise for sizes that they do not take, and exporters for modules."""


def require(*packages: str) -> None:
    """Raise ImportError where a package is not installed, without importing it."""
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ImportError(f"No module named '{package}'")


def place(folder: Path, name: str, way: Way) -> Path:
    """Return the file of an export: in a folder of its own, for its weights may be beside it."""
    stem = f"{name} {way}".translate(str.maketrans(" :/", "---"))
    return folder / stem / ("model.onnx" if way.weights == OPTIMUM else f"{stem}.onnx")


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
