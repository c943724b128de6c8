"""Types of factors: the rows of the table, and the elements that an instruction holds."""

import ctypes
import itertools

import numpy as np
import pytest

from bench.cases.ops import NUMPY
from onnxfuse.codegen.emit.source import template
from onnxfuse.cuda.isa.capabilities import BEFORE, ISAS
from onnxfuse.cuda.isa.factors import (
    BFLOAT16,
    E4M3,
    E5M2,
    FACTORS,
    FLOAT16,
    FLOAT32,
    INTEGERS,
    SPLIT_FLOAT32,
    TF32,
    FactorType,
    factors_of,
)
from onnxfuse.cuda.isa.isa import Copy
from onnxfuse.cuda.isa.sm_80 import SM_80
from onnxfuse.cuda.isa.sm_90 import SM_90A
from onnxfuse.cuda.planning.arch import Arch
from tests.emulator import emulate

ALL = (BEFORE, *(isa for _, isa in ISAS), SM_90A)


def test_which_instructions_multiply_which_factors() -> None:
    """mma.sync from sm_80 on, of e4m3 as float16 before sm_89; wgmma on sm_90a alone; float32 on the CUDA cores."""
    sixteen = {FLOAT16, BFLOAT16, TF32, SPLIT_FLOAT32, *INTEGERS}
    for isa in ALL:
        number = Arch(isa.name, 1).number
        warps, warpgroups = ({f for f in FACTORS if multiply(f)} for multiply in (isa.mma, isa.wgmma))
        assert warps == ({*sixteen, E4M3} if number >= 80 else set()) | ({E5M2} if number >= 89 else set())
        assert warpgroups == ({*sixteen, E4M3, E5M2} if isa is SM_90A else set())
        assert (Copy.CP_ASYNC in isa.copies) == (number >= 80)
        assert (Copy.TMA in isa.copies) == (number >= 90)
        assert isa.mma(FLOAT32) is None


def test_products_of_float8_alone_keep_fewer_bits_than_float32() -> None:
    """By wgmma, and by mma.sync of sm_89 and sm_120; elsewhere they are products of float16."""
    few = {
        (isa.name, i.threads, i.factors.name)
        for isa in ALL
        for i in isa.instructions
        if not i.keeps_float32 and i.factors is E4M3
    }
    assert few == {("sm_89", 32, E4M3.name), ("sm_120", 32, E4M3.name), ("sm_90a", 128, E4M3.name)}
    assert all(i.sum_bits == 14 for isa in ALL for i in isa.instructions if not i.keeps_float32)
    assert all(i.factors.promoted_after for isa in ALL for i in isa.instructions if not i.keeps_float32)


def test_columns_of_warpgroup_products() -> None:
    """Of integers multiples of 16 from 32 columns on, of all else multiples of eight (PTX ISA, wgmma.mma_async)."""
    integers, halves = SM_90A.wgmma(INTEGERS[0]), SM_90A.wgmma(FLOAT16)
    assert halves is not None
    assert halves.n == tuple(range(8, 257, 8))
    assert integers is not None
    assert integers.n == (8, 16, 24, *range(32, 257, 16))
    assert (integers.k, halves.k, integers.k_major, halves.k_major) == (32, 16, True, False)


def test_a_pair_of_element_types_is_one_row() -> None:
    rows = [(f.left, f.right) for f in FACTORS if f not in (SPLIT_FLOAT32, FLOAT32)]
    assert len(set(rows)) == len(rows)
    assert [factors_of(*pair) for pair in rows] == [f for f in FACTORS if f not in (SPLIT_FLOAT32, FLOAT32)]
    assert factors_of(FLOAT16.left, TF32.left) is None


HARNESS = """#include "host.hpp"
extern "C" void multiply(const unsigned (*a)[4], const unsigned (*b)[2], unsigned (*sums)[4]) {
  run_kernel(1, 32, [&] {
    const unsigned lane = thread_index();
    float d[4] = {};
    mma(d, a[lane], b[lane][0], b[lane][1], (STORED*)nullptr);
    for (int i = 0; i < 4; ++i) sums[lane][i] = bits_of_float(d[i]);
  });
}
"""


@pytest.mark.parametrize(
    "factors", [f for f in FACTORS if SM_80.mma(f) and f is not SPLIT_FLOAT32], ids=lambda f: f.name
)
def test_fragments_hold_the_elements_that_the_instruction_says(factors: FactorType) -> None:
    """The emulator multiplies fragments that are filled by the map of the instruction, and its sums are read by it."""
    instruction = SM_80.mma(factors)
    assert instruction is not None
    (m, (n,), k), rng = (instruction.m, instruction.n, instruction.k), np.random.default_rng(0)
    left, right = (NUMPY[t] for t in (factors.left, factors.right))
    a, b = (rng.integers(0 if t == np.uint8 else -9, 9, s).astype(t) for t, s in ((left, (m, k)), (right, (k, n))))
    words_a, words_b = np.zeros((32, 4, factors.per_word), left), np.zeros((32, 2, factors.per_word), right)
    for lane, element in itertools.product(range(32), range(factors.per_word)):
        for register in range(4):
            words_a[lane, register, element] = a[instruction.left(lane, register, element)]
        for register in range(2):
            words_b[lane, register, element] = b[instruction.right(lane, register, element)]
    sums = np.zeros((32, 4), np.int32 if factors.is_integer else np.float32)
    pointers = (x.ctypes.data_as(ctypes.c_void_p) for x in (words_a, words_b, sums))
    text = HARNESS.replace("STORED", factors.stored)
    if factors is E4M3:  # by what the host has of float16
        text = text.replace("\n", f"\n{template('include/memory.cuh').text}{template(str(factors.header)).text}", 1)
    emulate.library(text).multiply(*pointers)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for lane, register in itertools.product(range(32), range(4)):
        assert sums[lane, register] == expected[instruction.sums(lane, register)]
