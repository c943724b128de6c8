"""What an entry of the registry says of an operator."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from types import ModuleType, SimpleNamespace

from onnxfuse.ops.definitions.writer import Definition
from onnxfuse.ops.flops import Flops
from onnxfuse.ops.inputs import DATA, ELEMENTS, Data, HostData, Role
from onnxfuse.ops.scalar import RowNode, Scalar, ScalarNode
from onnxfuse.ops.shapes.alike import Alike, kept
from onnxfuse.ops.shapes.extents import broadcast
from onnxfuse.ops.shapes.node import Elements, ShapeFunction, ShapeNode, ValueFunction
from onnxfuse.ops.shapes.products import reduction

Meaning = Callable[[ScalarNode], Scalar]
"""Returns an element of a node's output from those of its inputs."""

Over = Callable[[str, Scalar], Scalar]
"""Reduces a value over the axes of the node: "sum", "mean", "max", "min" or "prod" of its elements."""

Reduced = Callable[[ScalarNode, Over], Scalar]
"""Returns an element of a reduction's output."""


@dataclass(frozen=True)
class Cell:
    """The cell of a recurrent layer."""

    activations: tuple[str, ...]
    """Default activations of a direction."""
    gates: int = 1
    states: int = 1
    """1 for h; 2 for h and c."""


Rows = Callable[[RowNode], tuple[Scalar, ...]]
"""Returns an element of each output of an operator that reduces within rows: a norm, a softmax."""


MICROSOFT = "com.microsoft"
"""The domain of ONNX Runtime's own operators."""
TENSORRT = "trt"
"""The domain of operators that NVIDIA's exporters write for TensorRT."""


