"""What a calibration measures, and what it makes of the times: fits, and judgement on problems held out."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np

from onnxfuse import cuda
from onnxfuse.cuda.costs import library, tables
from onnxfuse.cuda.costs.roofline import Roofline
from onnxfuse.cuda.costs.tables import Card
from onnxfuse.cuda.dispatch.dispatch import planner_of
from onnxfuse.cuda.dispatch.estimates import estimates
from onnxfuse.cuda.isa.factors import FLOAT16
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.traffic import bytes_of
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.attention import costs as attention
from onnxfuse.cuda.templates.attention import plan as attention_plan
from onnxfuse.cuda.templates.attention import work as attention_work
from onnxfuse.cuda.templates.gemm import costs as gemm
from onnxfuse.cuda.templates.gemm import plan as gemm_plan
from onnxfuse.cuda.templates.gemm.variant import Block, GemmTile, GemmVariant
from onnxfuse.cuda.templates.memory_bound import costs as memory_bound
from onnxfuse.support.errors import NoPlanError
from onnxfuse.support.integer_parts import text_of
from onnxfuse.symbolic.element_types import TYPES
from tools.calibrate import costs_file, problems
from tools.calibrate.fit import Fit, fitted
from tools.calibrate.problems import FLOAT, HALF, Problem
from tools.calibrate.times import LIBRARY, Time, Times, digest

GAINED = 1e-3
"""Mean regret that a size must gain to be changed."""
LEAST_SAMPLES = 6
"""Minimum times of a tile for a fit of its five numbers; with fewer its cost stays as it was."""

HELD_OUT: Mapping[str, tuple[Callable[[np.random.Generator, int], Iterable[Problem]], int]] = {
    "products": (problems.held_out_products, 200),
    "skinny": (problems.held_out_skinny, 60),
    "attentions": (problems.held_out_attentions, 60),
    "convolutions": (problems.held_out_convolutions, 60),
    "memory_bound": (problems.held_out_memory_bound, 60),
}
"""Problems that no cost was fitted to, and how many of each kind judge the choice."""

WITHOUT_CHOICE: Mapping[str, tuple[Callable[[np.random.Generator, int], Iterable[Problem]], int]] = {
    "depthwise": (problems.held_out_depthwise, 60),
}
"""Problems that have one variant each: there is no choice to judge, but a time."""

PARTS = {
    "gemm": ("products", "skinny"), "attention": ("attentions",), "convolution": ("convolutions", "depthwise"),
    "memory": ("memory_bound",),
}  # fmt: skip
"""Kinds of problems by the part of a calibration that measures them; one part may run while another one does."""

SIZES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "attentions": {
        "attention.short": (64, 96, 128, 160, 192, 224, 256, 384),
        "attention.few_rows": (0, 1152, 4608, 18432),
        "attention.together_keys": (1024, 2048, 4096),
        "attention.few.least_keys": (128, 192, 256, 320),
    },
    "memory_bound": {"small.elements": (256, 512, 1024, 2048, 4096), "small.threads": (64, 128, 256)},
}
"""Sizes at which another kernel or partition becomes the faster one, and the values that are tried, by the kind of
problems that tell: other draws of these, of which each choice by one of the values is timed."""

DRAWN_FOR_SIZES = 120
"""Problems from which the sizes of a kind are found."""

LIBRARY_KERNELS = (
    "product_float16", "product_tf32", "product_float32", "convolution_float16", "depthwise_float16",
    "attention_float16", "attention_tf32",
)  # fmt: skip
"""What the problems have a library's kernel for."""
BEFORE = Roofline(5.0, 3.0, 100.0)
"""Where the fit of one begins that was not measured before."""

SWEEP = "sweep"
"""Kind of the problems from which costs are fitted."""


class DeadGpuError(Exception):
    """A kernel broke this process's GPU context: no further one can run in it."""


@dataclass(frozen=True)
class Request:
    """A problem, and by which variants it shall be timed."""

    kind: str
    problem: Problem
    variants: tuple[Variant | None, ...]

    @property
    def name(self) -> str:
        """Its name among the measured times."""
        return name_of(self.kind, self.problem)


@dataclass(frozen=True)
class Sample:
    """A problem whose time depends on a row."""

    name: str
    """Its name among the measured times."""
    variant: str
    """The variant's name among these, or the digest of what was launched."""
    estimate: Callable[[Any], float]
    """Returns the microseconds by a row."""

    def time(self, times: Times) -> Time | None:
        """Return the measured time; None without one."""
        known = times.get(self.name, {})
        return known.get(self.variant) or next((t for t in known.values() if t.launch == self.variant), None)


