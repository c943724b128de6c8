"""Parse a body of dynamic quantization: what computes a value, and what its elements and its range become."""

from dataclasses import dataclass
from functools import lru_cache

from onnx import TensorProto

from onnxfuse.codegen.program.movement import Squeezed
from onnxfuse.codegen.program.program import BodyProgram, Input, Move, Output, Reduce
from onnxfuse.codegen.program.slices import between
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape

NOTHING: Shape = ()


@dataclass(frozen=True)
class QuantizeBody:
    """A parsed body."""

    source: int
    """Index of the quantized value, among the op's inputs; among its outputs if the op computes it."""
    scalars: BodyProgram
    """From the largest and the smallest element of that value to the scalars that the op writes."""
    elements: BodyProgram
    """From an element, the largest and the smallest one, and those scalars to what becomes of the element."""
    of_element: tuple[bool, ...]
    """Of each of the last outputs of the op, whether it is the next of `elements`, else of `scalars`."""
    producer: BodyProgram | None
    """From the op's inputs to its first outputs, one of which is the value; None if that is an input."""

    @property
    def pointer(self) -> str:
        """The kernel argument that holds the value."""
        return f"{'in' if self.producer is None else 'out'}{self.source}"

    @property
    def first(self) -> int:
        """Number of outputs before those that depend on the range."""
        return 0 if self.producer is None else len(self.producer.outputs)

    def finished(self, shape: Shape) -> tuple[Shape, ...]:
        """Return the shapes of the last outputs, for a value of this shape."""
        return tuple(shape if element else NOTHING for element in self.of_element)


@lru_cache(maxsize=1024)
def parse(program: BodyProgram) -> QuantizeBody:
    """Parse a body; raises `UnsupportedError` with the reason if it quantizes nothing by its range."""
    value, largest, smallest = _range(program)
    if program.values[value].dtype != TensorProto.FLOAT:
        raise UnsupportedError("the range of other values than of float32")
    last = [o for o in program.outputs if {largest, smallest} & program.reached([o.value])]
    first = [o for o in program.outputs if o not in last]
    if [*first, *last] != [*program.outputs]:
        raise UnsupportedError("an output that does not depend on the range after one that does")
    by_element = tuple(value in program.reached([o.value], (largest, smallest)) for o in last)
    scalars = [o for o, element in zip(last, by_element, strict=True) if not element]
    elements = [o for o, element in zip(last, by_element, strict=True) if element]
    given = (largest, smallest, *(o.value for o in scalars))
    parts = between(program, (largest, smallest), scalars), between(program, (value, *given), elements)
    if not all(part.is_pointwise() for part in parts):
        raise UnsupportedError("more than scalar work after the range")
    of_value = program.values[value]
    if isinstance(of_value, Input):
        if first:
            raise UnsupportedError("an output that does not depend on the range")
        return QuantizeBody(of_value.index, *parts, by_element, None)
    source = next((n for n, o in enumerate(first) if o == Output(value, TensorProto.FLOAT)), None)
    if source is None:
        raise UnsupportedError("the range of a value that is no output")
    return QuantizeBody(source, *parts, by_element, between(program, range(len(program.inputs)), first))


def _range(program: BodyProgram) -> tuple[int, int, int]:
    """Return a value, and its largest and its smallest element as scalars."""
    found: dict[tuple[int, str], int] = {}
    live = program.live()
    for index, value in enumerate(program.values):
        if index in live and isinstance(value, Move) and value.how == Squeezed(None):
            reduce = program.values[value.args[0]]
            if isinstance(reduce, Reduce) and reduce.onward and reduce.axes == (0,):
                found[reduce.arg, reduce.kind] = index
    ranged = {arg for arg, _ in found}
    if len(ranged) != 1 or {kind for _, kind in found} != {"max", "min"}:
        raise UnsupportedError(f"the ranges of {plural(sorted(ranged), 'value')} in the body, expected one")
    (of,) = ranged
    return of, found[of, "max"], found[of, "min"]