class Trait(Enum):
    """A property of an operator that more than one part of onnxfuse asks for."""

    __hash__ = object.__hash__  # a million sets are asked for one: Enum's own is a function of Python

    KEEPS_SHAPE = auto()
    """The first output has the shape of the first input."""
    KEEPS_TYPE = auto()
    """The first output has the element type and the shape of the first input."""
    BROADCASTS = auto()
    """Elementwise over several inputs: the output has the shape that these broadcast to."""
    COMMUTATIVE = auto()
    """Two operands can be swapped without changing the result."""
    COMPARISON = auto()
    """Compares two numbers."""
    ARITHMETIC = auto()
    """The sum, difference, product or quotient of two numbers."""
    FINITE_FROM_ZERO = auto()
    """Elementwise; f(0), f(f(0)), ... are finite numbers, so that padding by zeros stays harmless behind it."""
    VIEW = auto()
    """Another shape of the same elements in the same order: ONNX Runtime passes the buffer on."""
    RESHAPE = auto()
    """A view that changes the shape: Reshape, Flatten, Squeeze, Unsqueeze."""
    UNIT_AXES = auto()
    """A view that adds or removes axes of extent 1."""
    REDUCTION = auto()
    """Reduces over axes: the output has at most the elements of the input."""
    CONTRACTION = auto()
    """Sums products of two operands, on tensor cores; on CUDA it rounds float32 to TF32 by default."""
    MATRIX_PRODUCT = auto()
    """Multiplies two matrices, or batches of them."""
    CONVOLUTION = auto()
    """Convolves an image with a weight, the second input, and adds a bias, the third one."""
    ATTENTION = auto()
    """Scores, softmax and weighted sum in one operator."""
    HAS_BODY = auto()
    """Control flow: its attributes hold graphs."""
    RANDOM = auto()
    """Gives another result in each run."""
    OPAQUE = auto()
    """Nothing more is known of it here than its schema says, and what its inputs are."""
    KEEPS_ELEMENTS = auto()
    """Every element of the first input is in the output, in another place or several times, and no other is."""
    EXPANDS = auto()
    """The first input as it is, or repeated along axes of extent 1: no element is at another index of its axes."""
    CARRIES = auto()
    """Each element of the outputs is one of the inputs' that are data: moved, or chosen from two or more."""
    CARRIES_SOME = auto()
    """Carries elements, but fills in others, such as zeros, or combines two."""
    CASTS = auto()
    """The first input's numbers in another element type."""
    READS_SHAPE = auto()
    """Reads of its input nothing but the shape; CUDA kernels write the result to host memory."""
    SHAPES_ON_CUDA = auto()
    """ONNX Runtime's CUDA provider has kernels of it for the element types of shapes."""
    FLOATS_ON_CUDA = auto()
    """ONNX Runtime's CUDA provider has kernels of it for real numbers, but not for all element types of shapes."""
    QUANTIZES = auto()
    """Converts to or from a quantized type."""
    ROUNDS = auto()
    """Rounds to integers that stand for multiples of a step: what lies in the middle of two may become either."""
    QUANTIZED = auto()
    """Computes with quantized values."""
    BATCHED_PRODUCT = auto()
    """Sums products along the last axis of the first input and the last but one of the second: stacks of matrices."""
    INTEGER_PRODUCT = auto()
    """Sums products of quantized values exactly, as integers: MatMulInteger is to MatMul as ConvInteger is to Conv."""
    ORT_FUSION = auto()
    """Written by ONNX Runtime's optimizers in place of several nodes of an export; no exporter writes it."""
    HALF_ON_CPU = auto()
    """ONNX Runtime 1.31 places it on the CPU for half types in a CUDA session."""
    SIZE_FROM_DATA = auto()
    """How many elements it gives depends on the data: CUDA kernels synchronize to learn it."""
    CHOOSES = auto()
    """Selects by value: the choice between nearly equal candidates depends on rounding."""
    SOFTMAX = auto()
    """Scores along an axis to probabilities, or their logarithms."""
    ADDS = auto()
    """Each element of the output is the sum, or the mean, of the first input over axes."""
    IDENTITY_OF_ONE = auto()
    """Takes any number of operands; of a single one it is the identity."""
    SLIDES = auto()
    """Slides a window over spatial axes: it has a `kernel_shape`, strides and padding."""
    POOL = auto()
    """Reduces each window of an image, channel by channel."""
    IMAGES = auto()
    """Takes images channels first. Between two Transposes ONNX Runtime or a kernel computes it channels last."""
    NAMES_AXES = auto()
    """Which axes it works on is said by the attribute `axis`, the operand `axes` or operands with a number for each
    axis: with these permuted it gives the same of permuted data."""
    FOLDABLE = auto()
    """Is inserted by exporters between weights and their use; onnx's reference computes it exactly, and as fast as the
    weights are loaded."""
    SELECTS = auto()
    """Reads no more of the first input than it outputs."""
    NONZERO = auto()
    """Of integers other than 0 it gives integers other than 0."""
    INTEGRAL = auto()
    """Of integers it gives integers of the same type; in a wider type it gives the same numbers."""


IMPLIED: Mapping[Trait, tuple[Trait, ...]] = {
    Trait.KEEPS_TYPE: (Trait.KEEPS_SHAPE,), Trait.UNIT_AXES: (Trait.RESHAPE,), Trait.RESHAPE: (Trait.VIEW,),
    Trait.VIEW: (Trait.KEEPS_ELEMENTS,), Trait.EXPANDS: (Trait.KEEPS_ELEMENTS,), Trait.KEEPS_ELEMENTS: (Trait.CARRIES,),
    Trait.CARRIES: (Trait.NONZERO, Trait.INTEGRAL), Trait.CASTS: (Trait.NONZERO,),
    Trait.MATRIX_PRODUCT: (Trait.CONTRACTION,),
    Trait.CONVOLUTION: (Trait.CONTRACTION, Trait.SLIDES), Trait.POOL: (Trait.SLIDES,),
    Trait.INTEGER_PRODUCT: (Trait.QUANTIZED,),
}  # fmt: skip
"""The traits that a trait entails: a view keeps all elements."""

