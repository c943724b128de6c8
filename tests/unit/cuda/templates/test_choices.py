"""What plans choose where measurements of drawn problems said so: an H200's costs file says which, and how fast."""

from dataclasses import replace

import pytest

from bench.cases.attentions import Case
from bench.cases.ops import HALF
from onnxfuse import cuda
from onnxfuse.cuda import Arch, LaunchPlan
from onnxfuse.cuda.planning.arch import H200
from onnxfuse.cuda.templates.gemm import plan as gemm
from onnxfuse.cuda.templates.gemm.variant import GemmTile, GemmVariant, Strip
from tools.calibrate.problems import product


def planned(case: Case, arch: Arch = H200) -> LaunchPlan:
    return cuda.plan(case.op(), tuple(case.shapes()), True, arch)


@pytest.mark.parametrize(
    ("case", "blocks"),
    [
        (Case(13, 16, 159, 159, 32, HALF), 13 * 16 * 3),  # one pass: three would leave 1.6 blocks a multiprocessor
        (Case(32, 12, 197, 197, 64, HALF), 32 * 12),  # four passes leave 2.9
        (Case(1, 4, 77, 77, 64, HALF), 4 * 2),  # heads that fill half of the GPU have two blocks each
        (Case(32, 8, 77, 77, 64, HALF), 32 * 8),
        (Case(4, 12, 1, 159, 32, HALF), 4 * 12),  # few keys are not shared by blocks
        (Case(4, 16, 1, 307, 32, HALF), 4 * 16),  # to combine results would take longer than two blocks save
        (Case(15, 4, 1, 372, 64, HALF), 15 * 4),
        (Case(11, 4, 1, 1096, 32, HALF), 11 * 4 * 3),
    ],
)
def test_blocks_of_short_attentions(case: Case, blocks: int) -> None:
    """As many as keep the multiprocessors busy, and no more."""
    assert planned(case).grid[0] == blocks


@pytest.mark.parametrize(
    ("case", "by_warpgroups"),
    [
        (Case(2, 16, 246, 246, 64, HALF), True),
        (Case(10, 12, 180, 180, 64, HALF), True),
        (Case(14, 4, 177, 177, 64, HALF, causal=True), True),
        (Case(2, 4, 157, 157, 64, HALF, causal=True), False),  # too few blocks
        (Case(32, 12, 197, 197, 64, HALF), False),  # the last of four tiles of keys would be nearly empty
        (Case(13, 16, 159, 159, 32, HALF), False),  # heads that fill half a panel
    ],
)
def test_kernel_of_few_keys(case: Case, by_warpgroups: bool) -> None:
    """Whichever takes less by the estimates of both, for heads that fill a panel."""
    assert bool(planned(case).tensor_maps) == by_warpgroups


def test_blocks_that_are_alone_take_larger_steps() -> None:
    """A second resident block would not be there; 16 heads of 362 queries are 96 blocks."""
    alone = Case(1, 16, 362, 362, 64, HALF)
    assert "STEP = 128" in planned(alone).kernel.text
    assert "STEP = 64" in planned(replace(alone, batch=2)).kernel.text


def test_loads_of_lines_that_begin_inside_a_sector_are_a_limit() -> None:
    """A line of 1032 float16 begins in the middle of one: a step of any tile takes as long as its bytes."""
    variant = GemmVariant(tile=GemmTile(128, 64, 1))

    def step(k: int) -> float:
        few, many = (product(16384, 1472, terms, HALF) for terms in (k, 5 * k))
        times = [gemm.estimates(p.op, p.shapes, H200)[variant] for p in (few, many)]
        return (times[1] - times[0]) / (-(-5 * k // 64) - -(-k // 64))

    # By the costs: 192 rows of 128 bytes at 54,000 bytes per microsecond; 0.25 microseconds of products.
    assert step(1032) / step(1024) == pytest.approx(192 * 128 / 54_000 / 0.25, rel=1e-6)


@pytest.mark.parametrize(
    ("size", "chosen"),
    [
        # Lines that begin inside a sector: a block of 32 rows took 6.9 us, this tile 4.4.
        ((46, 2824, 664), GemmTile(64, 64, 1)),
        # Tiles of which one warpgroup has rows finish these alone: 4.4 us, a block of 32 rows 5.8.
        ((28, 11328, 448), GemmTile(128, 96, 1, 2, 1)),
        # Two teams of 192 sums a thread take long for a GELU: 9.7 us, one team 5.8.
        ((1371, 2216, 112), GemmTile(128, 192, 1, 2, 1)),
    ],
)
def test_tile_by_what_its_end_takes(size: tuple[int, int, int], chosen: GemmTile) -> None:
    """Warpgroups without rows finish nothing; a long epilogue beside many sums takes as long as for several tiles."""
    problem = product(*size)
    assert gemm.chosen(problem.op, problem.shapes, H200) == chosen


@pytest.mark.parametrize(
    ("n", "k", "columns"), [(12864, 256, 32), (1024, 128, 32), (448, 128, 16), (2752, 832, 16), (6848, 3520, 16)]
)
def test_strips_of_few_terms_are_wide(n: int, k: int, columns: int) -> None:
    """Where many are to be computed, their beginnings take the time."""
    problem = product(8, n, k)
    assert gemm.chosen(problem.op, problem.shapes, H200) == Strip(columns)
