"""The text of warpgroup products: its instructions, their operands, and what each reads."""

import re

import pytest

from onnxfuse.cuda.isa.factors import BFLOAT16, E4M3, FLOAT16, INTEGERS, TF32, FactorType
from onnxfuse.cuda.isa.wgmma import WIDEST, product


def instructions(text: str) -> list[tuple[str, int]]:
    """Return the name of each instruction and the number of its registers."""
    found = re.findall(r"(wgmma\.mma_async\S+) \{(%[^}]*)\}", text)
    return [(name, registers.count("%")) for name, registers in found]


@pytest.mark.parametrize(
    ("factors", "end"),
    [
        (FLOAT16, "k16.f32.f16.f16"), (BFLOAT16, "k16.f32.bf16.bf16"), (TF32, "k8.f32.tf32.tf32"),
        (E4M3, "k32.f32.e4m3.e4m3"), (INTEGERS[1], "k32.s32.s8.u8"),
    ],
)  # fmt: skip
def test_an_instruction_multiplies_32_bytes_of_terms(factors: FactorType, end: str) -> None:
    """A thread has half a sum for each column."""
    text = product(64, factors, right_rows=False)
    assert instructions(text) == [(f"wgmma.mma_async.sync.aligned.m64n64{end}", 32)]
    assert text.startswith("DEVICE void wgmma(float (&d)[32], unsigned long long a, unsigned long long b, int add) {")
    assert "setp.ne.b32 add, %34, 0" in text
    assert '"l"(a), "l"(b + 0), "r"(add)' in text


@pytest.mark.parametrize(("columns", "parts"), [(8, [8]), (WIDEST, [256]), (264, [192, 72]), (384, [192, 192])])
def test_more_columns_than_one_takes_are_two(columns: int, parts: list[int]) -> None:
    """The first of a multiple of 64, the second behind it: 8 units of 16 bytes for each column."""
    text = product(columns, FLOAT16, right_rows=False)
    assert [int(re.findall(r"m64n(\d+)k", name)[0]) for name, _ in instructions(text)] == parts
    assert [count for _, count in instructions(text)] == [part // 2 for part in parts]
    starts = [sum(parts[:i]) for i in range(len(parts))]
    assert re.findall(r"b \+ (\d+)", text) == [str(start * 8) for start in starts]
    assert re.findall(r'"\+f"\(d\[(\d+)\]\)', text) == [str(i) for i in range(columns // 2)]


@pytest.mark.parametrize(
    ("factors", "right_rows", "regs", "modifiers"),
    [
        (FLOAT16, False, False, ", 1, 1, 0, 0"), (FLOAT16, True, False, ", 1, 1, 0, 1"),
        (FLOAT16, True, True, ", 1, 1, 1"), (FLOAT16, False, True, ", 1, 1, 0"), (TF32, False, False, ", 1, 1"),
        (E4M3, False, False, ", 1, 1"), (INTEGERS[0], False, False, ""),
    ],
)  # fmt: skip
def test_modifiers_say_signs_and_transposes(factors: FactorType, right_rows: bool, regs: bool, modifiers: str) -> None:
    """Of 16 bits alone the instruction transposes, of the left factor only from shared memory."""
    text = product(8, factors, right_rows=right_rows, regs=regs)
    left, right = ("{%4, %5, %6, %7}", "%8") if regs else ("%4", "%5")
    assert f"{{%0, %1, %2, %3}}, {left}, {right}, add{modifiers};" in text


def test_a_left_factor_in_registers_is_four_words() -> None:
    """And the predicate comes behind them."""
    text = product(8, FLOAT16, right_rows=False, regs=True)
    assert "const unsigned (&a)[4], unsigned long long b" in text
    assert '"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b + 0), "r"(add)' in text
    assert "setp.ne.b32 add, %9, 0" in text


def test_sums_may_be_arrays_of_four() -> None:
    """As tiles of 8 columns."""
    text = product(16, FLOAT16, right_rows=False, fours=True)
    assert "float (&d)[2][4]" in text
    assert re.findall(r'"\+f"\(d\[(\d)\]\[(\d)\]\)', text) == [(str(i // 4), str(i % 4)) for i in range(8)]


def test_sums_of_integers_are_converted_around_the_instruction() -> None:
    """The kernel holds their bits in floats."""
    text = product(8, INTEGERS[0], right_rows=False)
    assert "int s[4] = {(int)bits_of_float(d[0]), (int)bits_of_float(d[1])," in text
    assert re.findall(r'"\+r"\(s\[(\d)\]\)', text) == ["0", "1", "2", "3"]
    assert "d[3] = float_of_bits((unsigned)s[3]);" in text
    assert text.count("{") == text.count("}")