SHAPES: Mapping[Trait, ShapeFunction] = {
    Trait.KEEPS_SHAPE: lambda node: [node.shape(0)],
    Trait.BROADCASTS: lambda node: [broadcast([node.shape(i) for i in range(len(node.shapes))])],
    Trait.REDUCTION: reduction,
}
"""The shape function that a trait entails, of an entry that has none of its own."""


def _viewed(shape: ShapeFunction) -> ValueFunction:
    """Return the elements of a view in its shape."""

    def value(node: ShapeNode) -> Elements:
        return node.elements(0).reshape([*shape(node)[0]])

    return value


@dataclass(frozen=True)
class NumbersForm:
    """What an operator on quantized values is on numbers, and where it has their scales and zero points."""

    of: "Operator"
    """The operator that it is on the numbers."""
    operands: Sequence[int] = (0,)
    """Positions of the quantized operands, each before its scale and its zero point."""
    result: int = 3
    """Position of the scale of the result, before its zero point; without a scale it is not quantized."""
    more: bool = False
    """Whether as many operands follow as there are."""
    plain: Sequence[int] = ()
    """Positions of operands that are not quantized, which come first."""
    bias: int | None = None
    """Position of an operand of int32, whose scale is the product of those of the first two."""
    channels: int | None = None
    """The axis along which the scales of the second operand may lie."""


@dataclass(frozen=True)
class StandardForm:
    """ONNX's own operator that computes the same from the same inputs and attributes."""

    of: "Operator"
    quantized: int = 0
    """Element type of the quantized values where the operator's name says it, not a zero point."""


