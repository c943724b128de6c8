"""`python -m tools.calibrate` without a GPU: known costs plus noise are found again, written, and judged."""

import datetime
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse import cuda
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.roofline import Roofline
from onnxfuse.cuda.dispatch.estimates import estimates
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.attention.variant import AttentionVariant
from onnxfuse.cuda.templates.gemm import costs as gemm
from onnxfuse.cuda.templates.gemm import plan as gemm_plan
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant
from onnxfuse.support.integer_parts import text_of
from tools.calibrate import costs_file, problems
from tools.calibrate import times as times_file
from tools.calibrate.calibration import (
    HELD_OUT,
    SWEEP,
    Request,
    calibrate,
    choices_by_sizes,
    drawn_for_sizes,
    fit_sizes,
    fit_table,
    gemm_table,
    library_times,
    memory_times,
    regret,
)  # fmt: skip
from tools.calibrate.fit import fitted
from tools.calibrate.problems import HALF, Problem
from tools.calibrate.times import LIBRARY, Log, Time, digest

H200, A100 = Arch("sm_90a", 132), Arch("sm_80", 108)
CARD = replace(tables.card("sm_80"), driver="600.1", date=datetime.date(2027, 1, 2), bandwidth=1.9)


class SyntheticGpu:
    """Times of the estimate by known costs, with noise."""

    def __init__(self, rows: dict[Any, Any], arch: Arch, noise: float = 0.01) -> None:
        self.rows, self.arch, self.noise, self.random = rows, arch, noise, np.random.default_rng(2)

    def __call__(self, requests: Iterable[Request]) -> dict[str, dict[str, Time]]:
        return {r.name: {str(v): time for v in r.variants if (time := self.time(r, v))} for r in requests}

    def time(self, request: Request, variant: Variant | None) -> Time | None:
        problem = request.problem
        if variant is None:
            variant = next(e.variant for e in estimates(problem.op, problem.shapes, self.arch) if e.chosen)
        if not isinstance(variant, GemmVariant):
            return None
        cost = self.rows.get(getattr(variant, "tile", None) or getattr(variant, "block", None))
        if cost is None:
            return None
        time = gemm_plan.estimator(problem.op, problem.shapes, self.arch, variant)(cost)
        first, second = time * (1 + self.noise * self.random.standard_normal(2))
        return Time(digest(cuda.plan(problem.op, problem.shapes, True, self.arch, variant)), first, second)


def variant_of(part: GemmTile | Block) -> GemmVariant:
    return GemmVariant(tile=part) if isinstance(part, GemmTile) else GemmVariant(block=part)


def held_out(arch: Arch, count: int) -> list[Request]:
    drawn = problems.held_out_products(np.random.default_rng(0), count)
    return [Request("products", p, cuda.candidates(p.op, p.shapes, arch)) for p in drawn]


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
    swept, variant = problems.swept(HALF, exact=False), variant_of(part)
    requests = [Request(SWEEP, problem, (variant,)) for problem in swept]
    times = SyntheticGpu({part: truth}, arch)(requests)
    fit = fit_table(gemm_table(arch, "here", {part: start}, swept), times)[text_of(part)]
    assert fit.residual < 0.015
    assert fit.count > 20
    for problem in swept:
        mine, right = map(gemm_plan.estimator(problem.op, problem.shapes, arch, variant), (fit.row, truth))
        assert mine == pytest.approx(right, rel=0.05)


def test_the_speed_of_memory_bound_kernels_is_found_again() -> None:
    """From times by half the bandwidth: the row says so, and what is infinite stays."""
    table, random = memory_times(H200, 48), np.random.default_rng(0)
    truth = Roofline(2.5, 2.0)
    samples = [*table.samples("row")]
    times = {
        s.name: {"any": Time(s.variant, *(s.estimate(truth) * (1 + 0.01 * random.standard_normal(2))))} for s in samples
    }
    (fit,) = fit_table(table, times).values()
    assert (fit.row.start, fit.row.bandwidth) == (pytest.approx(2.5, rel=0.02), pytest.approx(2.0, rel=0.02))
    assert (fit.row.operations, fit.count) == (float("inf"), 36)


@pytest.mark.parametrize("row", ["product_float16", "product_float32", "convolution_float16", "depthwise_float16"])
def test_the_speed_of_a_library_is_found_from_nothing(row: str) -> None:
    """A kernel that was never measured gets a row, whose estimates are the times."""
    table, truth = library_times(H200), Roofline(3.0, 2.5, 250.0)
    times = {s.name: {LIBRARY: Time(LIBRARY, *[s.estimate(truth)] * 2)} for s in table.samples(row)}
    found = fit_table(replace(table, rows={row: table.rows[row]}), times)
    assert [*found] == [row]
    assert found[row].count >= 60
    assert found[row].residual < 0.01


