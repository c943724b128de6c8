"""Screen of `optimize`: verdict, tuning, guard, applied rules, and next steps."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from onnxfuse.api.optimize.precision_screen import precision
from onnxfuse.deploy import screen as pack
from onnxfuse.options.commands import STREAM
from onnxfuse.options.next_command import next_command
from onnxfuse.support.plurals import a_noun, agreeing, fused_ops_text, plural
from onnxfuse.support.screen import PROSE, Blocks, Line, Rows, advice, more_rows, plain_table
from onnxfuse.support.units import megabytes

if TYPE_CHECKING:
    from onnxfuse.measure.tune import Tuned

OPERATORS, REMAINING = 6, 3
"""Maximum rows of each table, so that everything fits one screen."""
OPERATORS_SHOWN = 2
"""Maximum operators that are named in a row."""


def screen(facts: Mapping[str, Any], tuned: "Tuned | None" = None, given: Mapping[str, Any] | None = None) -> Blocks:
    """Yield the result of `optimize` or `undo` from its `--json` output; `given`: the options of the call."""
    source, target, given = facts["source"], facts["target"], given or {}
    named = () if source == STREAM else (source,)  # what came through it is gone
    yield from _verdict(facts)
    if tuned is not None:
        from onnxfuse.measure.tune.screen import summary

        file = facts["tuning"]["file"]
        yield from summary(tuned, Path(file) if file else None)
    if "precision" in facts:
        yield from precision(facts["precision"])
    if "guard" in facts:
        yield from _guard(facts["guard"], facts["fused_nodes"])
    if facts["rules"]:
        yield from _rules(facts["rules"])
    if "operators" in facts:
        yield from _operators(facts["operators"])
    if target is not None:
        yield from _target(facts)
    if "left" in facts:
        explained = next_command("explain", *named, given=given)
        yield from remaining(
            facts["left"], REMAINING, next_command("explain", *named, "--at", "NODE", given=given), explained
        )
    if "dump" in facts:
        yield from _dump(facts["dump"])
    if "compiled" in facts:
        yield from pack.compiled(facts["compiled"])
    if named and "undone" not in facts:
        yield advice(f"why not more: {escape(next_command('explain', source, given=given))}")
        if target not in (None, STREAM):
            judged = {**given, "shapes": None}  # `verify` finds them in the file
            yield advice(f"next: {escape(next_command('verify', source, target, given=judged))}")


def _verdict(facts: Mapping[str, Any]) -> Blocks:
    """Yield whether it fused, and what there is to know of that."""
    nodes = facts["nodes"]
    for line in facts["not_met"]:
        yield Line(f"[bold red]not met:[/] {escape(line)}; nothing was written", fold=True)
        for reason in facts["why"].get(line, ()):
            yield Line(f"  why: {escape(reason)}")
    if "undone" in facts and not facts["undone"] and not facts["back"]["known"]:
        yield Line(escape(facts["back"]["summary"]), fold=True)
    elif "undone" in facts:
        without_constants = facts["back"]["nodes"]["after"]
        yield Line(
            f"[bold green]undone:[/] {plural(facts['undone'], 'fused op')} "
            f"{agreeing(facts['undone'], 'is a plain node', 'are plain nodes')} again: "
            f"{plural(nodes['after'], 'node')}{' with Constants' * (without_constants not in (0, nodes['after']))}",
            fold=True,
        )
        yield from _undone(facts["back"])
    elif facts["ok"]:
        verdict = "fused" if facts["fused_nodes"] else "nothing to fuse"
        yield Line(
            f"[bold green]{verdict}:[/] {plural(nodes['before'], 'node')} -> {nodes['after']}, including "
            f"{fused_ops_text(facts['fused_nodes'], facts['distinct_kernels'])}",
            fold=True,
        )
    if "shapes" in facts:
        sizes = ", ".join(f"{name}={'x'.join(map(str, of))}" for name, of in facts["shapes"].items())
        yield Line(f"made for {escape(sizes)} only")
    for note in facts["notes"]:
        yield Line(f"[yellow]note:[/] {escape(note)}")


def _rules(rules: dict[str, int]) -> Blocks:
    """Yield how often each rule was applied."""
    table = plain_table("rule", "applied", right=("applied",))
    for name, count in rules.items():
        table.add_row(name, str(count))
    yield Rows(table)


def _target(facts: Mapping[str, Any]) -> Blocks:
    """Yield which file was written, and which were removed."""
    size, seconds = facts["bytes"], facts["seconds"]
    sizes = f"{megabytes(size['after'])} (was {megabytes(size['before'])})"
    yield Line(f"{escape(facts['target'])}: {sizes}, {seconds:.1f} s", fold=True)
    for file in facts.get("removed", ()):
        yield Line(f"removed: {escape(file)}, which only the replaced model read")


def _undone(back: dict[str, Any]) -> Blocks:
    """Yield how the result of --undo differs from the original: rewrites, and operators with other counts."""
    nodes = back["nodes"]
    if not back["known"] or nodes["original"] == nodes["back"] == nodes["after"]:
        yield Line(escape(back["summary"]), fold=True)
        return
    missing, added = nodes["original"] - nodes["back"], nodes["after"] - nodes["back"]
    yield Line(
        f"without Constants, {nodes['back']} of the original's {plural(nodes['original'], 'node')} "
        f"{agreeing(nodes['back'], 'is back as it was', 'are back as they were', of=nodes['original'])}; {missing} "
        f"{agreeing(missing, 'is', 'are')} "
        f"not, and {added} {agreeing(added, 'is', 'are')} in their place. They compute "
        "the same; the original itself is in the file that was optimized",
        fold=True,
    )
    for change in back["made"]:
        yield Line(f"stays: {escape(change)}")
    if back["rewrites"]:
        table = plain_table("rewrite that stays", "applied", right=("applied",))
        for rule, count in back["rewrites"].items():
            table.add_row(escape(rule), str(count))
        yield Rows(table)
    table = plain_table("operator", "original", "now", right=("original", "now"))
    for op, n in back["operators"].items():
        table.add_row(escape(op), str(n["original"]), str(n["after"]))
    if back["operators"]:
        yield Rows(table)


def _operators(operators: dict[str, dict[str, int]]) -> Blocks:
    """Yield the operators with changed counts; the rest in one line."""
    changed = {op: n for op, n in operators.items() if n["before"] != n["after"]}
    table = plain_table("operator", "before", "after", right=("before", "after"))
    for op, n in [*changed.items()][:OPERATORS]:
        table.add_row(escape(op), str(n["before"]), str(n["after"]))
    others = [n for op, n in operators.items() if op not in [*changed][:OPERATORS]]
    if others:
        before, after = (sum(n[when] for n in others) for when in ("before", "after"))
        table.add_row(plural(others, "other"), str(before), str(after), style="dim")
    yield Rows(table)


def remaining(left: Mapping[str, Any], limit: int | None, explain_command: str, shown_by: str = "--all") -> Blocks:
    """Yield the plain nodes that are left by reason, most expensive first.

    `explain_command` explains one of them, `shown_by` shows those beyond the limit.
    """
    if left["note"]:
        yield Line(escape(left["note"]), style="dim")
    if not left["kinds"]:
        return
    sizes = ", ".join(f"{name}={n}" for name, n in left["sizes"].items())
    at = f" at {escape(sizes)}" if sizes else ""
    table = plain_table("not fused", "launches", "MB", "share", "because", right=("launches", "MB", "share"))
    for kind in left["kinds"][:limit]:
        why = kind["why"] or f"no rule fuses {a_noun(next(iter(kind['operators'])))} here"
        table.add_row(
            escape(_operators_of(kind)),
            *(("", "", "") if left["note"] else (str(kind["launches"]), f"{kind['bytes'] / 1e6:.1f}", _share(kind))),
            escape(f"{kind['at']}: {why}"),
        )
    table.columns[-1].min_width = PROSE
    yield Rows(table, ("because",), names=True)
    yield from more_rows(left["kinds"], limit, "more kind", shown_by)
    estimated = "" if left["note"] else f"share: estimated part of the run time{at}, from bytes and launches"
    yield Line(estimated, "dim", hint=f"{'; ' * bool(estimated)}one node in detail: {escape(explain_command)}")


def _operators_of(kind: Mapping[str, Any]) -> str:
    shown = [f"{n} {op}" for op, n in [*kind["operators"].items()][:OPERATORS_SHOWN]]
    others = kind["nodes"] - sum([*kind["operators"].values()][:OPERATORS_SHOWN])
    return ", ".join(shown) + f", {others} more" * bool(others)


def _share(kind: Mapping[str, Any]) -> str:
    return "<1%" if 0 < kind["share"] < 0.005 else f"{kind['share']:.0%}"


def _guard(guard: dict[str, Any], fused: int) -> Blocks:
    reverted = guard["undone"]
    color = "yellow" if reverted else "green"
    ops = fused + sum(bool(one["op"]) for one in reverted)
    checked = f"{plural(guard['checked'], 'window')} with {plural(ops, 'fused op')}"
    yield Line(f"[bold {color}]guard:[/] {checked} checked, {len(reverted)} reverted", fold=True)
    for one in reverted:
        description = (
            f"{one['op']} ({one['node']}) of rule {one['rule']} undone" if one["op"] else f"rule {one['rule']} left out"
        )
        yield Line(f"  - {escape(description)}: {escape(one['fault'])}")
        yield Line(f"    in the original: {escape(', '.join(one['nodes']))}", style="dim")
    for line in guard["unseen"]:
        yield Line(f"  - {escape(line)}")


def _dump(dump: dict[str, Any]) -> Blocks:
    registers = [op["registers"] for op in dump["ops"] if op["registers"] is not None]
    spills = sum(op["spill_bytes"] or 0 for op in dump["ops"])
    used = (
        f"{min(registers)} to {plural(max(registers), 'register')}, {plural(spills, 'byte')} spilled"
        if registers
        else "none compiled"
    )
    yield Line(
        f"{escape(dump['folder'])}: {plural(len(dump['ops']), 'distinct fused op')}, {dump['arch']}: {used}",
        hint="; --arch names another GPU",
    )
    for note in dict.fromkeys(op["note"] for op in dump["ops"] if op["note"]):
        without = ", ".join(op["op"] for op in dump["ops"] if op["note"] == note)
        yield Line(f"no kernel of {escape(without)}: {escape(note)}", style="dim")
