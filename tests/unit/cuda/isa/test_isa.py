"""What templates ask of an instruction set is looked up: no GPU is recognised by its name."""

import ctypes
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import onnxfuse.cuda.templates
from bench.cases.ops import NUMPY
from onnxfuse.cuda.isa.capabilities import BEFORE, ISAS, isa_of
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
from onnxfuse.cuda.planning.arch import SUPPORTED, Arch
from tests.emulator import emulate

ALL = (BEFORE, *(isa for _, isa in ISAS), SM_90A)


@pytest.mark.parametrize(
    ("name", "kilobytes", "cluster", "early", "unused"),
    [
        ("sm_61", 48, 1, False, ""), ("sm_75", 64, 1, False, ""), ("sm_80", 163, 1, False, ""),
        ("sm_86", 99, 1, False, ""), ("sm_87", 163, 1, False, ""), ("sm_89", 99, 1, False, ""),
        ("sm_90", 227, 8, True, ""), ("sm_90a", 227, 8, True, ""), ("sm_100", 227, 8, True, "tcgen05"),
        ("sm_103", 227, 8, True, "tcgen05"), ("sm_110", 227, 8, True, "tcgen05"), ("sm_120", 99, 8, True, ""),
        ("sm_121", 99, 8, True, ""), ("sm_120a", 99, 8, True, ""),
    ],
)  # fmt: skip
def test_the_instruction_set_of_each_capability(
    name: str, kilobytes: int, cluster: int, early: bool, unused: str
) -> None:
    isa = isa_of(name)
    assert (isa.shared_bytes, isa.cluster, isa.starts_early, isa.unused) == (kilobytes * 1024, cluster, early, unused)


def test_which_instructions_multiply_which_factors() -> None:
    """mma.sync from sm_80 on, of float8 from sm_89 on; wgmma on sm_90a alone; float32 as it is on the CUDA cores."""
    sixteen = {FLOAT16, BFLOAT16, TF32, SPLIT_FLOAT32, *INTEGERS}
    for isa in ALL:
        number = Arch(isa.name, 1).number
        warps, warpgroups = ({f for f in FACTORS if multiply(f)} for multiply in (isa.mma, isa.wgmma))
        assert warps == (sixteen if number >= 80 else set()) | ({E4M3, E5M2} if number >= 89 else set())
        assert warpgroups == ({*sixteen, E4M3, E5M2} if isa is SM_90A else set())
        assert (Copy.CP_ASYNC in isa.copies) == (number >= 80)
        assert (Copy.TMA in isa.copies) == (number >= 90)
        assert isa.mma(FLOAT32) is None


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


def test_no_template_recognises_a_gpu_by_its_name() -> None:
    """Nor by its compute capability: a new GPU has an instruction set, and a file of costs that its name finds."""
    folder = Path(next(iter(onnxfuse.cuda.templates.__path__)))
    asks, costs = re.compile(r"\barch\.(name|number)\b(?!\})|\"sm_\d"), re.compile(r"\btables\.\w+\([^()]*\)")
    for file in folder.rglob("*.py"):
        lines = file.read_text(encoding="utf-8").splitlines()
        found = [line for line in lines if asks.search(costs.sub("", line))]
        assert not found, (file, found)


def test_supported_gpus_have_tensor_cores() -> None:
    assert all(arch.isa.mma(FLOAT16) for arch in SUPPORTED)


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
    emulate.library(HARNESS.replace("STORED", factors.stored)).multiply(*pointers)
    expected = a.astype(np.float64) @ b.astype(np.float64)
    for lane, register in itertools.product(range(32), range(4)):
        assert sums[lane, register] == expected[instruction.sums(lane, register)]
