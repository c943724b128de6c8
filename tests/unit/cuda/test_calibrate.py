"""`python -m tools.calibrate` without a GPU: known costs plus noise are found again, written, and judged."""

import datetime
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from onnxfuse import cuda
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.dispatch.estimates import estimates
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.gemm import costs as gemm
from onnxfuse.cuda.templates.gemm import plan as gemm_plan
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant
from onnxfuse.support.integer_parts import text_of
from tools.calibrate import costs_file, problems
from tools.calibrate.calibration import HELD_OUT, Table, calibrate, fit_table, regret
from tools.calibrate.fit import fitted
from tools.calibrate.problems import HALF, Problem

H200, A100 = Arch("sm_90a", 132), Arch("sm_80", 108)
CARD = replace(tables.card("sm_80"), driver="600.1", date=datetime.date(2027, 1, 2), bandwidth=1.9)


class SyntheticGpu:
    """Times of the estimate by known costs, with noise, the same each time."""

    def __init__(self, rows: dict[Any, Any], arch: Arch, noise: float = 0.01) -> None:
        self.rows, self.arch, self.noise = rows, arch, noise
        self.times: dict[tuple[str, Variant], float] = {}

    def __call__(self, problem: Problem, variant: Variant | None) -> float | None:
        if variant is None:
            variant = next(e.variant for e in estimates(problem.op, problem.shapes, self.arch) if e.chosen)
        assert isinstance(variant, GemmVariant)
        cost = self.rows.get(getattr(variant, "tile", None) or getattr(variant, "block", None))
        if cost is None:
            return None
        key = (problem.name, variant)
        if key not in self.times:
            time = gemm_plan.estimator(problem.op, problem.shapes, self.arch, variant)(cost)
            self.times[key] = time * (1 + self.noise * np.random.default_rng(len(self.times)).standard_normal())
        return self.times[key]


def scaled(row: Any, random: np.random.Generator) -> Any:
    """Return a cost whose numbers are each up to twice or half as large."""
    numbers = {k: v * 2 ** random.uniform(-1, 1) for k, v in vars(row).items() if isinstance(v, float)}
    return replace(row, **numbers)


@pytest.mark.parametrize("part", [GemmTile(128, 128, 1), GemmTile(64, 64, 1), Block(64, 128, 2, 2)], ids=str)
def test_known_costs_are_found_again(part: GemmTile | Block) -> None:
    """From numbers up to twice off, by times with noise of 1%: estimates agree with the truth."""
    arch = H200 if isinstance(part, GemmTile) else A100
    rows: Mapping[Any, Any] = gemm.wgmma().float16 if isinstance(part, GemmTile) else gemm.mma(arch).rounded
    truth, start = rows[part], scaled(rows[part], np.random.default_rng(1))
    gpu = SyntheticGpu({part: truth}, arch)
    swept = problems.swept(HALF, exact=False)
    fit = fit_table(Table("here", {part: start}, swept), arch, gpu)[text_of(part)]
    assert fit.residual < 0.015
    assert fit.count > 20
    variant = next(v for _, v in gpu.times)
    assert isinstance(variant, GemmVariant)
    for problem in swept:
        mine, right = map(gemm_plan.estimator(problem.op, problem.shapes, arch, variant), (fit.row, truth))
        assert mine == pytest.approx(right, rel=0.05)


@dataclass(frozen=True)
class Line:
    base: float
    slope: float
    unused: float
    kept: int = 3


def _at(size: float, row: Line) -> float:
    return row.base + row.slope * size


def test_a_fit_ignores_what_disturbs_and_keeps_what_nothing_tells() -> None:
    """A time of twice the truth bends nothing; a number that no time depends on, and an integer, stay."""
    sizes = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    times = [3.0 + 0.5 * n for n in sizes]
    times[3] *= 2
    fit = fitted(Line(1.0, 1.0, 7.0), [partial(_at, n) for n in sizes], times)
    assert [fit.row.base, fit.row.slope] == pytest.approx([3.0, 0.5], rel=0.02)
    assert (fit.row.unused, fit.row.kept) == (7.0, 3)
    with pytest.raises(ValueError, match="no times"):
        fitted(Line(1.0, 1.0, 7.0), [], [])


def few_tables(arch: Arch) -> Iterator[Table]:
    yield Table("gemm.mma.rounded", gemm.mma(arch).rounded, problems.swept(HALF, exact=False)[::2])


def test_a_calibration_writes_a_file_whose_choice_is_good() -> None:
    """On a card whose times are not the H200's: the regret falls, and plans read the file that was written."""
    random = np.random.default_rng(3)
    gpu = SyntheticGpu({part: scaled(row, random) for part, row in gemm.mma(A100).rounded.items()}, A100)
    held_out = {"products": (lambda random, count: problems.held_out_products(random, count), 16)}
    before = regret(problems.held_out_products(np.random.default_rng(0), 16), A100, gpu)
    found = calibrate(A100, CARD, gpu, table_of=few_tables, held_out=held_out)
    assert found.regrets["products"].p95 < 0.1 < before.p95
    assert found.regrets["products"].median < 0.02
    facts = tomllib.loads(found.text)
    assert facts["like"] == "sm_90a"
    assert facts["card"]["driver"] == "600.1"
    assert facts["card"]["date"] == CARD.date
    assert facts["calibration"]["regret"]["products"]["count"] == found.regrets["products"].count > 10
    assert 0 < facts["calibration"]["residual"]["gemm.mma.rounded"] < 0.02
    usual = gemm.mma(A100)
    with tables.substituted("sm_80", found.text):
        assert tables.card("sm_80") == CARD
        now = gemm.mma(A100)
        assert now.rounded != usual.rounded
        assert [*now.rounded] == [*usual.rounded]
        assert now.exact == usual.exact
        assert tables.section("sm_80", "gemm.wgmma", gemm.WgmmaCosts) == gemm.wgmma()
    assert gemm.mma(A100) == usual


def test_a_file_keeps_its_comments_and_its_order() -> None:
    """A row takes the place of the one of its key, a new one the end of its table, a new table the end of the file."""
    text = '# why\n[a.b]\n# first\n"1x2" = { t = 1.0 } # said\nlimit = 3\n\n# next\n[c]\nd = 1\n'
    now = costs_file.with_table(text, "a.b", {"1x2": {"t": 2.0}, "3x4": {"t": 0.123456}})
    assert now == '# why\n[a.b]\n# first\n"1x2" = { t = 2 }\nlimit = 3\n"3x4" = { t = 0.1235 }\n\n# next\n[c]\nd = 1\n'
    assert tomllib.loads(costs_file.with_value(now, "e", "f g", "true"))["e"] == {"f g": True}


@pytest.mark.parametrize("kind", HELD_OUT)
def test_problems_held_out_have_candidates(kind: str) -> None:
    """On the H200 each has a plan; most have several variants to compare the choice with."""
    draw, count = HELD_OUT[kind]
    found = list(draw(np.random.default_rng(0), 4))
    assert count >= 60
    assert len(found) == 4
    assert sum(len(cuda.candidates(p.op, p.shapes, H200)) > 1 for p in found) >= 3
