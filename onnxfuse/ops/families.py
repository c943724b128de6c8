"""Entries of operators that have much in common, a function for each family."""

from collections.abc import Callable, Mapping
from typing import TypedDict, Unpack

from onnxfuse.ops import flops as count
from onnxfuse.ops.definitions.writer import Definition
from onnxfuse.ops.inputs import CONDITION, DATA, Role, data
from onnxfuse.ops.registry import Meaning, Operator, Over, Trait
from onnxfuse.ops.scalar import NUMBERS, Function, Kind, Scalar
from onnxfuse.ops.shapes.alike import Alike
from onnxfuse.ops.shapes.node import ShapeFunction, ValueFunction


class EntryFields(TypedDict, total=False):
    """What any entry may say besides, as in `Operator`."""

    domain: str
    inputs: Mapping[str, Role]
    moved: Mapping[str, int]
    mirrored: str
    shape: ShapeFunction
    alike: Alike
    value: ValueFunction
    neutral: float | None
    definition: Definition


def pointwise(name: str, meaning: Meaning, *traits: Trait, flops: int = 1, **more: Unpack[EntryFields]) -> Operator:
    """Return the entry of an operator that computes each element of the output from that of its first input.

    `flops` is the number of operations for each of them.
    """
    return Operator(name, Trait.KEEPS_SHAPE, *traits, meaning=meaning, flops=count.per_output(flops), **more)


def unary(name: str, function: Function, *traits: Trait, flops: int = 1, **more: Unpack[EntryFields]) -> Operator:
    """Return the entry of a scalar function of floating-point numbers."""
    return pointwise(name, lambda node: function(node.real(0)), *traits, flops=flops, **more)


def broadcasting(name: str, meaning: Meaning, *traits: Trait, flops: int = 1, **more: Unpack[EntryFields]) -> Operator:
    """Return the entry of an elementwise operator of several inputs, which broadcast."""
    return Operator(name, Trait.BROADCASTS, *traits, meaning=meaning, flops=count.per_output(flops), **more)


def binary(
    name: str,
    function: Function,
    *traits: Trait,
    kinds: tuple[Kind, ...] = (),
    flops: int = 1,
    **more: Unpack[EntryFields],
) -> Operator:
    """Return the entry of a scalar function of two values of one type, of one of these kinds if any are given."""
    commutative = (Trait.COMMUTATIVE,) if function.commutative else ()
    integral = (Trait.INTEGRAL,) if Kind.INTEGER in kinds else ()
    role = CONDITION if kinds == (Kind.BOOLEAN,) else DATA
    facts: EntryFields = {"inputs": {"A": role, "B": role}, "neutral": function.neutral, **more}
    return broadcasting(
        name,
        lambda node: function(*node.alike(*kinds, count=2)),
        *commutative,
        *integral,
        *traits,
        flops=flops,
        **facts,
    )


def variadic(name: str, meaning: Meaning, *traits: Trait, flops: int = 1, **more: Unpack[EntryFields]) -> Operator:
    """Return the entry of an elementwise operator of any number of operands; `flops` is for each but the first."""
    facts: EntryFields = {"inputs": data("data_0"), **more}
    return Operator(
        name, Trait.BROADCASTS, Trait.COMMUTATIVE, *traits, meaning=meaning, flops=count.per_operand(flops), **facts
    )


def reducing(
    name: str,
    formula: Callable[[Scalar, Over], Scalar],
    *traits: Trait,
    kinds: tuple[Kind, ...] = NUMBERS,
    flops: int = 1,
    **more: Unpack[EntryFields],
) -> Operator:
    """Return the entry of a reduction of numbers of one of these kinds.

    `formula` is the result from an element of the operand; `flops` is the number of operations for each of these.
    """
    integral = (Trait.INTEGRAL,) if Kind.INTEGER in kinds else ()
    on_cuda = () if Trait.SHAPES_ON_CUDA in traits else (Trait.FLOATS_ON_CUDA,)
    return Operator(
        name,
        Trait.REDUCTION,
        Trait.NAMES_AXES,
        *integral,
        *on_cuda,
        *traits,
        reduced=lambda node, over: formula(node.term(0, *kinds), over),
        flops=count.per_input(flops),
        **more,
    )


def moving(name: str, *traits: Trait, **more: Unpack[EntryFields]) -> Operator:
    """Return the entry of an operator that only moves, selects or makes elements."""
    return Operator(name, *traits, flops=count.none, **more)
