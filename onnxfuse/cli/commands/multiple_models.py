"""Several models in one call of `optimize`: each independent, one line each, and one verdict."""

import contextlib
import contextvars
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from onnxfuse.cli.base.console import print_result, printing
from onnxfuse.cli.base.targets import Job
from onnxfuse.files.atomic_write import filling
from onnxfuse.support import process_limits
from onnxfuse.support.errors import EXPECTATION_NOT_MET, OnnxfuseError, gravest
from onnxfuse.support.plurals import plural
from onnxfuse.support.screen import Blocks, Line, Rows, plain_table
from onnxfuse.support.units import megabytes

if TYPE_CHECKING:
    from onnxfuse.measure.tune import Tuned

FILES = 4
"""Largest number of open files per pending model: itself, its weights, its kernel pack, its measurements."""


@dataclass(frozen=True)
class JobResult:
    """Result of one model."""

    facts: dict[str, Any]
    """Its `--json` output."""
    tuned: "Tuned | None" = None


@dataclass(frozen=True)
class PendingModel:
    """A model that is written to a temporary file, but not yet in place."""

    pending: contextlib.ExitStack
    context: contextvars.Context
    """Separate context, so that models do not wait for each other."""

    def place(self) -> None:
        """Move it into place. Raises ModelError."""
        self.context.run(self.pending.close)

    def drop(self, error: BaseException) -> None:
        """Discard it."""
        self.context.run(self.pending.__exit__, type(error), error, error.__traceback__)


def run(todo: Sequence[Job], one: Callable[[Job, contextlib.ExitStack], JobResult], *, as_json: bool) -> int:
    """Run all jobs; a failing model does not stop the others. Returns the exit code.

    Outputs are put in place after results were printed; if that is impossible, all are discarded. Completed work
    survives an interrupt.
    """
    waiting: list[PendingModel] = []
    with printing() as tell, process_limits.open_files(FILES * len(todo)):
        try:
            every = [_run_job(job, one, waiting) for job in todo]
        except BaseException:  # also on a signal
            _place_all(waiting)
            raise
        code = gravest([facts.get("exit_code", EXPECTATION_NOT_MET) for facts in every if not facts["ok"]])
        try:
            facts = {"ok": not code, "models": every}
            tell(lambda: print_result("optimize", facts, _screen(every, code), as_json=as_json))
        except BaseException as error:
            for model in waiting:
                model.drop(error)
            raise
        _place_all(waiting)
    return code


def _place_all(waiting: Sequence[PendingModel]) -> None:
    """Put every model in place; the first failure is reported after all others are done."""
    errors: list[OnnxfuseError] = []
    for model in waiting:
        try:
            model.place()
        except OnnxfuseError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _screen(every: Sequence[dict[str, Any]], code: int) -> Blocks:
    """Yield the results of the models."""
    good = sum(facts["ok"] for facts in every)
    yield Line(f"[bold {'red' if code else 'green'}]optimized:[/] {good} of {plural(every, 'model')}", fold=True)
    table = plain_table("model", "nodes", "fused ops", "size", "seconds", "written to")
    for facts in every:
        table.add_row(*_row(facts))
    yield Rows(table)
    for facts in every:
        for line in facts.get("not_met", ()):
            yield Line(f"[bold red]{escape(facts['source'])}: not met:[/] {escape(line)}")
            for reason in facts["why"].get(line, ()):
                yield Line(f"  why: {escape(reason)}")
        for note in facts.get("notes", ()):
            yield Line(f"[yellow]{escape(facts['source'])}: note:[/] {escape(note)}")
        if "precision" in facts:
            precision_text = "; ".join(filter(None, (facts["precision"]["summary"], facts["precision"]["hint"])))
            yield Line(f"{escape(facts['source'])}: precision: {escape(precision_text)}")
        if "error" in facts:
            yield Line(f"[bold red]error:[/] {escape(facts['error'])}")
            yield Line(escape(facts["hint"]), style="dim")


def _run_job(
    job: Job, one: Callable[[Job, contextlib.ExitStack], JobResult], waiting: list[PendingModel]
) -> dict[str, Any]:
    """Return the result of one model, which is then pending."""
    context = contextvars.copy_context()
    try:
        result, pending = context.run(_run_pending, job, one)
    except OnnxfuseError as error:
        return {
            "ok": False, "source": job.name, "target": None, "exit_code": error.exit_code, "error": f"{error}",
            "hint": error.hint,
        }  # fmt: skip

    waiting.append(PendingModel(pending, context))
    return result.facts


def _run_pending(
    job: Job, one: Callable[[Job, contextlib.ExitStack], JobResult]
) -> tuple[JobResult, contextlib.ExitStack]:
    assert job.target is not None
    with contextlib.ExitStack() as pending:
        pending.enter_context(filling(job.target.parent))
        result = one(job, pending)
        return result, pending.pop_all()


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    if "error" in facts:
        return (escape(facts["source"]), "", "", "", "", "[red]error[/]")
    nodes, size, unwritten = facts["nodes"], facts["bytes"], "not written" if facts["ok"] else "[red]not written[/]"
    return (
        escape(facts["source"]),
        f"{nodes['before']} -> {nodes['after']}",
        str(facts["undone"] if "undone" in facts else facts["fused_nodes"]),
        megabytes(size["after"]),
        f"{facts['seconds']:.1f}",
        unwritten if facts["target"] is None else escape(os.fspath(facts["target"])),
    )
