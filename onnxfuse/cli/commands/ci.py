"""`onnxfuse ci`: optimize, verify and time the models of onnxfuse.toml, and check them against it and onnxfuse.lock."""

from contextlib import ExitStack
from typing import Unpack

from rich.console import Console
from rich.markup import escape

from onnxfuse.api.run.ci import CiResult, Outcome, checked
from onnxfuse.cli.base.console import output, plain_table, print_json, printing, working
from onnxfuse.cli.base.report_files import Outputs
from onnxfuse.options.commands import CiCommand
from onnxfuse.options.functions import CiChecks
from onnxfuse.options.schema import part

COLORS = {"ok": "green", "failed": "red", "error": "red"}


def command(outputs: Outputs, **given: Unpack[CiCommand]) -> int:
    """Run the command and print its result."""

    # Outputs and the lock are put in place last: if a report cannot be written, they remain unchanged.
    def tell() -> None:
        if given["as_json"]:
            print_json("ci", result.as_dict())
        else:
            _print(result, locked=given["locked"], update=given["update"])

    with printing() as print_result, ExitStack() as pending:
        with working("read") as progress:
            result = pending.enter_context(checked(given["config"], progress=progress, **part(CiChecks, given)))
        outputs.write("ci", result.as_dict(), by_model={o.entry.name: o.models for o in result.outcomes})
        print_result(tell)
    return result.exit_code


def _print(result: CiResult, *, locked: bool, update: bool) -> None:
    console, outcomes, table = output(), result.outcomes, result.table()
    config, lock = escape(str(result.config)), escape(str(result.lock))
    verdict, _, holds = table.verdict.partition(":")
    console.print(f"[bold {COLORS[verdict]}]{verdict}[/]:{escape(holds)}")
    printed = plain_table(*table.headings)
    for *cells, verified, speedup, last in table.rows:
        shown = f"[red]{verified}[/]" if verified.isupper() else verified
        printed.add_row(*map(escape, cells), shown, escape(speedup), f"[{COLORS[last]}]{last}[/]")
    console.print(printed)
    for outcome in outcomes:
        _print_outcome(outcome, console, lock)
    changed = [str(c) for c in result.changed] + [
        f"{o.entry.name}: {c}" for o in outcomes for c in o.changes if not c.lost
    ]
    if changed:
        color = "bold red" if locked else "dim"
        console.print(f"[{color}]changed since {lock}:[/]")
        for line in changed:
            console.print(f"  {escape(line)}", style="dim")
        console.print(f"keep it: onnxfuse ci {config} --update", style="dim", soft_wrap=True)
    if result.lock_state == "absent" and not result.exit_code:
        command_line = f"onnxfuse ci {config} --update"
        console.print(f"no {lock} yet: {command_line} writes it", style="dim", soft_wrap=True)
    if update and result.lock_state != "written":
        console.print(f"{lock} not written: it is for models that hold", style="bold red")
    if result.lock_state == "written":
        console.print(f"{lock} written")


def _print_outcome(outcome: Outcome, console: Console, lock: str) -> None:
    name = escape(outcome.entry.name)
    if outcome.error is not None:
        console.print(f"[bold red]{name}:[/] {escape(f'{outcome.error}')}")
        console.print(escape(outcome.error.hint), style="dim")
        return
    if outcome.verified is not None and not outcome.verified["ok"]:
        console.print(f"[bold red]{name}: verify:[/] {escape(outcome.verified['summary'])}")
    elif outcome.verified is not None:
        for line in outcome.verified["original_broken"]:
            console.print(f"[yellow]{name}:[/] {escape(line)}")
    for line in outcome.not_met:
        console.print(f"[bold red]{name}: not met:[/] {escape(line)}")
    for change in outcome.lost:
        console.print(f"[bold red]{name}: lost:[/] {escape(str(change))} [dim](against {lock})[/]")
    for line in dict.fromkeys(outcome.why):
        console.print(f"  why: {escape(line)}")
    for line in outcome.notes:
        console.print(f"[yellow]{name}: note:[/] {escape(line)}")
    if outcome.entry.output is not None and outcome.optimized is not None and outcome.optimized["target"] is not None:
        console.print(f"{escape(str(outcome.entry.output))} written", style="dim")
