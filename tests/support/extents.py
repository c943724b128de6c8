"""Shapes by the text of their extents."""

from onnxfuse.shapes.types import DeclaredExtent, Dim, Shape
from onnxfuse.symbolic.integer import Int
from onnxfuse.symbolic.parsing import parsed


def extents(*declared: DeclaredExtent) -> tuple[Dim, ...]:
    """Return the shape with these extents, names in text."""
    return tuple(parsed(d) if isinstance(d, str) else d for d in declared)


def written(shape: Shape) -> tuple[DeclaredExtent, ...] | None:
    """Return a shape with the text of symbolic extents."""
    return None if shape is None else tuple(str(d) if isinstance(d, Int) else d for d in shape)