@dataclass(frozen=True)
class Table:
    """One table of rows of the cost file."""

    name: str
    rows: Mapping[Any, Any]
    samples: Callable[[Any], Iterable[Sample]]
    """Returns what tells of a row, by its key."""
    starts: Callable[[Any], Iterable[Any]] = lambda row: (row,)
    """Returns where the fit of a row begins: at several numbers if the estimate has several valleys."""


@dataclass(frozen=True)
class Regret:
    """How much more time the choice takes than the fastest variant, on problems held out."""

    median: float
    mean: float
    p95: float
    count: int
    unknown: int
    """Problems whose choice was not among the measured variants."""

    def __str__(self) -> str:
        unknown = f", the choice of {self.unknown} more was not measured" if self.unknown else ""
        return f"regret {self.median:.1%} in the median, {self.p95:.1%} at the 95th percentile of {self.count}{unknown}"


@dataclass(frozen=True)
class Calibration:
    """A card's costs."""

    text: str
    """The cost file."""
    fits: Mapping[str, Mapping[str, Fit[Any]]]
    """By table and row."""
    regrets: Mapping[str, Regret]
    """By kind of problem."""


def gemm_sweeps(arch: Arch) -> Iterator[tuple[str, Mapping[Any, Any], list[Problem]]]:
    """Yield the name, the rows and the problems of each table of matrix products that an architecture has."""
    swept = {
        "float16": problems.swept(HALF, exact=False), "tf32": problems.swept(FLOAT, exact=False),
        "exact": problems.swept(FLOAT, exact=True),
    }  # fmt: skip
    if arch.isa.wgmma(FLOAT16) is not None:
        wgmma = gemm.wgmma()
        for name, rows in (("float16", wgmma.float16), ("tf32", wgmma.tf32), ("exact", wgmma.exact)):
            yield f"gemm.wgmma.{name}", rows, swept[name]
    mma = gemm.mma(arch)
    yield "gemm.mma.rounded", mma.rounded, swept["float16"]
    yield "gemm.mma.exact", mma.exact, swept["exact"]


def gemm_table(arch: Arch, name: str, rows: Mapping[Any, Any], swept: Sequence[Problem]) -> Table:
    """Return a table of tiles or blocks, of which each problem that one can compute tells."""

    def samples(part: GemmTile | Block) -> Iterator[Sample]:
        for problem in swept:
            estimate = _estimator(problem, arch, part)
            if estimate(rows[part]) < np.inf:
                yield Sample(name_of(SWEEP, problem), str(_variant(part)), estimate)

    return Table(name, rows, samples)


def tables_of(arch: Arch) -> Iterator[Table]:
    """Yield all tables that are fitted on an architecture."""
    for name, rows, swept in gemm_sweeps(arch):
        yield gemm_table(arch, name, rows, swept)
    yield memory_times(arch)
    yield attention_times(arch)
    yield library_times(arch)


def memory_times(arch: Arch, count: int = DRAWN_FOR_SIZES) -> Table:
    """Return the times of memory-bound kernels, of which the plan's own choice on drawn problems tells."""
    drawn = drawn_for_sizes("memory_bound", count)

    def samples(row: str) -> Iterator[Sample]:
        for problem in drawn:
            if problem.op.template == row:
                plan = cuda.plan(problem.op, problem.shapes, True, arch)
                size = bytes_of(problem.op, problem.shapes, plan.output_shapes)
                estimate = partial(_roofline, size=size, operations=0.0)
                yield Sample(name_of(f"{SWEEP} memory_bound", problem), digest(plan), estimate)

    return Table("times.memory_bound", vars(memory_bound.times_of(arch)), samples, _roofline_starts)


def attention_times(arch: Arch, count: int = DRAWN_FOR_SIZES) -> Table:
    """Return the times of attention's kernels, of which the choices of each on drawn problems tell."""
    drawn = drawn_for_sizes("attentions", count)

    def samples(row: str) -> Iterator[Sample]:
        for problem in drawn:
            mine = attention_work.work(problem.op, problem.shapes)
            size, operations = attention_plan.work_of(mine, problem.shapes)
            for variant in attention_plan.candidates(problem.op, problem.shapes, arch):
                kernel = attention_plan.kernel(mine, True, arch, variant.queries)
                suffix = "_float32" if mine.parts.element_bytes > 2 else ""
                if kernel + suffix == row:
                    estimate = partial(_roofline, size=size, operations=operations)
                    yield Sample(name_of(f"{SWEEP} attentions", problem), str(variant), estimate)

    return Table("times.attention", vars(attention.times_of(arch)), samples, _roofline_starts)


