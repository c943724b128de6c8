"""Several models in one call of `optimize`: each by itself, a line for each, and one verdict."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from onnxfuse.cli.compiled import megabytes
from onnxfuse.cli.console import output, print_json
from onnxfuse.cli.targets import Job
from onnxfuse.model.counted import counted
from onnxfuse.model.errors import EXPECTATION_NOT_MET, MISMATCH, OnnxfuseError
from onnxfuse.model.replacing import filling

if TYPE_CHECKING:
    from onnxfuse.tuning import Tuned

WORST = (5, 3, 2, MISMATCH, EXPECTATION_NOT_MET)
"""Exit codes, the one that counts first."""


@dataclass(frozen=True)
class Done:
    """What became of one model."""

    facts: dict[str, Any]
    """What `--json` prints of it."""
    tuned: "Tuned | None" = None


def run(todo: Sequence[Job], one: Callable[[Job], Done], *, as_json: bool) -> int:
    """Do each job; what is wrong with one model does not keep the others from being made. Returns the exit code."""
    every = [_tried(job, one) for job in todo]
    found = {facts.get("exit_code", EXPECTATION_NOT_MET) for facts in every if not facts["ok"]}
    code = next((c for c in WORST if c in found), 0)
    if as_json:
        print_json("optimize", {"ok": not code, "models": every})
        return code
    console, good = output(), sum(facts["ok"] for facts in every)
    console.print(f"[bold {'red' if code else 'green'}]optimized:[/] {good} of {counted(every, 'model')}")
    table = Table("model", "nodes", "fused", "size", "seconds", "written to", box=None, pad_edge=False)
    table.header_style = "bold"
    for facts in every:
        table.add_row(*_row(facts))
    console.print(table)
    for facts in every:
        for line in (*facts.get("not_met", ()), *facts.get("why", ())):
            console.print(f"[bold red]{escape(facts['source'])}: not met:[/] {escape(line)}", soft_wrap=True)
        for note in facts.get("notes", ()):
            console.print(f"[yellow]{escape(facts['source'])}: note:[/] {escape(note)}", soft_wrap=True)
        if "precision" in facts:
            told = "; ".join(filter(None, (facts["precision"]["summary"], facts["precision"]["hint"])))
            console.print(f"{escape(facts['source'])}: precision: {escape(told)}", soft_wrap=True)
        if "error" in facts:
            console.print(f"[bold red]error:[/] {escape(facts['error'])}", soft_wrap=True)
            console.print(escape(facts["hint"]), style="dim", soft_wrap=True)
    return code


def _tried(job: Job, one: Callable[[Job], Done]) -> dict[str, Any]:
    assert job.target is not None
    try:
        with filling(job.target.parent):
            return one(job).facts
    except OnnxfuseError as error:
        return {
            "ok": False, "source": job.name, "target": None, "exit_code": error.exit_code, "error": f"{error}",
            "hint": error.hint,
        }  # fmt: skip


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    if "error" in facts:
        return (escape(facts["source"]), "", "", "", "", "[red]error[/]")
    nodes, size = facts["nodes"], facts["bytes"]
    return (
        escape(facts["source"]),
        f"{nodes['before']} -> {nodes['after']}",
        str(facts["undone"] if "undone" in facts else facts["fused_nodes"]),
        megabytes(size["after"]),
        f"{facts['seconds']:.1f}",
        "[red]not written[/]" if facts["target"] is None else escape(os.fspath(facts["target"])),
    )
