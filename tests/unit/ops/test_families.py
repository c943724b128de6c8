"""What entries of a family have in common: traits, kinds and operations follow from what their function says."""

import pytest

from onnxfuse.ops import families, flops, scalar
from onnxfuse.ops.inputs import CONDITION, DATA
from onnxfuse.ops.registry import Trait
from onnxfuse.ops.scalar import NUMBERS, Function, Kind

FUNCTIONS = [one for one in vars(scalar).values() if isinstance(one, Function)]


def test_two_operands_broadcast_and_change_places_where_the_function_lets_them() -> None:
    """And its neutral element is the operator's."""
    for commutative in (True, False):
        one = next(f for f in FUNCTIONS if f.commutative is commutative)
        made = families.binary("Made", one)
        assert Trait.BROADCASTS in made.traits
        assert (Trait.COMMUTATIVE in made.traits) is commutative
        assert made.neutral == one.neutral


@pytest.mark.parametrize(
    ("kinds", "integral", "role"),
    [((), False, DATA), ((Kind.INTEGER,), True, DATA), ((Kind.BOOLEAN,), False, CONDITION)],
)
def test_kinds_decide_what_operands_are(kinds: tuple[Kind, ...], integral: bool, role: object) -> None:
    """Integers are exact, and truth values are no data."""
    one = FUNCTIONS[0]
    made = families.binary("Made", one, kinds=kinds)
    assert (Trait.INTEGRAL in made.traits) is integral
    assert made.inputs == {"A": role, "B": role}


def test_reductions_of_integers_are_exact_and_of_floats_alone_on_cuda() -> None:
    """Unless they reduce shapes there, too."""
    floats = families.reducing("Made", lambda x, over: x, kinds=(Kind.REAL,))
    whole = families.reducing("Made", lambda x, over: x, kinds=NUMBERS)
    assert {Trait.REDUCTION, Trait.NAMES_AXES, Trait.FLOATS_ON_CUDA} <= whole.traits
    assert Trait.INTEGRAL in whole.traits
    assert Trait.INTEGRAL not in floats.traits
    on_cuda = families.reducing("Made", lambda x, over: x, Trait.SHAPES_ON_CUDA)
    assert Trait.FLOATS_ON_CUDA not in on_cuda.traits


def test_what_only_moves_computes_nothing() -> None:
    assert families.moving("Made").flops is flops.none


def test_more_facts_replace_those_of_the_family() -> None:
    one = FUNCTIONS[0]
    made = families.binary("Made", one, domain="own", inputs={"X": DATA}, neutral=7.0)
    assert (made.domain, made.inputs, made.neutral) == ("own", {"X": DATA}, 7.0)
