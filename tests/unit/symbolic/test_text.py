"""The text of an integer: the same for every spelling, and read back as what it was."""

import pytest

from onnxfuse.symbolic.integer import Int, IntLike, ceiling, exact_division, largest, smallest
from onnxfuse.symbolic.parsing import parsed
from onnxfuse.symbolic.text import LONGEST_CALL, is_word, of_operation

A, B, C = Int.name("a", 0), Int.name("b", 0), Int.name("c", 0)
SPACED = Int.name("a b", 0)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (A, "a"),
        (2 * A, "2*a"),
        (-A, "-a"),
        (-3 * A * B, "-3*a*b"),
        (B * A, "a*b"),
        (1 + A, "(a+1)"),
        (A - B, "(a-b)"),
        (1 - A, "(1-a)"),
        (-A - 1, "(-a-1)"),
        (2 * A + 4, "2*(a+2)"),
        (4 * A + 6, "(4*a+6)"),
        (A * B + A, "(b+1)*a"),
        (2 * A * B - 2 * A, "2*(b-1)*a"),
        (A // 2, "(a//2)"),
        ((A + 1) // 2, "((a+1)//2)"),
        (A // 2 + 1, "(a//2+1)"),
        (1 - A // 2, "(1-(a//2))"),
        (2 * (A // 2) + 1, "(2*(a//2)+1)"),
        ((A // 2) % 3, "((a//2)%3)"),
        ((A * B) // (2 * C + 1), "((a*b)//(2*c+1))"),
        (A % 2, "(a%2)"),
        (A % 2 + 1, "(a%2+1)"),
        (A // B, "(a//b)"),
        (A // -B, "-ceil(a/b)"),
        (exact_division(A, -2 * B), "((-a)/(2*b))"),
        (exact_division(A, 2), "(a/2)"),
        (ceiling(A + 1, 2), "ceil((a+1)/2)"),
        (ceiling(A, B + 1), "ceil(a/(b+1))"),
        (smallest(A, 3), "min(3,a)"),
        (largest(A - 1, B), "max((a-1),b)"),
        (SPACED, "a b"),
        (2 * SPACED, "2*(a b)"),
        (SPACED // 2, "((a b)//2)"),
    ],
)
def test_an_integer_is_written_in_one_form(value: IntLike, text: str) -> None:
    """Factors in order, sums in parentheses, common factors before them; names that are no words in parentheses."""
    assert str(value) == text


def test_a_name_that_is_no_word_needs_parentheses() -> None:
    assert [is_word(text) for text in ("batch", "größe", "_1", "1a", "a b", "a-b", "")] == [True] * 3 + [False] * 4
    assert parsed("2*(a b)") is 2 * parsed("a b")


def test_a_long_call_ends_in_a_hash() -> None:
    """Of an operation that no file names; equal operands give equal texts, others another one."""
    assert of_operation("gcd", (A, 12)) == "gcd(a,12)"
    short, longer = ("a" * n for n in (LONGEST_CALL, LONGEST_CALL + 1))
    assert of_operation("gcd", (short,)) == f"gcd({short})"
    text = of_operation("gcd", (longer,))
    assert text.startswith("gcd(#")
    assert len(text) < LONGEST_CALL
    assert text == of_operation("gcd", (longer,)) != of_operation("gcd", (f"{longer}b",))
