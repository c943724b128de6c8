"""Sums of products: what they have in common, and what is left of them without it."""

from onnxfuse.symbolic.integer import Atom, Int
from onnxfuse.symbolic.terms import Monomial, common_factors, divided, in_order, summed, whole_multiples, without


def atom(name: str) -> Atom:
    value = Int.name(name, 0)
    ((monomial, _),) = value.terms
    (only,) = monomial
    return only


A, B, C = map(atom, "abc")


def test_products_are_summed_where_they_are_equal() -> None:
    """A coefficient of 0 stays: its product has cancelled."""
    assert summed([((A,), 2), ((B,), 1), ((A,), -2), ((), 3), ((), 4)]) == {(A,): 0, (B,): 1, (): 7}


def test_what_a_number_divides_is_apart_from_the_rest() -> None:
    """In their order, each quotient exact."""
    assert whole_multiples([("a", 4), ("b", 1), ("c", -6), ("d", 0)], 2) == (
        [("a", 2), ("c", -3), ("d", 0)],
        [("b", 1)],
    )


def test_terms_are_in_order() -> None:
    """Those of higher degree first, then by their names, the constant last."""
    terms: list[tuple[Monomial, int]] = [((), 5), ((B,), 1), ((A, C), 1), ((A, B), 1), ((A,), 1)]
    assert [m for m, _ in in_order(terms)] == [(A, B), (A, C), (A,), (B,), ()]


def test_a_product_without_factors() -> None:
    """Each as often as it is taken out; None if the product has it less often."""
    assert without((A, A, B), (A,)) == (A, B)
    assert without((A, B), (B, A)) == ()
    assert without((A, B), ()) == (A, B)
    assert without((A, B), (A, A)) is None
    assert without((), (A,)) is None


def test_common_factors_are_in_each_product() -> None:
    """As often as in the one that has them least."""
    assert common_factors((((A, A, B), 1), ((A, A, C), 2))) == (A, A)
    assert common_factors((((A, A, B), 1), ((A, B, C), 2))) == (A, B)
    assert common_factors((((A,), 1), ((), 2))) == ()
    assert common_factors((((A, B), 4),)) == (A, B)


def test_a_sum_is_divided_term_by_term() -> None:
    assert divided((((A, A, B), 4), ((A,), -2)), (A,), 2) == (((A, B), 2), ((), -1))
