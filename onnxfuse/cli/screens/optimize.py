"""Screen of `optimize`: verdict, tuning, guard, applied rules, and next steps."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from onnxfuse.cli.base.console import PROSE, plain_table, print_table
from onnxfuse.cli.base.parameters import STREAM
from onnxfuse.cli.screens import pack_coverage, tuning
from onnxfuse.cli.screens.pack_coverage import megabytes
from onnxfuse.cli.screens.precision import print_precision
from onnxfuse.model.custom_ops import custom_ops_arguments
from onnxfuse.support.plurals import agreeing, plural

if TYPE_CHECKING:
    from onnxfuse.measure.tune import Tuned

OPERATORS, REMAINING = 6, 3
"""Maximum rows of each table, so that everything fits one screen."""


def show(
    facts: dict[str, Any],
    tuned: "Tuned | None",
    console: Console,
    folders: Sequence[Path] = (),
    inputs: Sequence[Path] = (),
    also: Sequence[str] = (),
) -> None:
    """Print the result; `facts` is its `--json` output.

    `folders` are the given rule folders, `inputs` the inputs of measurements, `also` the requested optional rules: the
    suggested next steps repeat them.
    """
    common_options = escape("".join(f" --rules {shlex.quote(str(f))}" for f in folders) + custom_ops_arguments())
    also_options = escape("".join(f" --also {name}" for name in also))
    inputs_options = escape("".join(f" --inputs {shlex.quote(str(f))}" for f in inputs))
    names = [escape(shlex.quote(facts[key] or "")) for key in ("source", "target")]
    _print_verdict(facts, console)
    if tuned is not None:
        file = facts["tuning"]["file"]
        tuning.print_summary(tuned, Path(file) if file else None, console)
    if "precision" in facts:
        print_precision(facts["precision"], console)
    if "guard" in facts:
        _print_guard(facts["guard"], facts["fused_nodes"], console)
    if facts["rules"]:
        _print_rules(facts["rules"], console)
    if "operators" in facts:
        _print_operators(facts["operators"], console)
    if facts["target"] is not None:
        _print_target(facts, f"onnxfuse verify {names[0]} {names[1]}{inputs_options}{common_options}", console)
    if "left" in facts:
        source = "" if facts["source"] == STREAM else f"{names[0]} "
        _print_remaining(facts["left"], console, f"onnxfuse explain {source}--at NODE{also_options}{common_options}")
    if "dump" in facts:
        _print_dump(facts["dump"], console)
    if "compiled" in facts:
        pack_coverage.show(facts["compiled"], console)
    if facts["source"] != STREAM and "undone" not in facts:  # what came through it is gone
        console.print(
            f"why not more: onnxfuse explain {names[0]}{also_options}{common_options}", style="dim", soft_wrap=True
        )


def _print_verdict(facts: dict[str, Any], console: Console) -> None:
    """Print whether it fused, and what there is to know of that."""
    nodes = facts["nodes"]
    for line in facts["not_met"]:
        console.print(f"[bold red]not met:[/] {escape(line)}; nothing was written")
    for line in dict.fromkeys(facts["why"]):
        console.print(f"  why: {escape(line)}", soft_wrap=True)
    if "undone" in facts:
        console.print(
            f"[bold green]undone:[/] {plural(facts['undone'], 'fused node')} "
            f"{agreeing(facts['undone'], 'is a plain one', 'are plain ones')} again: {plural(nodes['after'], 'node')}"
        )
        _print_undone(facts["back"], console)
    elif facts["ok"]:
        verdict = "fused" if facts["fused_nodes"] else "nothing to fuse"
        console.print(
            f"[bold green]{verdict}:[/] {plural(nodes['before'], 'node')} -> {nodes['after']}, "
            f"{facts['fused_nodes']} of them "
            f"fused, by {plural(facts['distinct_kernels'], 'distinct kernel')}"
        )
    if "shapes" in facts:
        sizes = ", ".join(f"{name}={'x'.join(map(str, of))}" for name, of in facts["shapes"].items())
        console.print(f"made for {escape(sizes)} alone", soft_wrap=True)
    for note in facts["notes"]:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)


def _print_rules(rules: dict[str, int], console: Console) -> None:
    """Print how often each rule was applied."""
    table = plain_table("rule", "applied", right=("applied",))
    for name, count in rules.items():
        table.add_row(name, str(count))
    console.print(table)


def _print_target(facts: dict[str, Any], verify: str, console: Console) -> None:
    """Print which file was written, which were removed, and the command that verifies it."""
    size, seconds = facts["bytes"], facts["seconds"]
    sizes = f"{megabytes(size['after'])} (was {megabytes(size['before'])})"
    console.print(f"{escape(facts['target'])}: {sizes}, {seconds:.1f} s")
    for file in facts.get("removed", ()):
        console.print(f"removed: {escape(file)}, which only the replaced model read", soft_wrap=True)
    if "undone" not in facts and STREAM not in (facts["source"], facts["target"]):
        console.print(f"next: {verify}", style="dim", soft_wrap=True)


def _print_undone(back: dict[str, Any], console: Console) -> None:
    """Print how the result of --undo differs from the original: rewrites, and operators with other counts."""
    nodes = back["nodes"]
    if not back["known"] or nodes["original"] == nodes["back"] == nodes["after"]:
        console.print(back["summary"])
        return
    missing, added = nodes["original"] - nodes["back"], nodes["after"] - nodes["back"]
    console.print(
        f"{nodes['back']} of the original's {plural(nodes['original'], 'node')} "
        f"{agreeing(nodes['back'], 'is back as it was', 'are back as they were', of=nodes['original'])}; {missing} "
        f"{agreeing(missing, 'is', 'are')} "
        f"not, and {added} {agreeing(added, 'is', 'are')} in their place. They compute "
        "the same; the original itself is in the file that was optimized"
    )
    for change in back["made"]:
        console.print(f"stays: {escape(change)}", soft_wrap=True)
    if back["rewrites"]:
        table = plain_table("rewrite that stays", "applied", right=("applied",))
        for rule, count in back["rewrites"].items():
            table.add_row(escape(rule), str(count))
        console.print(table)
    table = plain_table("operator", "original", "now", right=("original", "now"))
    for op, n in back["operators"].items():
        table.add_row(escape(op), str(n["original"]), str(n["after"]))
    if back["operators"]:
        console.print(table)


def _print_operators(operators: dict[str, dict[str, int]], console: Console) -> None:
    """Print the operators with changed counts; the rest in one line."""
    changed = {op: n for op, n in operators.items() if n["before"] != n["after"]}
    table = plain_table("operator", "before", "after", right=("before", "after"))
    for op, n in [*changed.items()][:OPERATORS]:
        table.add_row(escape(op), str(n["before"]), str(n["after"]))
    others = [n for op, n in operators.items() if op not in [*changed][:OPERATORS]]
    if others:
        before, after = (sum(n[when] for n in others) for when in ("before", "after"))
        table.add_row(plural(others, "other"), str(before), str(after), style="dim")
    console.print(table)


def _print_remaining(remaining: dict[str, Any], console: Console, explain_command: str) -> None:
    """Print the remaining operators with the highest costs, each with the reason why the largest was not fused.

    `explain_command` is the command that explains one of them.
    """
    if remaining["note"]:
        console.print(escape(remaining["note"]), style="dim", soft_wrap=True)
    if not remaining["kinds"]:
        return
    sizes = ", ".join(f"{name}={n}" for name, n in remaining["sizes"].items())
    at = f" at {escape(sizes)}" if sizes else ""
    table = plain_table("left", "launches", "MB", "of all", "because", right=("launches", "MB", "of all"))
    for kind in remaining["kinds"][:REMAINING]:
        why = kind["why"] or "no rule matches it"
        table.add_row(
            f"{kind['nodes']} {escape(kind['op'])}",
            str(kind["launches"]),
            f"{kind['bytes'] / 1e6:.1f}",
            f"{kind['share']:.0%}",
            escape(f"{kind['at']}: {why}"),
        )
    table.columns[-1].min_width = PROSE
    print_table(console, table, ("because",), names=True)
    console.print(
        f"of all: share of the time estimated{at} from bytes and launches; details: {explain_command}",
        style="dim",
        soft_wrap=True,
    )


def _print_guard(guard: dict[str, Any], fused: int, console: Console) -> None:
    reverted = guard["undone"]
    color = "yellow" if reverted else "green"
    ops = fused + sum(bool(one["op"]) for one in reverted)
    checked = f"{plural(guard['checked'], 'window')} with {plural(ops, 'fused op')}"
    console.print(f"[bold {color}]guard:[/] {checked} checked, {len(reverted)} reverted")
    for one in reverted:
        description = (
            f"{one['op']} ({one['node']}) of rule {one['rule']} undone" if one["op"] else f"rule {one['rule']} left out"
        )
        console.print(f"  - {escape(description)}: {escape(one['fault'])}", soft_wrap=True)
        console.print(f"    in the original: {escape(', '.join(one['nodes']))}", style="dim", soft_wrap=True)
    for line in guard["unseen"]:
        console.print(f"  - {escape(line)}", soft_wrap=True)


def _print_dump(dump: dict[str, Any], console: Console) -> None:
    registers = [op["registers"] for op in dump["ops"] if op["registers"] is not None]
    spills = sum(op["spill_bytes"] or 0 for op in dump["ops"])
    used = (
        f"{min(registers)} to {plural(max(registers), 'register')}, {plural(spills, 'byte')} spilled"
        if registers
        else "none compiled"
    )
    console.print(
        f"{escape(dump['folder'])}: {plural(len(dump['ops']), 'fused op')}, {dump['arch']}: {used}", soft_wrap=True
    )
    for note in dict.fromkeys(op["note"] for op in dump["ops"] if op["note"]):
        without = ", ".join(op["op"] for op in dump["ops"] if op["note"] == note)
        console.print(f"no kernel of {escape(without)}: {escape(note)}", style="dim", soft_wrap=True)
