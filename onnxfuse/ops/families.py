"""Entries of operators that have much in common, a function for each family."""

from collections.abc import Callable
from typing import Any

from onnxfuse.ops import flops as count
from onnxfuse.ops.registry import Meaning, Operator, Over, Trait
from onnxfuse.ops.scalar import NUMBERS, Function, Kind, Scalar


def pointwise(
    name: str,
    meaning: Meaning,
    *traits: Trait,
    shape: Trait = Trait.KEEPS_SHAPE,
    flops: int = 1,
    **facts: Any,
) -> Operator:
    """Return the entry of an operator that computes each element of the output from one of each input.

    `flops` is the number of operations for each of them; `facts` are other fields of the entry.
    """
    return Operator(name, shape, *traits, meaning=meaning, flops=count.per_output(flops), **facts)


def unary(name: str, function: Function, *traits: Trait, **facts: Any) -> Operator:
    """Return the entry of a scalar function of floating-point numbers."""
    return pointwise(name, lambda node: function(node.real(0)), *traits, **facts)


def broadcasting(name: str, meaning: Meaning, *traits: Trait, **facts: Any) -> Operator:
    """Return the entry of an elementwise operator of several inputs, which broadcast."""
    return pointwise(name, meaning, *traits, shape=Trait.BROADCASTS, **facts)


def binary(name: str, function: Function, *traits: Trait, kinds: tuple[Kind, ...] = (), **facts: Any) -> Operator:
    """Return the entry of a scalar function of two values of one type, of one of these kinds if any are given."""
    commutative = (Trait.COMMUTATIVE,) if function.commutative else ()
    return broadcasting(name, lambda node: function(*node.alike(*kinds, count=2)), *commutative, *traits, **facts)


def variadic(name: str, meaning: Meaning, *traits: Trait, flops: int = 1, **facts: Any) -> Operator:
    """Return the entry of an elementwise operator of any number of operands; `flops` is for each but the first."""
    every = (Trait.BROADCASTS, Trait.COMMUTATIVE, *traits)
    return Operator(name, *every, meaning=meaning, flops=count.per_operand(flops), **facts)


def reducing(
    name: str,
    formula: Callable[[Scalar, Over], Scalar],
    *traits: Trait,
    kinds: tuple[Kind, ...] = NUMBERS,
    flops: int = 1,
    **facts: Any,
) -> Operator:
    """Return the entry of a reduction of numbers of one of these kinds.

    `formula` is the result from an element of the operand; `flops` is the number of operations for each of these.
    """
    return Operator(
        name,
        Trait.REDUCTION,
        *traits,
        reduced=lambda node, over: formula(node.term(0, *kinds), over),
        flops=count.per_input(flops),
        **facts,
    )


def moving(name: str, *traits: Trait, **facts: Any) -> Operator:
    """Return the entry of an operator that only moves, selects or makes elements."""
    return Operator(name, *traits, flops=count.none, **facts)
