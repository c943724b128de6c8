"""Integers read from text."""

import pytest

from onnxfuse.symbolic.integer import Int
from onnxfuse.symbolic.parsing import LONGEST, parsed
from tests.unit.symbolic.test_integer import cases

NAMES = ("a", "b", "c")


def test_a_text_reads_back_as_the_same_object() -> None:
    for value, _, _ in cases(0):
        if isinstance(value, Int) and len(str(value)) <= LONGEST:
            assert parsed(str(value)) is value


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("H", "H"), ("H-2", "(H-2)"), ("((H-2)//2+1)", "((H-2)//2+1)"), ("ceil(W/2)", "ceil(W/2)"), ("H*2", "2*H"),
        ("4*H-2", "(4*H-2)"), ("b*4*s", "4*b*s"), ("4*((H-1)//2+1)", "4*((H-1)//2+1)"), ("s*(p+1)", "(p+1)*s"),
        ("min(sequence, 512)", "min(512,sequence)"), ("min(a, a+1, 3, b, 9)", "min(3,a,b)"), ("max(0, s)", "s"),
        ("((sequence*batch)//batch)", "sequence"), ("((sequence**2)//sequence)", "sequence"), ("(8*N)//8", "N"),
        ("(4*b*s)//(2*s)", "2*b"), ("(a*b)//(b*a)", "1"), ("((a+b)*c)//c", "(a+b)"), ("(a*a-b*b)//(a+b)", "(a-b)"),
        ("((s + 1)//s)", "((s+1)//s)"), ("7*b//2", "((7*b)//2)"), ("a*b*c//c*b", "a*b*b"), ("a*c//c + 1", "(a+1)"),
        ("(2*s+4)//4", "((s+2)//2)"), ("(4*a+b+3)//2", "((b+3)//2+2*a)"), ("(s//2)//3", "(s//6)"), ("(6*s+5)%3", "2"),
        ("past + 1", "(past+1)"), ("(1 + past)", "(past+1)"), ("s + 0", "s"), ("4", "4"), ("5-s", "(5-s)"),
        ("floor(height/2 - 1/2) + 1", "((height-1)//2+1)"), ("0.5*h*2", "h"), ("h/2", "(h/2)"), ("(h/2)*4", "2*h"),
        ("(s % 4)//4", "0"), ("größe+1", "(größe+1)"), ("3*(a b)", "3*(a b)"), ("-s+3*s", "2*s"),
    ],
)  # fmt: skip
def test_the_normal_form_of_a_text(text: str, normal: str) -> None:
    assert str(parsed(text)) == normal
