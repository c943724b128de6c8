"""The result of a verification: the verdict, and the measures of each output in each case.

`Report.as_dict()` is what `--json` prints and other tools read. Its `schema` is incremented when a key is removed
or changes its meaning, but not for new keys.

| key | value |
|---|---|
| schema, ok, verdict | version of this format; whether it passed; ok, mismatch, undecided or blunt |
| summary, seconds | the verdict in one line; duration |
| provider, fused_provider | ONNX Runtime's provider of the original, of the fused model |
| truth | `kind` (float64, float32), `how` it was computed, `why` it is not float64 |
| tf32 | whether float32 outputs pass only because the session may round products: to TF32, or sums of float8 |
| half | whether outputs pass only if each half-precision value is rounded to its type, as ONNX defines it |
| wide | `compared` if half-precision models were also compared in float32; else why not, empty without half types |
| without_tf32 | why the CUDA sessions ran with `use_tf32` 0; empty if they did not |
| problems | non-numerical problems, one sentence each |
| outputs | the worst row of each output (of each tensor in it); `rows`: every output in every case |
| | `worst_case` in words; `also`: a law that the output breaks in another case |
| a row | `output`, `dtype`, `case` (index into `cases`), `fault` in words |
| | `part_of` (the output that contains the tensor `y[3]`), `element` (`y[0, 3]`, `y["cat"]`) at `where` |
| | `verdict` (ok, mismatch, undecided, blunt) of the case; in `outputs` that of all cases |
| | `judged_by` (budget, tolerance, contract; in `outputs` parts, too) |
| | `tolerance` (null, or the fields of `tolerance.Tolerated`) |
| | `contract` (null, or the fields of `lower_precision.Judged`: error, own and budget are relative RMS then) |
| | the numbers of `Measure`, its `budget` and `typical_budget` |
| | `difference` (the fields of `metrics.Difference`), and its max_abs, max_rel, cosine, rtol, atol |
| undecided, unverified | indices of cases with an output that could not be judged; outputs mostly not judged |
| blunt | outputs for which the original's own error would have hidden a wrong weight in every case |
| original_broken | outputs of the original that ONNX Runtime's optimizations break, one sentence for each cause |
| cases | `name`, `seed` (null for real inputs), `shapes`, `seconds`, `note` (why it was skipped) |
| kernels | per fused op: `op`, `rule`, `nodes`, `runs_as` (kernel, onnxruntime, body), `reason`, `calls`, `launches` |
| ran_as | how many fused ops ran as kernels, in a few words; empty if none ran as its body |
| never_ran | bodies of If, Loop and Scan that no case entered |
| searched | values of dynamic dimensions found by the size search |
| sizes, not_run | values of dynamic dimensions that were run; additional cases that were not run, and why |
| nan_weights | weights of the original that hold NaN, if outputs could not be judged |
| limits | limits: `seconds` for the cases, bytes of `memory` for the values of one |
| parts | null, or the fields of `quantized_parts.QuantizedParts`: of a model that rounds inside its parts are judged |
| precision | null, or how the file was converted to lower precision: then a row's `contract` judges it |
| crash | null, or the fields of `localization.CrashSite`: the op that ended the process or broke the GPU |
| bisection | null, or the fields of `localization.Localization`: the result of `--bisect` |

Non-finite numbers are strings: "inf", "-inf", "nan".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from onnxfuse.model.precision_record import PrecisionRecord
from onnxfuse.support.plurals import listed, plural
from onnxfuse.support.screen import Blocks, Screen
from onnxfuse.verification.report.localization import CrashSite, Localization
from onnxfuse.verification.report.quantized_parts import QuantizedParts
from onnxfuse.verification.report.rows import LEFT_OUT, CaseRow, KernelRow, OutputRow, Verdict, ran_as
from onnxfuse.verification.report.screen import case_text, screen

SCHEMA = 1
"""Version of `Report.as_dict()`, documented at the top of this file."""

BODIES_SHOWN = 3
"""Number of never-run bodies named in the verdict; the report lists all."""

MOSTLY = 0.5
"""An output that could not be judged in more than this share of the kinds of cases counts as unverified."""

SATURATES = (
    "the cause: this processor has no VNNI instructions, and its products of uint8 and int8 saturate (ONNX Runtime's "
    "option session.x64quantprecision=1 avoids that)"
)
"""Cause of a broken original, in words."""

WITHIN = {"contract": "contract for lower precision", "tolerance": "tolerance", "budget": "error budget"}
"""Verdict phrases by how the outputs were judged."""


@dataclass(frozen=True, repr=False)
class VerifyReport(Screen):
    """The result of `verify`. `ok` is the verdict."""

    provider: str
    """Execution provider of the original, and of the fused model unless `fused_provider` is another."""
    truth: str
    """`float64` or `float32`; empty if nothing was run."""
    truth_how: str
    """How the reference was computed."""
    truth_why: str
    """Why it is not float64."""
    cases: tuple[CaseRow, ...]
    rows: tuple[OutputRow, ...]
    """One row per output and compared case."""
    kernels: tuple[KernelRow, ...]
    problems: tuple[str, ...]
    """Non-numerical problems: inputs and outputs that differ, kernels that did not run, a run that failed."""
    seconds: float
    fused_provider: str = ""
    """Execution provider of the fused model if it differs."""
    tf32: bool = False
    """Whether float32 outputs were judged by the error of TF32 products: on CUDA, if they pass in no other way."""
    half: bool = False
    """Whether outputs were judged with each half-precision value rounded to its type, as ONNX defines its operators: on
    the CPU, where ONNX Runtime keeps float32 between them, if they pass in no other way."""
    wide: str = ""
    """`compared` if half-precision models were also compared in float32; else why not, if they hold a half type."""
    without_tf32: str = ""
    """Why the CUDA sessions ran with `use_tf32` 0, which rounds no float32 product; empty if they did not."""
    never_ran: tuple[str, ...] = ()
    """Bodies of If, Loop and Scan of the original that no case entered, and that are therefore unverified."""
    searched: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Values of dynamic dimensions found by a search, because the original accepted none of the default sizes."""
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Values of the dynamic dimensions that were run."""
    not_run: tuple[str, ...] = ()
    """Additional sizes and values that were not run, and why."""
    nan_weights: tuple[str, ...] = ()
    """Weights of the original that hold NaN, if outputs could not be judged."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Limits: `seconds` for the cases, bytes of `memory` for the values of one."""
    crash: CrashSite | None = None
    """Where the model crashed; None if it did not. Also listed among the problems."""
    bisection: Localization | None = None
    """Finding of `bisect`; None if not requested, or if nothing was wrong."""
    parts: QuantizedParts | None = None
    """What the parts of a quantized model show, on the original's own values; None if its outputs were judged."""
    saturating: tuple[str, ...] = ()
    """Outputs of the original that ONNX Runtime's optimizations break because products of uint8 and int8 saturate: on
    x86 processors without VNNI."""
    optimizers: Mapping[str, str] = field(default_factory=dict)
    """Outputs of the original that ONNX Runtime's optimizations break otherwise, with the optimizer that breaks them;
    empty if no single one does."""
    contract: PrecisionRecord | None = None
    """How the file was converted to lower precision; None if it was not, and the error budget applies."""

    @property
    def ok(self) -> bool:
        """Whether the verification passed: no problem, every output right in every case, most cases judged, and
        sharply."""
        return self.verdict == "ok"

    @property
    def verdict(self) -> Verdict:
        """`mismatch` if anything is wrong; else `undecided` or `blunt` if an output is; else `ok`."""
        verdicts = {self.verdict_of(row.output) for row in self.outputs}
        if self.problems or self.crash is not None or "mismatch" in verdicts:
            return "mismatch"
        if self.parts is not None:
            return "undecided" if self.parts.undecided else "ok"
        if not self.rows or "undecided" in verdicts:
            return "undecided"
        return "blunt" if "blunt" in verdicts else "ok"

    def verdict_of(self, output: str) -> Verdict:
        """Return the combined verdict of all cases on an output, or on a tensor in one."""
        if self.parts is not None and not self.parts.faults:
            return "undecided" if self.parts.undecided else "ok"
        return self._verdicts[output]

    @cached_property
    def _groups(self) -> Mapping[str, str]:
        """Judging key of each tensor: itself, or the whole output if some cases lack such an entry."""
        cases: dict[str, set[int]] = {}
        for row in self.rows:
            cases.setdefault(row.output, set()).add(row.case)
            cases.setdefault(row.owner, set()).add(row.case)
        return {r.output: r.output if len(cases[r.output]) == len(cases[r.owner]) else r.owner for r in self.rows}

    @cached_property
    def _verdicts(self) -> Mapping[str, Verdict]:
        """Combined verdicts of all cases on each tensor."""
        wrong = {r.output for r in self.rows if r.verdict == "mismatch"}
        rows: dict[str, list[OutputRow]] = {}
        for row in self.rows:
            rows.setdefault(self._groups[row.output], []).append(row)
        unverified, blunt = {*self.unverified}, set[str]()
        for group, group_rows in rows.items():
            # Outputs equal in every element need no judging; nor do those that are always zero.
            right = any(r.sharp for r in group_rows) or all(r.measure.identical or r.measure.empty for r in group_rows)
            if any(r.verdict == "blunt" for r in group_rows) and not right:
                blunt.add(group)
        return {
            name: "mismatch" if name in wrong
            else "undecided" if group in unverified
            else "blunt" if group in blunt
            else "ok"
            for name, group in self._groups.items()
        }  # fmt: skip

    @property
    def undecided(self) -> tuple[int, ...]:
        """Indices of the cases in which an output could not be judged; of an output without elements if it never had
        any."""
        return tuple(sorted({r.case for r in self._undecided_rows}))

    @property
    def blunt(self) -> tuple[str, ...]:
        """Outputs for which the original's own error would have hidden a wrong weight in every case."""
        blunt = (self._groups[r.output] for r in self.outputs if self.verdict_of(r.output) == "blunt")
        return tuple(dict.fromkeys(blunt))

    @cached_property
    def unverified(self) -> tuple[str, ...]:
        """Outputs that could not be judged in more than MOSTLY of the kinds of cases, at their shapes.

        Cases that differ by their seed alone count as one. An output without elements counts if no case yielded any.
        """
        judged: dict[str, dict[tuple[Any, ...], bool]] = {}
        open_rows = set(map(id, self._undecided_rows))
        for row in self.rows:
            if row.verdict == "undecided" and id(row) not in open_rows:
                continue
            case = self.cases[row.case]
            kinds = judged.setdefault(self._groups[row.output], {})
            kind = (case.name, *case.shapes.items())
            kinds[kind] = kinds.get(kind, False) or row.verdict != "undecided"
        open_ = {name: sum(not decided for decided in kinds.values()) for name, kinds in judged.items()}
        return tuple(name for name, kinds in judged.items() if open_[name] > MOSTLY * len(kinds))

    @property
    def original_broken(self) -> tuple[str, ...]:
        """What breaks outputs of the original: one sentence for each cause."""
        broken: dict[str, list[OutputRow]] = {}
        for row in self.rows:
            if row.measure.own_off:
                broken.setdefault(row.output, []).append(row)
        groups: dict[tuple[str, str], list[OutputRow]] = {}
        for name, rows in broken.items():
            follows = [r.measure.follows for r in rows]
            then = "the fused model is judged by what the original gives without it"
            if all(follows) if self.parts is not None else any(follows):
                then = "the fused model gives the same as the original"
            elif self.parts is not None:
                then = "the fused model is off as well, and judged by its parts"
            optimizer = self.optimizers.get(name)
            cause = f"optimizer {optimizer}" if optimizer else "default optimizations"
            then = f"{SATURATES}; {then}" if name in self.saturating else then
            groups.setdefault((cause, then), []).extend(rows)
        return tuple(self._broken_text(cause, rows, then) for (cause, then), rows in groups.items())

    def _broken_text(self, cause: str, rows: Sequence[OutputRow], then: str) -> str:
        """Return which outputs a cause brings off in how many cases, and what that means for the fused model."""
        ran = sum(not c.note for c in self.cases)
        worst = max(rows, key=lambda r: r.measure.own_off)
        largest: dict[str, float] = {}
        for row in rows:
            largest[row.output] = max(largest.get(row.output, 0.0), row.measure.own_off)
        off = ", ".join(
            f"{name} by {share:.0%} of its largest value" if math.isfinite(share) else f"{name} altogether"
            for name, share in largest.items()
        )
        wrong_in = f"{len({r.case for r in rows})} of {plural(ran, 'case')}"
        verb = "makes" if cause.startswith("optimizer") else "make"
        return (
            f"original broken: ONNX Runtime's {cause} {verb} the original wrong in {wrong_in}, {off} "
            f"(case {case_text(self.cases[worst.case])}); "
            f"without {'it' if verb == 'makes' else 'them'} the original is right; {then}"
        )

    @cached_property
    def _undecided_rows(self) -> list[OutputRow]:
        groups = self._groups
        had = {groups[r.output] for r in self.rows if not r.measure.empty}
        return [r for r in self.rows if r.verdict == "undecided" and not (r.measure.empty and groups[r.output] in had)]

    def screen(self) -> Blocks:
        """Return the verdict, the worst case of each output, and what to do next."""
        return screen(self)

    @cached_property
    def outputs(self) -> tuple[OutputRow, ...]:
        """The worst case of each output, in the order of the model's outputs: a mismatch, else the largest used share
        of the budget.

        Of a sequence, map or optional there is one for each tensor in it. A case in which nothing could be judged is
        chosen only if there is no better one. If parts decide, it is the case in which the output moved furthest.
        """
        by_name: dict[str, list[OutputRow]] = {}
        for row in self.rows:
            by_name.setdefault(row.output, []).append(row)
        by_parts = self.parts is not None and not self.parts.faults
        return tuple(max(rows, key=_distance if by_parts else _badness) for rows in by_name.values())

    @property
    def summary(self) -> str:
        """The verdict in one line."""
        run = sum(not c.note for c in self.cases)
        if self.parts is not None and not self.parts.faults:
            same = "same" if self.ok else "not shown to be the same"
            return f"{same} within the error budget, part by part: {self.parts.text}{self._left_out_text()}"
        if self.ok:
            within = {WITHIN[r.judged_by] for r in self.outputs}
            cases = plural(run, "case")
            outputs = plural(len({r.owner for r in self.outputs}), "output")
            scope = f"{outputs}, {f'{run - len(self.undecided)} of ' * bool(self.undecided)}"
            left_out = self._undecided_text("; ") + self._empty_text() + self._blunt_text() + self._left_out_text()
            same = "same" if self.contract is None else f"in {self.contract.precision}, as accurate as requested,"
            return f"{same} within the {' and the '.join(sorted(within))}: {scope}{cases}{left_out}"
        if self.crash is not None:
            return self.crash.text
        wrong = [r.output for r in self.outputs if r.verdict == "mismatch"]
        parts = [f"{listed(wrong)} out of budget"] if wrong else []
        parts += [f"{listed(self.unverified)} could not be judged"] if self.unverified else []
        parts += [f"{listed(self.blunt)} blunt"] if self.blunt else []
        parts += [plural(len(self.problems), "problem")] if self.problems else []
        verdict = "not the same" if wrong or self.problems else "not shown to be the same"
        texts = self._undecided_text(": ") + self._empty_text() + self._blunt_text() + self._left_out_text()
        return f"{verdict}: {'; '.join(parts) or 'nothing was compared'}{texts}"

    def _empty_text(self) -> str:
        """Return which outputs had no element in any case, or in some; empty if all had."""
        text = ""
        groups: dict[str, list[OutputRow]] = {}
        for row in self.rows:
            groups.setdefault(self._groups[row.output], []).append(row)
        for name, rows in groups.items():
            every, some = {r.case for r in rows}, {r.case for r in rows if not r.measure.empty}
            if not some:
                text += f"; nothing of {name} was compared: no case gave an element of it"
            elif len(some) < len(every):
                text += f"; {name} had no element in {len(every) - len(some)} of {plural(every, 'case')}"
        return text

    def _blunt_text(self) -> str:
        """Return how many cases were blunt, and how much so; empty if none was."""
        rows = [r for r in self.rows if r.verdict == "blunt"]
        if not rows:
            return ""
        worst = max(rows, key=lambda r: r.measure.own / r.measure.scale if r.measure.scale else 0.0)
        ran = sum(not c.note for c in self.cases)
        return (
            f"; blunt in {len({r.case for r in rows})} of {plural(ran, 'case')}: {worst.own_share}, "
            "in which a wrong weight would hide"
        )

    def _left_out_text(self) -> str:
        notes = [c.note for c in self.cases if c.note.startswith(LEFT_OUT)]
        text = f"; {plural(len(notes), 'case')} {notes[0]}" if notes else ""
        further = f" and {len(self.never_ran) - BODIES_SHOWN} more" * (len(self.never_ran) > BODIES_SHOWN)
        return text + (f"; never ran: {', '.join(self.never_ran[:BODIES_SHOWN])}{further}" if self.never_ran else "")

    def _undecided_text(self, before: str) -> str:
        """Return how many cases could not be judged and why, after `before`; empty if all could."""
        if not self.undecided:
            return ""
        rows = self._undecided_rows
        why = next((r.why_undecided for r in rows if not r.measure.empty), rows[0].why_undecided)
        ran = sum(not c.note for c in self.cases)
        return f"{before}{len(self.undecided)} of {plural(ran, 'case')} could not be judged: {why}"

    def _output(self, row: OutputRow) -> dict[str, Any]:
        """Return the facts of an output: those of its worst case, with the verdict of all cases, or of the parts."""
        verdict = self.verdict_of(row.output)
        by_parts = {} if self.parts is None or self.parts.faults else {"judged_by": "parts", "fault": ""}
        where = {"worst_case": case_text(self.cases[row.case]), "also": self.also(row)}
        return {**row.as_dict(), **where, **by_parts, "verdict": verdict}

    def also(self, worst: OutputRow) -> str:
        """Return the law that an output breaks in another case than its worst, and where; empty if there is none."""
        rows = (r for r in self.rows if r.output == worst.output and r.measure.broken and r.verdict == "mismatch")
        other = next(rows, None)
        if other is None or worst.measure.broken:
            return ""
        return f"{other.element}: {other.fault}, case {case_text(self.cases[other.case])}"

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as plain data for JSON."""
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "verdict": self.verdict,
            "summary": self.summary,
            "provider": self.provider,
            "fused_provider": self.fused_provider or self.provider,
            "truth": {"kind": self.truth, "how": self.truth_how, "why": self.truth_why},
            "tf32": self.tf32,
            "half": self.half,
            "wide": self.wide,
            "without_tf32": self.without_tf32,
            "problems": list(self.problems),
            "outputs": [self._output(r) for r in self.outputs],
            "rows": [r.as_dict() for r in self.rows],
            "cases": [c.as_dict() for c in self.cases],
            "undecided": list(self.undecided),
            "unverified": list(self.unverified),
            "blunt": list(self.blunt),
            "original_broken": list(self.original_broken),
            "kernels": [k.as_dict() for k in self.kernels],
            "ran_as": ran_as(self.kernels),
            "never_ran": list(self.never_ran),
            "searched": {name: list(sizes) for name, sizes in self.searched.items()},
            "sizes": {name: list(sizes) for name, sizes in self.sizes.items()},
            "not_run": list(self.not_run),
            "nan_weights": list(self.nan_weights),
            "limits": dict(self.limits),
            "crash": None if self.crash is None else self.crash.as_dict(),
            "bisection": None if self.bisection is None else self.bisection.as_dict(),
            "parts": None if self.parts is None else self.parts.as_dict(),
            "precision": None if self.contract is None else self.contract.as_dict(),
            "seconds": self.seconds,
        }


def _distance(row: OutputRow) -> float:
    """Return how far an output is from the original's, relative to its largest value."""
    return row.measure.difference.max_abs / (row.measure.scale or 1.0)


def _badness(row: OutputRow) -> tuple[int, float, float]:
    """Return what the worst case of an output has most of; of mismatches an error that is a number says most."""
    untested = row.verdict == "ok" and not row.sharp
    rank = 1 if untested else {"undecided": 0, "blunt": 2, "ok": 3, "mismatch": 4}[row.verdict]
    return rank, row.measure.used if row.judged_by == "budget" else row.severity, row.severity