def test_problems_of_every_kind_tell_of_a_library() -> None:
    """Also a run that times our choices alone fills its rows: drawn problems, and those that judge."""
    table = library_times(H200)
    names = [sample.name for sample in table.samples("product_tf32")]
    for kind in ("sweep products", "sweep skinny", "products", "skinny"):
        assert any(name.startswith(f"{kind} ") for name in names)
    assert {s.name.split(" ")[0] for s in table.samples("attention_float16")} == {"sweep", "attentions"}


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


FEW = problems.swept(HALF, exact=False)[::4]


def few_tables(arch: Arch) -> Iterator[Any]:
    yield gemm_table(arch, "gemm.mma.rounded", gemm.mma(arch).rounded, FEW)


def test_a_calibration_writes_a_file_whose_choice_is_good() -> None:
    """On a card whose times are not the H200's: the regret falls, and plans read the file that was written."""
    random = np.random.default_rng(3)
    gpu = SyntheticGpu({part: scaled(row, random) for part, row in gemm.mma(A100).rounded.items()}, A100)
    (table,) = few_tables(A100)
    wanted = held_out(A100, 16)
    variants = tuple(map(variant_of, table.rows))
    times = gpu([*wanted, *(Request(SWEEP, problem, variants) for problem in FEW)])
    kinds = {"products": (lambda random, count: [one.problem for one in wanted], 16)}
    before = regret("products", [one.problem for one in wanted], A100, times)
    found = calibrate(A100, CARD, times, table_of=few_tables, held_out=kinds)
    assert before is not None
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
        like = tables.section("sm_80", "gemm.wgmma", gemm.WgmmaCosts)
        assert like.unpack != gemm.wgmma().unpack  # scaled to the card
        assert replace(like, unpack=gemm.wgmma().unpack) == gemm.wgmma()
    assert gemm.mma(A100) == usual


def test_a_size_is_found_where_another_kernel_becomes_the_faster_one() -> None:
    """Where warpgroups are faster from 128 keys on, the kernel with resident keys is for shorter ones."""
    drawn, sizes = drawn_for_sizes("attentions", 12), {"attention.short": (64, 128, 256)}

    def time(problem: Problem, variant: Variant | None) -> Time:
        keys = problem.shapes[1][1]
        queries = variant.queries if isinstance(variant, AttentionVariant) else None
        by_warpgroups = queries is not None and queries.warpgroups > 0
        plan = cuda.plan(problem.op, problem.shapes, True, H200, variant)
        return Time(digest(plan), *[10.0 if by_warpgroups == (keys > 128) else 15.0] * 2)

    requests = [*choices_by_sizes(drawn, "attentions", H200, sizes)]
    times = {one.name: {str(v): time(one.problem, v) for v in one.variants} for one in requests}
    text, found = fit_sizes(tables.source("sm_90a"), "attentions", drawn, H200, times, sizes)
    assert found["attention.short"] == 128
    assert "short = 128" in text
    with tables.substituted("sm_90a", text):
        after = regret("sweep attentions", drawn, H200, times)
    before = regret("sweep attentions", drawn, H200, times)
    assert before is not None
    assert after is not None
    assert after.mean < before.mean
    assert fit_sizes(text, "attentions", drawn, H200, {}, sizes) == (text, {})


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


def test_measured_times_are_kept_as_they_come(tmp_path: Path) -> None:
    """A file goes on where it stopped, even in the midst of a line; parts of one GPU are one record, of two none."""
    one, two, time = tmp_path / "one", tmp_path / "two", Time("launch", 1.0, 2.0)
    log = Log(one, "sm_80", CARD)
    log.times("a", {"tile": time})
    log.failure("b", "why")
    with one.open("a") as file:
        file.write('{"problem": "c", "ti')
    assert Log(one, "sm_80", CARD).done == {"a", "b"}
    Log(one, "sm_80", CARD).times("d", {})
    Log(two, "sm_80", replace(CARD, bandwidth=1.8)).times("e", {"tile": time})
    record = times_file.read([one, two])
    assert (record.arch, record.card, record.failures) == ("sm_80", CARD, {"b": "why"})
    assert record.times == {"a": {"tile": time}, "d": {}, "e": {"tile": time}}
    Log(tmp_path / "three", "sm_80", replace(CARD, name="another")).times("e", {})
    with pytest.raises(ValueError, match="times of 2 GPUs"):
        times_file.read([one, tmp_path / "three"])
    with pytest.raises(ValueError, match="this GPU is another"):
        Log(one, "sm_80", replace(CARD, name="another"))


def test_the_fastest_is_not_the_luckiest() -> None:
    """Of equal variants the choice has no regret beyond noise: who is fastest and by how much are measured apart."""
    wanted, random = held_out(A100, 12), np.random.default_rng(0)

    def disturbed(problem: Problem, variant: Variant | None) -> Time:
        plan = cuda.plan(problem.op, problem.shapes, True, A100, variant)
        return Time(digest(plan), *(10 * (1 + 0.05 * random.standard_normal(2))))

    times = {one.name: {str(v): disturbed(one.problem, v) for v in one.variants} for one in wanted}
    found = regret("products", [one.problem for one in wanted], A100, times)
    assert found is not None
    assert found.median < 0.05
