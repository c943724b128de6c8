"""What a shape function asks of a node."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Dims = tuple[int, ...]
"""The extents of a value, or some of them."""

Elements = npt.NDArray[Any]
"""The elements of a small tensor of integers: plain or symbolic, None for an unknown one."""


class ShapeNode(Protocol):
    """A node whose results' shapes, and small tensors of integers, are asked for.

    Whatever is not known raises UnknownError, unless the method returns None for it.
    """

    @property
    def opset(self) -> int:
        """Version of the default operator set."""

    @property
    def outputs(self) -> int:
        """Number of outputs that the node lists."""

    @property
    def shapes(self) -> Sequence[Dims | None]:
        """Shapes of the inputs, None for an absent one or an unknown rank."""

    def shape(self, position: int) -> Dims:
        """Return the shape of an input."""

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""

    def is_present(self, position: int) -> bool:
        """Return whether the node has an input."""

    def has(self, name: str) -> bool:
        """Return whether the node has an input, or the attribute that became that input."""

    def integers(self, name: str, count: int | None = None) -> Dims:
        """Return the elements of an input of integers, flattened, or the attribute that became that input.

        Elements that are not known are unknown extents if it is known, or stated by `count`, how many there are.
        """

    def axes(self, name: str) -> tuple[int, ...]:
        """Return the same, all of them plain integers."""

    def reals(self, name: str) -> Sequence[float]:
        """Return the elements of a constant input, or the attribute that became that input."""

    def elements(self, position: int) -> Elements:
        """Return the elements of an input."""


ShapeFunction = Callable[[ShapeNode], Sequence[Dims]]
"""Returns the shapes of a node's outputs, from the first one on."""

ValueFunction = Callable[[ShapeNode], Elements]
"""Returns the elements of a node's first output, a small tensor of integers."""


def plain(elements: Elements) -> npt.NDArray[np.int64]:
    """Return elements that are plain integers. Raises TypeError if one is not."""
    return elements.astype(np.int64)
