"""Screen of `rules --test`: the verdict, a line for each rule, and each failure with its diff."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape

from onnxfuse.support.plurals import agreeing, plural
from onnxfuse.support.screen import Blocks, Line, Rows, advice, plain_table

if TYPE_CHECKING:
    from onnxfuse.authoring.testing import ExampleFault, Tested

MOST_LINES = 40
"""Maximum lines of one diff; a longer one is better examined with other tools."""

COLORS = {"-": "red", "+": "green"}


def tests(results: "Sequence[Tested]", command_line: str) -> Blocks:
    """Yield the test results of the rules' examples."""
    failed = [one for one in results if not one.ok]
    examples, cases, kernels = (
        sum(getattr(one, field) for one in results) for field in ("examples", "cases", "kernels")
    )
    ran = f"{kernels} of them as kernels" if kernels else "as plain nodes; no GPU here, so no kernel ran"
    verdict = (
        f"[bold red]failed:[/] {len(failed)} of {len(results)}" if failed else f"[bold green]ok:[/] {len(results)}"
    )
    rules = f"{verdict} {agreeing(results, 'rule', 'rules')}, {plural(examples, 'example')}"
    yield Line(f"{rules}; numbers compared on {plural(cases, 'input')}, {ran}", fold=True)
    table = plain_table("rule", "examples", "inputs", "types", "verdict", right=("examples", "inputs"))
    for one in results:
        word = "ok" if one.ok else "[red]failed[/]"
        word += f"; some through bodies: {escape(one.bodies[0])}" if one.bodies else ""
        table.add_row(escape(one.rule), str(one.examples), str(one.cases), _types(one), word)
    yield Rows(table)
    for skipped in [skipped for one in results for skipped in one.without] if len(results) == 1 else ():
        yield Line(f"example {skipped.example} in {skipped.type} stays as it is: {escape(skipped.why)}")
    for one in failed:
        for fault in one.faults:
            yield from _fault(one, fault)
    if failed:
        yield advice(f"fix the rule or the example, then: {escape(command_line)}")


def _types(one: "Tested") -> str:
    """Return the types in which the rule was tested, noting those it does not support, or only in part."""
    skipped_types = dict.fromkeys(w.type for w in one.without)
    ran = [f"{name} in part" if name in skipped_types else name for name in one.types]
    return ", ".join([*ran, *(f"not {name}" for name in skipped_types if name not in one.types)])


def _fault(one: "Tested", fault: "ExampleFault") -> Blocks:
    where = f"example {fault.example}" if fault.example else "the rule"
    yield Line(f"\n[bold]{escape(one.rule)}[/], {where} ({escape(str(one.file))}): {escape(fault.fact)}")
    for line in fault.diff[:MOST_LINES]:
        yield Line(f"  {escape(line)}", style=COLORS.get(line[:1], "dim"))
    if len(fault.diff) > MOST_LINES:
        yield Line(f"  ... and {plural(len(fault.diff) - MOST_LINES, 'line')} more", style="dim", fold=True)
    for line in fault.why:
        yield Line(f"  why: {escape(line)}")