def library_times(arch: Arch) -> Table:
    """Return the times of NVIDIA's libraries, of which all problems tell that they have a kernel for."""

    def samples(row: str) -> Iterator[Sample]:
        for kind, problem in _in_library():
            size, operations, name = library_work(problem)
            if name == row:
                estimate = partial(_roofline, size=size, operations=operations)
                yield Sample(name_of(kind, problem), LIBRARY, estimate)

    known = library.times(arch.name).kernels
    return Table(
        "times.library.kernels", {**dict.fromkeys(LIBRARY_KERNELS, BEFORE), **known}, samples, _roofline_starts
    )


@cache
def _in_library() -> tuple[tuple[str, Problem], ...]:
    """Return the problems that a library has a kernel for, and their kinds: those that judge our choices, too, as no
    choice among our kernels depends on its times."""
    arithmetic = ((HALF, False), (FLOAT, False), (FLOAT, True))
    judging = {**HELD_OUT, **WITHOUT_CHOICE}.items()
    told = (
        *((SWEEP, problem) for dtype, exact in arithmetic for problem in problems.swept(dtype, exact=exact)),
        *((f"{SWEEP} {kind}", problem) for kind in HELD_OUT for problem in drawn_for_sizes(kind)),
        *((kind, problem) for kind, (draw, count) in judging for problem in draw(np.random.default_rng(0), count)),
    )
    return tuple((kind, problem) for kind, problem in told if problem.library is not None)


def library_work(problem: Problem) -> tuple[int, float, str]:
    """Return the bytes that a library's kernel moves, its operations, and the name of its times."""
    known, op = problem.library, problem.op
    assert known is not None
    arithmetic = "float16" if op.inputs[0] == HALF else "float32" if known.exact else "tf32"
    x, w, *_ = problem.shapes
    output = _output(problem)
    read = problem.shapes[: 3 if known.function == "attention" else 2]
    size = sum(map(math.prod, (*read, output))) * TYPES[op.inputs[0]].size
    match known.function:
        case "attention":
            share = 0.5 if known.causal else 1.0
            return size, 4 * x[0] * x[1] * w[1] * x[2] * share, f"attention_{arithmetic}"
        case "product":
            return size, 2 * math.prod(output) * x[-1], f"product_{arithmetic}"
        case _ if known.groups > 1:
            return size, 2 * math.prod(output) * math.prod(w[:2]), f"depthwise_{arithmetic}"
        case _:
            return size, 2 * math.prod(output) * math.prod(w[1:]), f"convolution_{arithmetic}"