class Operator(str):
    """One operator of a domain: its name, as nodes have it, and what is known of it.

    A string, so that `node.op_type == ops.Transpose` compares names; the domain is compared where it matters.
    """

    domain: str
    traits: frozenset[Trait]
    inputs: Mapping[str, Role]
    """All inputs by name, in order; empty where no part of onnxfuse asks for them. The last one may stand for many."""
    defaults: Mapping[str, int | float]
    """Defaults of the attributes of an operator that ONNX does not define; empty where no part of onnxfuse asks."""
    moved: Mapping[str, int]
    """Attributes that became the input of the same name, and the operator set in which they did."""
    meaning: Meaning | None
    """What an elementwise operator computes; None for all others."""
    reduced: Reduced | None
    """What an operator computes that reduces over the axes that its node names; None for all others."""
    rows: Rows | None
    """What an operator computes that reduces within rows; None for all others."""
    flops: Flops | None
    """Counts floating-point operations; None if nobody has said how."""
    shape: ShapeFunction | None
    """The outputs' shapes; None if nobody has said them."""
    alike: Alike | None
    """Standard nodes with the types of the results, for ONNX's inference; None where it is right, or nobody has said
    them."""
    value: ValueFunction | None
    """The elements of a small tensor of integers that the operator moves, selects or makes; None for all others."""
    mirrored: str
    """The operator that gives the same with exchanged operands, of a comparison; empty for others."""
    cell: Cell | None
    """The cell of a recurrent layer; None for others."""
    reduction: str
    """The reduction over the axes after the channels that gives the same, of a global pool; empty for others."""
    neutral: float | None
    """The second operand with which the first is the result; True is 1. None if there is none."""
    numbers: NumbersForm | None
    """What an operator on quantized values is on numbers; None for others, and where nobody has said it."""
    left: str
    """Why ONNX Runtime computes what is left of an operator, where no rule says more."""
    standard: StandardForm | None
    """What an operator of another domain is in ONNX's own; None for others, and where nobody has said it."""
    definition: Definition | None
    """Writes what the operator computes as nodes of others; None where rules and kernels know the operator itself, or
    nobody has said it."""

    def __new__(
        cls,
        name: str,
        *traits: Trait,
        domain: str = "",
        inputs: Mapping[str, Role] | None = None,
        defaults: Mapping[str, int | float] | None = None,
        moved: Mapping[str, int] | None = None,
        meaning: Meaning | None = None,
        reduced: Reduced | None = None,
        rows: Rows | None = None,
        flops: Flops | None = None,
        shape: ShapeFunction | None = None,
        alike: Alike | None = None,
        value: ValueFunction | None = None,
        mirrored: str = "",
        cell: Cell | None = None,
        reduction: str = "",
        neutral: float | None = None,
        numbers: NumbersForm | None = None,
        left: str = "",
        standard: StandardForm | None = None,
        definition: Definition | None = None,
    ) -> "Operator":
        """Return the entry of an operator with these traits, and those that they entail."""
        entry = super().__new__(cls, name)
        entry.domain, entry.inputs, entry.moved, entry.mirrored = domain, inputs or {}, moved or {}, mirrored
        entry.defaults, entry.cell, entry.reduction, entry.neutral = defaults or {}, cell, reduction, neutral
        entry.meaning, entry.reduced, entry.rows, entry.flops = meaning, reduced, rows, flops
        entry.numbers, entry.left, entry.standard, entry.definition = numbers, left, standard, definition
        every = set(traits)
        while more := {implied for t in every for implied in IMPLIED.get(t, ())} - every:
            every |= more
        entry.traits = frozenset(every)
        entry.shape = shape or next((SHAPES[t] for t in SHAPES if t in every), None)
        entry.alike = alike or (kept if Trait.KEEPS_TYPE in every else None)
        if Trait.RESHAPE in every:
            assert shape is not None, f"{name} has another shape"
            value = _viewed(shape)
        entry.value = value
        return entry

    def role(self, position: int) -> Role | None:
        """Return what the input at a position means; None if it is not known.

        Those of an elementwise operator are data unless it says otherwise.
        """
        roles: list[Role | None] = [*self.inputs.values()] or [DATA if self.meaning is not None else None]
        return roles[min(position, len(roles) - 1)]

    def position(self, name: str) -> int:
        """Return the position of an input. Raises ValueError if the entry has none of this name."""
        return [*self.inputs].index(name)

    def positions(self, *kinds: type[Role]) -> tuple[int, ...]:
        """Return the positions of the inputs whose roles are of these kinds."""
        return tuple(i for i, role in enumerate(self.inputs.values()) if isinstance(role, kinds))

    def carries(self, position: int) -> bool:
        """Return whether the outputs' elements may be those of the input at this position."""
        return Trait.CARRIES in self.traits and isinstance(self.role(position), Data)

    @property
    def on_host(self) -> tuple[int, ...]:
        """Positions of the inputs that ONNX Runtime's CUDA kernels read in host memory."""
        if self.traits.isdisjoint({Trait.SHAPES_ON_CUDA, Trait.FLOATS_ON_CUDA}):
            return ()
        device = {*self.positions(*ELEMENTS)} - {*self.positions(HostData)}
        return tuple(i for i in range(len(self.inputs)) if i not in device)

    def neutral_at(self, position: int) -> float | None:
        """Return the operand at this position with which the other one is the result; None if there is none."""
        return self.neutral if position == 1 or Trait.COMMUTATIVE in self.traits else None

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        """Return how a copy is made: the name alone."""
        return str, (str(self),)


def registry(*families: ModuleType | SimpleNamespace) -> Mapping[tuple[str, str], Operator]:
    """Return the entries of all families by (domain, name). Raises ValueError for an operator that has two."""
    found: dict[tuple[str, str], Operator] = {}
    for one in (one for family in families for one in vars(family).values() if isinstance(one, Operator)):
        if (one.domain, one) in found:
            raise ValueError(f"two entries for {one.domain}:{one}")
        found[one.domain, one] = one
    return found
