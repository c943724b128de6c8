"""Screen of `rules --test`: the verdict, a line for each rule, and each failure with its diff."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from onnxfuse.cli.base.console import plain_table
from onnxfuse.support.plurals import agreeing, plural

if TYPE_CHECKING:
    from onnxfuse.api.rules.testing import ExampleFault, Tested

MOST_LINES = 40
"""Maximum lines of one diff; a longer one is better examined with other tools."""

COLORS = {"-": "red", "+": "green"}


def show(results: "Sequence[Tested]", console: Console, command_line: str) -> None:
    """Print the test results of the rules' examples."""
    failed = [one for one in results if not one.ok]
    examples, cases, kernels = (
        sum(getattr(one, field) for one in results) for field in ("examples", "cases", "kernels")
    )
    ran = f"{kernels} of them as kernels" if kernels else "as plain nodes; no GPU here, so no kernel ran"
    verdict = (
        f"[bold red]failed:[/] {len(failed)} of {len(results)}" if failed else f"[bold green]ok:[/] {len(results)}"
    )
    rules = f"{verdict} {agreeing(results, 'rule', 'rules')}, {plural(examples, 'example')}"
    console.print(f"{rules}; numbers compared on {plural(cases, 'input')}, {ran}")
    table = plain_table("rule", "examples", "inputs", "types", "verdict", right=("examples", "inputs"))
    for one in results:
        word = "ok" if one.ok else "[red]failed[/]"
        word += f"; some through bodies: {escape(one.bodies[0])}" if one.bodies else ""
        table.add_row(escape(one.rule), str(one.examples), str(one.cases), _types(one), word)
    console.print(table)
    for skipped in [skipped for one in results for skipped in one.without] if len(results) == 1 else ():
        console.print(
            f"example {skipped.example} in {skipped.type} stays as it is: {escape(skipped.why)}", soft_wrap=True
        )
    for one in failed:
        for fault in one.faults:
            _print_fault(one, fault, console)
    if failed:
        console.print(f"fix the rule or the example, then: {escape(command_line)}", style="dim", soft_wrap=True)


def _types(one: "Tested") -> str:
    """Return the types in which the rule was tested, noting those it does not support, or only in part."""
    skipped_types = dict.fromkeys(w.type for w in one.without)
    ran = [f"{name} in part" if name in skipped_types else name for name in one.types]
    return ", ".join([*ran, *(f"not {name}" for name in skipped_types if name not in one.types)])


def _print_fault(one: "Tested", fault: "ExampleFault", console: Console) -> None:
    where = f"example {fault.example}" if fault.example else "the rule"
    console.print(
        f"\n[bold]{escape(one.rule)}[/], {where} ({escape(str(one.file))}): {escape(fault.fact)}", soft_wrap=True
    )
    for line in fault.diff[:MOST_LINES]:
        console.print(f"  {line}", style=COLORS.get(line[:1], "dim"), markup=False, soft_wrap=True)
    if len(fault.diff) > MOST_LINES:
        console.print(f"  ... and {plural(len(fault.diff) - MOST_LINES, 'line')} more", style="dim")
    for line in fault.why:
        console.print(f"  why: {line}", markup=False, soft_wrap=True)