def _output(problem: Problem) -> tuple[int, ...]:
    known, (x, w, *_) = problem.library, problem.shapes
    assert known is not None
    if known.function == "attention":
        return x
    if known.function == "product":
        return x[0], w[0]
    window = w[:2] if known.groups > 1 else w[1:3]
    rows, columns = ((n + 2 * known.pad - k) // known.stride + 1 for n, k in zip(x[1:3], window, strict=True))
    return x[0], rows, columns, known.groups if known.groups > 1 else w[0]


def _roofline_starts(row: Roofline) -> Iterator[Roofline]:
    """Yield rows of more and of less bandwidth and operations: which of them bounds a problem depends on both."""
    for less, more in product((1.0, 0.5, 2.0), (1.0, 0.25, 4.0)):
        yield replace(row, bandwidth=row.bandwidth * less, operations=row.operations * more)


def _roofline(row: Roofline, size: int, operations: float) -> float:
    return row.microseconds(size, operations)


def name_of(kind: str, problem: Problem) -> str:
    """Return the name of a problem among the measured times."""
    return f"{kind} {problem.name}"


def requests(arch: Arch, part: str, share: float = 1.0) -> Iterator[Request]:
    """Yield what a part of a calibration measures: first what costs are fitted to, then a share of what judges them."""
    if part == "gemm":
        wanted: dict[str, tuple[Problem, list[Variant]]] = {}
        for _, rows, swept in gemm_sweeps(arch):
            for row in rows:
                for problem in _fitting(swept, row, rows[row], arch):
                    wanted.setdefault(problem.name, (problem, []))[1].append(_variant(row))
        for problem, variants in wanted.values():
            yield Request(SWEEP, problem, tuple(dict.fromkeys(variants)))
    for kind in PARTS[part]:
        draw, count = {**HELD_OUT, **WITHOUT_CHOICE}[kind]
        for problem in draw(np.random.default_rng(0), max(1, round(count * share))):
            yield Request(kind, problem, _candidates(problem, arch))
        if kind in SIZES:
            yield from choices_by_sizes(drawn_for_sizes(kind), kind, arch, SIZES[kind])


@cache
def drawn_for_sizes(kind: str, count: int = DRAWN_FOR_SIZES) -> tuple[Problem, ...]:
    """Return the problems from which the sizes of a kind are found; none judges them."""
    draw, _ = HELD_OUT[kind]
    return tuple(draw(np.random.default_rng(1), count))


def choices_by_sizes(
    drawn: Sequence[Problem], kind: str, arch: Arch, sizes: Mapping[str, tuple[int, ...]]
) -> Iterator[Request]:
    """Yield the choices of the plans of problems, by each value of a kind's sizes: by their names as variants."""
    chosen: dict[Problem, dict[Variant | None, None]] = {problem: {} for problem in drawn}
    named = {problem: _by_launch(problem, arch) for problem in drawn}
    for values in product(*sizes.values()):
        text = tables.source(arch.name)
        for size, value in zip(sizes, values, strict=True):
            text = _with_size(text, size, value)
        with tables.substituted(arch.name, text):
            for problem, variants in chosen.items():
                launch = cuda.plan(problem.op, problem.shapes, True, arch).configuration
                if launch in named[problem]:
                    variants[named[problem][launch]] = None
    for problem, variants in chosen.items():
        yield Request(f"{SWEEP} {kind}", problem, tuple(variants))


def _by_launch(problem: Problem, arch: Arch) -> dict[object, Variant | None]:
    """Return the candidates by what they launch; by a variant that says it, where one does."""
    found: dict[object, Variant | None] = {}
    for variant in (*planner_of(problem.op).candidates(problem.op, problem.shapes, arch), None):
        with suppress(NoPlanError):
            found.setdefault(cuda.plan(problem.op, problem.shapes, True, arch, variant).configuration, variant)
    return found


def _with_size(text: str, size: str, value: int) -> str:
    section, name = size.rsplit(".", 1)
    return costs_file.with_value(text, section, name, str(value))


def fit_sizes(
    text: str, kind: str, drawn: Sequence[Problem], arch: Arch, times: Times, sizes: Mapping[str, tuple[int, ...]]
) -> tuple[str, dict[str, int]]:
    """Return a cost file by whose sizes of a kind the choices take the least time, one size after the other, and what
    changed; a size by which nothing is gained stays."""
    found: dict[str, int] = {}

    def loss(candidate: str) -> tuple[float, float]:
        with tables.substituted(arch.name, candidate):
            one = regret(f"{SWEEP} {kind}", drawn, arch, times)
        return (np.inf, np.inf) if one is None else (one.unknown, one.mean)

    unknown, least = loss(text)
    for size, values in sizes.items():
        for value in values:
            missed, mean = loss(_with_size(text, size, value))
            if missed <= unknown and mean < least - GAINED:
                unknown, least, found[size] = missed, mean, value
        if size in found:
            text = _with_size(text, size, found[size])
    return text, found


def _candidates(problem: Problem, arch: Arch) -> tuple[Variant | None, ...]:
    """Return the variants to time, the plan's own choice first: by what it chooses, where a variant says that."""

    def launch(variant: Variant | None) -> object:
        return cuda.plan(problem.op, problem.shapes, True, arch, variant).configuration

    own, *others = cuda.candidates(problem.op, problem.shapes, arch)
    named = (e.variant for e in estimates(problem.op, problem.shapes, arch) if e.chosen)
    return (next((v for v in named if launch(v) == launch(own)), own), *others)


def fit_table(table: Table, times: Times) -> dict[str, Fit[Any]]:
    """Return the fit of each row of a table that has enough times."""
    fits: dict[str, Fit[Any]] = {}
    for part, cost in table.rows.items():
        known = [(sample.estimate, time.mean) for sample in table.samples(part) if (time := sample.time(times))]
        if len(known) >= LEAST_SAMPLES:
            formulas, measured = zip(*known, strict=True)
            found = (fitted(start, formulas, measured) for start in table.starts(cost))
            fits[part if isinstance(part, str) else text_of(part)] = min(found, key=lambda fit: fit.residual)
    return fits


def _variant(part: GemmTile | Block) -> GemmVariant:
    return GemmVariant(tile=part) if isinstance(part, GemmTile) else GemmVariant(block=part)


def _estimator(problem: Problem, arch: Arch, part: GemmTile | Block) -> Callable[[Any], float]:
    return gemm_plan.estimator(problem.op, problem.shapes, arch, _variant(part))


def _fitting(swept: Iterable[Problem], part: Any, cost: Any, arch: Arch) -> list[Problem]:
    """Return the problems that a tile or block can compute."""

    def fits(problem: Problem) -> bool:
        try:
            cuda.plan(problem.op, problem.shapes, True, arch, _variant(part))
        except NoPlanError:
            return False
        return _estimator(problem, arch, part)(cost) < np.inf

    return [problem for problem in swept if fits(problem)]


def regret(kind: str, held_out: Iterable[Problem], arch: Arch, times: Times) -> Regret | None:
    """Return how much more time the plans take than the fastest variants, relative to these; None without times.

    Which variant is fastest is said by the first measurement of each, how much faster by the second: among equal ones
    the fastest of a single measurement would be the luckiest.
    """
    ratios, unknown = [], 0
    for problem in held_out:
        found = times.get(name_of(kind, problem), {})
        if len(measured := [time for name, time in found.items() if name != LIBRARY]) < 2:
            continue
        chosen = digest(cuda.plan(problem.op, problem.shapes, True, arch))
        own = next((time for time in measured if time.launch == chosen), None)
        if own is None:
            unknown += 1
        else:
            ratios.append(max(0.0, own.second / min(measured, key=lambda time: time.first).second - 1))
    if not ratios:
        return None
    return Regret(
        float(np.median(ratios)), float(np.mean(ratios)), float(np.percentile(ratios, 95)), len(ratios), unknown
    )


def calibrate(
    arch: Arch,
    card: Card,
    times: Times,
    *,
    table_of: Callable[[Arch], Iterable[Table]] = tables_of,
    held_out: Mapping[str, tuple[Callable[[np.random.Generator, int], Iterable[Problem]], int]] = HELD_OUT,
    progress: Callable[[str], None] = lambda line: None,
) -> Calibration:
    """Return the costs of a card, from its times. What is not fitted, or has no times, stays as its file has it, or is
    like the file of the reference.

    Residuals and regrets become part of the file, section `[calibration]`.
    """
    text = tables.source(arch.name) or f'like = "{tables.REFERENCE}"\n'
    known = asdict(tables.card(arch.name)) if tables.source(arch.name) else {}
    for name, value in asdict(card).items():
        if known.get(name) == value:
            continue
        shown = f'"{value}"' if isinstance(value, str) else value.isoformat() if name == "date" else f"{value}"
        text = costs_file.with_value(text, "card", name, shown)
    fits: dict[str, Mapping[str, Fit[Any]]] = {}
    for table in table_of(arch):
        fits[table.name] = found = fit_table(table, times)
        text = costs_file.with_table(text, table.name, {key: asdict(one.row) for key, one in found.items()})
        if found:
            residual = float(np.median([one.residual for one in found.values()]))
            text = costs_file.with_value(text, "calibration.residual", table.name, f"{residual:.4f}")
            progress(f"{table.name}: {len(found)} of {len(table.rows)} rows fitted, residual {residual:.1%}")
    for kind, sizes in SIZES.items():
        if any(name.startswith(f"{SWEEP} {kind} ") for name in times):
            text, changed = fit_sizes(text, kind, drawn_for_sizes(kind), arch, times, sizes)
            progress(f"{kind}: {', '.join(f'{name} {value}' for name, value in changed.items()) or 'sizes stay'}")
    regrets: dict[str, Regret] = {}
    for kind, (draw, count) in held_out.items():
        drawn = list(draw(np.random.default_rng(0), count))
        before = regret(kind, drawn, arch, times)
        with tables.substituted(arch.name, text):
            if before is None or (after := regret(kind, drawn, arch, times)) is None:
                progress(f"{kind}: not measured")
                continue
        regrets[kind] = after
        progress(f"{kind}: {after}; by the costs before {before}")
    rows = {kind: {k: round(v, 4) for k, v in asdict(one).items()} for kind, one in regrets.items()}
    text = costs_file.with_table(text, "calibration.regret", rows)
    return Calibration(text, fits, regrets)
