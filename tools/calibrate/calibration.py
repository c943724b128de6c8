"""Sweep, fit, and judgement on problems held out: everything of a calibration but the measuring itself."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from onnxfuse import cuda
from onnxfuse.cuda.costs import tables
from onnxfuse.cuda.costs.tables import Card
from onnxfuse.cuda.isa.factors import FLOAT16
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.gemm import costs as gemm
from onnxfuse.cuda.templates.gemm import plan as gemm_plan
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant
from onnxfuse.support.errors import NoPlanError
from onnxfuse.support.integer_parts import text_of
from tools.calibrate import costs_file, problems
from tools.calibrate.fit import Fit, fitted
from tools.calibrate.problems import FLOAT, HALF, Problem

Measure = Callable[[Problem, Variant | None], float | None]
"""Returns the microseconds of a problem by a variant (None: the plan's own choice); None if it does not run."""

Prepare = Callable[[Sequence[tuple[Problem, Variant | None]]], None]
"""Is told what will be measured next, so that it may compile all of it at once."""

LEAST_SAMPLES = 6
"""Minimum times of a tile for a fit of its five numbers; with fewer its cost stays as it was."""

HELD_OUT: Mapping[str, tuple[Callable[[np.random.Generator, int], Iterable[Problem]], int]] = {
    "products": (problems.held_out_products, 200),
    "attentions": (problems.held_out_attentions, 60),
    "convolutions": (problems.held_out_convolutions, 60),
    "memory_bound": (problems.held_out_memory_bound, 60),
}
"""Problems that no cost was fitted to, and how many of each kind judge the choice."""


@dataclass(frozen=True)
class Table:
    """One table of rows of the cost file."""

    name: str
    rows: Mapping[Any, Any]
    problems: Sequence[Problem]


@dataclass(frozen=True)
class Regret:
    """How much more time the choice takes than the fastest variant, on problems held out."""

    median: float
    p95: float
    count: int


@dataclass(frozen=True)
class Calibration:
    """A card's costs."""

    text: str
    """The cost file."""
    fits: Mapping[str, Mapping[str, Fit[Any]]]
    """By table and row."""
    regrets: Mapping[str, Regret]
    """By kind of problem."""


def gemm_tables(arch: Arch) -> Iterator[Table]:
    """Yield the tables of matrix products that an architecture has."""
    sweeps = {
        "float16": problems.swept(HALF, exact=False), "tf32": problems.swept(FLOAT, exact=False),
        "exact": problems.swept(FLOAT, exact=True),
    }  # fmt: skip
    if arch.isa.wgmma(FLOAT16) is not None:
        wgmma = gemm.wgmma()
        for name, rows in (("float16", wgmma.float16), ("tf32", wgmma.tf32), ("exact", wgmma.exact)):
            yield Table(f"gemm.wgmma.{name}", rows, sweeps[name])
    mma = gemm.mma(arch)
    yield Table("gemm.mma.rounded", mma.rounded, sweeps["float16"])
    yield Table("gemm.mma.exact", mma.exact, sweeps["exact"])


def fit_table(table: Table, arch: Arch, measure: Measure, prepare: Prepare = lambda _: None) -> dict[str, Fit[Any]]:
    """Return the fit of each row of a table that has enough times."""
    fits: dict[str, Fit[Any]] = {}
    swept = {part: _swept(table, part, arch) for part in table.rows}
    prepare([(problem, _variant(part)) for part, found in swept.items() for problem in found])
    for part, cost in table.rows.items():
        times = [(problem, measure(problem, _variant(part))) for problem in swept[part]]
        samples = [(problem, time) for problem, time in times if time is not None]
        if len(samples) >= LEAST_SAMPLES:
            estimates = [_estimator(problem, arch, part) for problem, _ in samples]
            fits[text_of(part)] = fitted(cost, estimates, [time for _, time in samples])
    return fits


def _variant(part: GemmTile | Block) -> GemmVariant:
    return GemmVariant(tile=part) if isinstance(part, GemmTile) else GemmVariant(block=part)


def _estimator(problem: Problem, arch: Arch, part: GemmTile | Block) -> Callable[[Any], float]:
    return gemm_plan.estimator(problem.op, problem.shapes, arch, _variant(part))


def _swept(table: Table, part: Any, arch: Arch) -> list[Problem]:
    """Return the problems that a tile or block can compute."""

    def fits(problem: Problem) -> bool:
        try:
            cuda.plan(problem.op, problem.shapes, True, arch, _variant(part))
        except NoPlanError:
            return False
        return _estimator(problem, arch, part)(table.rows[part]) < np.inf

    return [problem for problem in table.problems if fits(problem)]


def regret(held_out: Iterable[Problem], arch: Arch, measure: Measure, prepare: Prepare = lambda _: None) -> Regret:
    """Return how much more time the plans take than the fastest variants, relative to these.

    Raises ValueError if nothing was measured.
    """
    tried = [(problem, cuda.candidates(problem.op, problem.shapes, arch)) for problem in held_out]
    prepare([(problem, variant) for problem, variants in tried for variant in variants])
    ratios = []
    for problem, variants in tried:
        times = [time for v in variants if (time := measure(problem, v)) is not None]
        own = measure(problem, None)
        if own is not None and times:
            ratios.append(max(0.0, own / min(times) - 1))
    if not ratios:
        raise ValueError("none of the problems held out was measured")
    return Regret(float(np.median(ratios)), float(np.percentile(ratios, 95)), len(ratios))


def calibrate(
    arch: Arch,
    card: Card,
    measure: Measure,
    *,
    prepare: Prepare = lambda _: None,
    table_of: Callable[[Arch], Iterable[Table]] = gemm_tables,
    held_out: Mapping[str, tuple[Callable[[np.random.Generator, int], Iterable[Problem]], int]] = HELD_OUT,
    progress: Callable[[str], None] = lambda line: None,
) -> Calibration:
    """Return the costs of a card, from what `measure` says. What is not fitted stays as its file has it, or is like the
    file of the reference.

    Residuals and regrets become part of the file, section `[calibration]`.
    """
    text = tables.source(arch.name) or f'like = "{tables.REFERENCE}"\n'
    for name, value in asdict(card).items():
        shown = f'"{value}"' if isinstance(value, str) else value.isoformat() if name == "date" else f"{value}"
        text = costs_file.with_value(text, "card", name, shown)
    fits: dict[str, Mapping[str, Fit[Any]]] = {}
    for table in table_of(arch):
        fits[table.name] = found = fit_table(table, arch, measure, prepare)
        text = costs_file.with_table(text, table.name, {key: asdict(one.row) for key, one in found.items()})
        if found:
            residual = float(np.median([one.residual for one in found.values()]))
            text = costs_file.with_value(text, "calibration.residual", table.name, f"{residual:.4f}")
            progress(f"{table.name}: {len(found)} of {len(table.rows)} rows fitted, residual {residual:.1%}")
    regrets: dict[str, Regret] = {}
    with tables.substituted(arch.name, text):
        for kind, (draw, count) in held_out.items():
            regrets[kind] = one = regret(draw(np.random.default_rng(0), count), arch, measure, prepare)
            progress(f"{kind}: regret {one.median:.1%} in the median, {one.p95:.1%} at the 95th percentile")
    rows = {kind: {k: round(v, 4) for k, v in asdict(one).items()} for kind, one in regrets.items()}
    text = costs_file.with_table(text, "calibration.regret", rows)
    return Calibration(text, fits, regrets)
