"""What an entry of the registry says of an operator."""

from collections.abc import Mapping
from enum import Enum, auto
from types import ModuleType, SimpleNamespace


class Trait(Enum):
    """A property of an operator that more than one part of onnxfuse asks for."""

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
    FINITE_FROM_ZERO = auto()
    """Elementwise; f(0), f(f(0)), ... are finite numbers, so that padding by zeros stays harmless behind it."""
    VIEW = auto()
    """Another shape of the same elements in the same order: ONNX Runtime passes the buffer on."""
    RESHAPE = auto()
    """A view that changes the shape: Reshape, Flatten, Squeeze, Unsqueeze."""
    REDUCTION = auto()
    """Reduces over axes: the output has at most the elements of the input."""
    CONTRACTION = auto()
    """Sums products of two operands, on tensor cores; on CUDA it rounds float32 to TF32 by default."""
    ATTENTION = auto()
    """Scores, softmax and weighted sum in one operator."""
    HAS_BODY = auto()
    """Control flow: its attributes hold graphs."""
    RANDOM = auto()
    """Gives another result in each run."""
    OPAQUE = auto()
    """Nothing more is known of it here than its schema says."""


class Operator(str):
    """One operator of a domain: its name, as nodes have it, and what is known of it.

    A string, so that `node.op_type == ops.Transpose` compares names; the domain is compared where it matters.
    """

    domain: str
    traits: frozenset[Trait]

    def __new__(cls, name: str, *traits: Trait, domain: str = "") -> "Operator":
        """Return the entry of an operator with these traits."""
        entry = super().__new__(cls, name)
        entry.domain, entry.traits = domain, frozenset(traits)
        return entry

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
