"""`onnxfuse optimize`: apply the rules, write the model, print one screen of what was done."""

import contextlib
import os
import re
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import onnx
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from onnxfuse.cli import misses, tuning
from onnxfuse.cli.console import output, print_json, working
from onnxfuse.cli.dumping import Dumping
from onnxfuse.cli.outputs import Outputs, output_options, writable
from onnxfuse.cli.verify import ShapeOption
from onnxfuse.model import io
from onnxfuse.model.errors import ModelError, UsageError
from onnxfuse.model.fused import DOMAIN
from onnxfuse.model.tf32 import is_strict_fp32, set_strict_fp32
from onnxfuse.rewrite import pipeline
from onnxfuse.rewrite.language import rule_file
from onnxfuse.rewrite.language.pattern import did_you_mean
from onnxfuse.rewrite.report import Report
from onnxfuse.rewrite.unfuse import unfuse

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxfuse.tuning import Tuned
    from onnxfuse.verification.guard import Guarded

EXPECTATION_NOT_MET = 4


@dataclass(frozen=True)
class Requirement:
    """What `--require RULE[>=N]` asks for."""

    rule: str
    least: int


def rule_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the shipped rules whose names begin so, for the shell's completion."""
    return [name for name in rule_file.shipped_files() if name.startswith(incomplete)]


@click.command("optimize")
@click.argument("source", metavar="IN.onnx", type=click.Path(path_type=Path))
@click.argument("target", metavar="OUT.onnx", type=click.Path(path_type=Path))
@click.option("--rules", "folders", metavar="DIR", multiple=True, type=click.Path(path_type=Path), help="More rules.")
@click.option(
    "--only", metavar="RULE", multiple=True, shell_complete=rule_names, help="Apply this rule alone; may be repeated."
)
@click.option(
    "--skip", metavar="RULE", multiple=True, shell_complete=rule_names, help="Leave this rule out; may be repeated."
)
@click.option("--require", metavar="RULE[>=N]", multiple=True, help="Exit 4 unless the rule applied so often.")
@click.option("--guard", is_flag=True, help="Check every fusion on inputs; undo what leaves the error budget.")
@click.option(
    "--guard-inputs", metavar="PATH", multiple=True, type=click.Path(path_type=Path), help="Real inputs for --guard."
)
@click.option("--tune", is_flag=True, help="Measure on the GPU what is not known yet; the fastest is chosen.")
@click.option(
    "--tuning",
    "tuning_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Choose by what --tune measured, with or without a GPU. With --tune: keep the times there.",
)
@click.option(
    "--strict-fp32",
    is_flag=True,
    help="No kernel that rounds float32 to TF32; OUT.onnx says so, and onnxfuse opens it with use_tf32 0.",
)
@click.option(
    "--freeze-initializers",
    "freeze",
    is_flag=True,
    help="Weights that are graph inputs, too, become constants: no caller can give others.",
)
@click.option("--in-place", is_flag=True, help="Let OUT.onnx be IN.onnx: the original is gone then.")
@click.option("--undo", is_flag=True, help="Replace the fused ops of IN.onnx by the nodes that they stand for.")
@click.option("--dump", metavar="DIR", type=click.Path(path_type=Path), help="Write every phase and kernel there.")
@click.option("--arch", metavar="sm_NN", help="With --dump: compile for it; default the GPU here, or sm_90a.")
@click.option(
    "--shape",
    "shapes",
    metavar="NAME=N",
    type=ShapeOption(),
    multiple=True,
    help="With --dump, --tune and --tuning: a dynamic dimension; for tuning its sizes, batch=1,32.",
)
@output_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    source: Path,
    target: Path,
    folders: tuple[Path, ...],
    only: tuple[str, ...],
    skip: tuple[str, ...],
    require: tuple[str, ...],
    guard: bool,
    guard_inputs: tuple[Path, ...],
    tune: bool,
    tuning_file: Path | None,
    strict_fp32: bool,
    freeze: bool,
    in_place: bool,
    undo: bool,
    dump: Path | None,
    arch: str | None,
    shapes: tuple[tuple[str, tuple[int, ...]], ...],
    as_json: bool,
    outputs: Outputs,
) -> int:
    """Apply the fusion rules to IN.onnx and write OUT.onnx.

    OUT.onnx runs in any ONNX Runtime, on any provider; with onnxfuse and a GPU its fused ops run as CUDA kernels.
    Nothing is written unless everything went well.
    """
    if undo and (only or skip or require or guard or tune or tuning_file or strict_fp32 or freeze):
        raise UsageError(
            "--undo goes with none of --only, --skip, --require, --guard, --tune, --tuning, --strict-fp32 and "
            "--freeze-initializers"
        )
    # Not Path.exists, which raises where the system does not take the name; that is told when it is written.
    if not in_place and os.path.exists(source) and os.path.exists(target) and os.path.samefile(source, target):
        raise UsageError(
            f"{target}: is IN.onnx itself, which would be gone", "Give another name, or --in-place to write over it."
        )
    if undo and dump is not None:
        raise UsageError("--undo makes no kernels: --dump goes with optimizing")
    if guard_inputs and not guard:
        raise UsageError("--guard-inputs goes with --guard")
    if dump is None and arch is not None:
        raise UsageError("--arch goes with --dump DIR")
    asked = tuning.asked(tune, tuning_file, target, shapes)
    if dump is None and asked is None and shapes:
        raise UsageError("--shape goes with --dump DIR, --tune and --tuning FILE")
    dumping = None if dump is None else Dumping(dump, arch, shapes)
    rules = choose(rule_file.select(folders), only, skip)
    requirements = [parse_requirement(text, rules) for text in require]
    writable(target)
    if asked is not None and tune:
        writable(asked.file)
    from onnxfuse.runtime import opening  # ONNX Runtime is imported where something is to be run.

    start = time.perf_counter()
    # The output takes its place last: where a report cannot be written, none is left.
    with contextlib.ExitStack() as pending:
        with working("load") as progress:
            model = io.load(source)
            before = io.size(model)
            if strict_fp32:
                set_strict_fp32(model)
            opens = opening.require(model)
            source_graph = io.without_weights(model, lambda weight: weight) if outputs.report is not None else model
            found = None if asked is None else asked.find(model, rules, progress)
            if undo:
                progress("undo")
                report = Report(before=pipeline.count_ops(model))
                count = unfuse(model)
                set_strict_fp32(model, strict=False)
                report.after = pipeline.count_ops(model)
            elif guard:
                model, report, guarded = _run_guarded(
                    model, rules, progress, source, guard_inputs, dumping, found, freeze
                )
            else:
                follow = progress if dumping is None else dumping.following(model, progress)
                report = run(model, rules, follow, source, found, freeze=freeze)
            if undo or guard:
                progress("open")
                opens(model)
            if dumping is not None:
                progress("dump")
                dumping.write(model)
            if found is not None:
                found.attach(model)
            applied = report.by_rule()
            missed = [r for r in requirements if applied[r.rule] < r.least]
            if not missed:
                progress("write")
                pending.enter_context(io.saving(model, target))
            sizes = (before, io.size(model))
        seconds = time.perf_counter() - start
        facts = facts_of(report, source, target, sizes, seconds, missed)
        if undo:
            facts["undone"] = count
        if guard:
            facts["guard"] = guarded.as_dict()
        if dumping is not None:
            facts["dump"] = dumping.facts()
        if found is not None and asked is not None:
            facts["tuning"] = tuning.facts(found, asked.file)
        near = misses.facts(misses.ranked(report), report) if outputs.report is not None else []
        outputs.write("optimize", {**facts, "near": near}, {"before": source_graph, "after": model})
    if as_json:
        print_json("optimize", facts)
    else:
        _print(facts, found)
    return EXPECTATION_NOT_MET if missed else 0


def choose(
    rules: tuple[rule_file.Rule, ...], only: tuple[str, ...], skip: tuple[str, ...]
) -> tuple[rule_file.Rule, ...]:
    """Return the rules left by `--only` and `--skip`; raises UsageError for a name that is no rule."""
    for name in (*only, *skip):
        find(rules, name)
    return tuple(r for r in rules if (not only or r.name in only) and r.name not in skip)


def find(rules: tuple[rule_file.Rule, ...], name: str) -> rule_file.Rule:
    """Return the rule called `name`; raises UsageError that names the nearest one."""
    known = {r.name: r for r in rules}
    if name not in known:
        near = did_you_mean(name, set(known)) or f" There are: {', '.join(known)}."
        raise UsageError(f"'{name}' is not a rule.{near}", "See onnxfuse rules.")
    return known[name]


def parse_requirement(text: str, rules: tuple[rule_file.Rule, ...]) -> Requirement:
    """Return what `--require` asks for; raises UsageError."""
    found = re.fullmatch(r"\s*(\w+)\s*(?:>=\s*(\d+))?\s*", text)
    if found is None:
        raise UsageError(f"--require '{text}' is not of the form RULE or RULE>=N")
    return Requirement(find(rules, found[1]).name, int(found[2] or 1))


def run(
    model: onnx.ModelProto,
    rules: Sequence[rule_file.Rule],
    progress: pipeline.Progress,
    source: Path,
    tuned: "Tuned | None" = None,
    *,
    freeze: bool = False,
) -> Report:
    """Optimize `model` in place, by what was measured where something was; an error names the file it came from.

    `freeze`: weights that are graph inputs, too, become constants.
    """
    from onnxfuse.runtime.opening import refusal  # ONNX Runtime is imported where something is to be run.

    strictly = is_strict_fp32(model)

    def again() -> onnx.ModelProto:
        fresh = io.load(source)
        set_strict_fp32(fresh, strict=strictly)
        if tuned is not None:
            unfuse(fresh)
        return fresh

    try:
        choices = None
        if tuned is not None:
            unfuse(model)
            choices = tuned.choices(model, rules)
        return pipeline.run(model, rules, progress, choices, opens=refusal, again=again, freeze=freeze)
    except ModelError as error:
        raise ModelError(f"{source}: {error}", error.hint) from None


def _run_guarded(
    original: onnx.ModelProto,
    rules: tuple[rule_file.Rule, ...],
    progress: Any,
    source: Path,
    inputs: tuple[Path, ...],
    dumping: Dumping | None,
    tuned: "Tuned | None",
    freeze: bool,
) -> tuple["ModelProto", Report, "Guarded"]:
    """Return the optimized model without what `--guard` took back, the report on what is left, and what was taken.

    `dumping` sees the phases by which the model was made in the end, and what stays as their result.
    """
    from onnxfuse.verification.guard import guard  # ONNX Runtime is imported where something is to be run.

    reports: list[Report] = []
    strictly = is_strict_fp32(original)

    def fresh() -> "ModelProto":
        model = io.load(source)
        set_strict_fp32(model, strict=strictly)
        return model

    def reoptimize(without: Collection[str]) -> tuple["ModelProto", tuple[str, ...]]:
        model = fresh()
        made = run(model, tuple(r for r in rules if r.name not in without), progress, source, tuned, freeze=freeze)
        reports.append(made)
        return model, tuple(made.by_rule())

    def show(step: str, done: int, total: int) -> None:
        progress(f"guard {done} of {total}: {step}")

    guarded = guard(original, reoptimize, unfuse, inputs=inputs or None, progress=show)
    report = reports[0]
    if guarded.left_out or dumping is not None:
        # The model that is left was made without the rules left out: its report and its phases are of those rules.
        again, kept = fresh(), tuple(r for r in rules if r.name not in guarded.left_out)
        follow = progress if dumping is None else dumping.following(again, progress)
        report = run(again, kept, follow, source, tuned, freeze=freeze)
        again.CopyFrom(guarded.model)
    for undone in guarded.undone:
        gone = next((a for a in report.applied if undone.op and a.op == undone.op), None)
        if gone is not None:
            report.applied.remove(gone)
    report.after = pipeline.count_ops(guarded.model)
    return guarded.model, report, guarded


def facts_of(
    report: Report,
    source: Path,
    target: Path,
    sizes: tuple[int, int],
    seconds: float,
    missed: Sequence[Requirement] = (),
) -> dict[str, Any]:
    fused = {op: n for op, n in report.after.items() if op.startswith(f"{DOMAIN}:")}
    return {
        "ok": not missed,
        "source": str(source),
        "target": None if missed else str(target),
        "nodes": {"before": report.before.total(), "after": report.after.total()},
        "fused_nodes": sum(fused.values()),
        "distinct_kernels": len(fused),
        "rules": dict(report.by_rule()),
        "bytes": {"before": sizes[0], "after": sizes[1]},
        "seconds": round(seconds, 3),
        "notes": report.notes,
        "phases": {k: round(v, 3) for k, v in report.seconds.items()},
        "not_met": [f"{r.rule}>={r.least}: applied {report.by_rule()[r.rule]} times" for r in missed],
    }


def _print(facts: dict[str, Any], tuned: "Tuned | None") -> None:
    console = output()
    nodes = facts["nodes"]
    for line in facts["not_met"]:
        console.print(f"[bold red]not met:[/] {escape(line)}; nothing was written")
    if "undone" in facts:
        console.print(
            f"[bold green]undone:[/] {facts['undone']} fused nodes are plain ones again: {nodes['after']} nodes. "
            "What was folded or rewritten stays so: it computes the same"
        )
    elif facts["ok"]:
        verdict = "fused" if facts["fused_nodes"] else "nothing to fuse"
        console.print(
            f"[bold green]{verdict}:[/] {nodes['before']} nodes -> {nodes['after']}, {facts['fused_nodes']} of them "
            f"fused, by {facts['distinct_kernels']} distinct kernels"
        )
    for note in facts["notes"]:
        console.print(f"[yellow]note:[/] {escape(note)}", soft_wrap=True)
    if tuned is not None:
        file = facts["tuning"]["file"]
        tuning.print_summary(tuned, Path(file) if file else None, console)
    if "guard" in facts:
        _print_guard(facts["guard"], facts["fused_nodes"], console)
    if facts["rules"]:
        table = Table("rule", "applied", box=None, pad_edge=False, header_style="bold")
        table.columns[1].justify = "right"
        for name, count in facts["rules"].items():
            table.add_row(name, str(count))
        console.print(table)
    if facts["target"] is not None:
        size, seconds = facts["bytes"], facts["seconds"]
        sizes = f"{megabytes(size['after'])} (was {megabytes(size['before'])})"
        console.print(f"{escape(facts['target'])}: {sizes}, {seconds:.1f} s")
        if "undone" not in facts:
            console.print(
                f"next: onnxfuse verify {escape(facts['source'])} {escape(facts['target'])}",
                style="dim",
                soft_wrap=True,
            )
    if "dump" in facts:
        _print_dump(facts["dump"], console)
    console.print(f"why not more: onnxfuse explain {escape(facts['source'])}", style="dim", soft_wrap=True)


def _print_guard(guard: dict[str, Any], fused: int, console: Console) -> None:
    undone = guard["undone"]
    color = "yellow" if undone else "green"
    ops = fused + sum(bool(one["op"]) for one in undone)
    places = f"{guard['checked']} place{'s' * (guard['checked'] != 1)} with {ops} fused ops"
    console.print(f"[bold {color}]guard:[/] {places} checked, {len(undone)} taken back")
    for one in undone:
        what = (
            f"{one['op']} ({one['node']}) of rule {one['rule']} undone" if one["op"] else f"rule {one['rule']} left out"
        )
        console.print(f"  - {escape(what)}: {escape(one['fault'])}", soft_wrap=True)
        console.print(f"    in the original: {escape(', '.join(one['nodes']))}", style="dim", soft_wrap=True)


def _print_dump(dump: dict[str, Any], console: Console) -> None:
    registers = [op["registers"] for op in dump["ops"] if op["registers"] is not None]
    spills = sum(op["spill_bytes"] or 0 for op in dump["ops"])
    used = f"{min(registers)} to {max(registers)} registers, {spills} bytes spilled" if registers else "none compiled"
    console.print(f"{escape(dump['folder'])}: {len(dump['ops'])} fused ops, {dump['arch']}: {used}", soft_wrap=True)
    for note in dict.fromkeys(op["note"] for op in dump["ops"] if op["note"]):
        without = ", ".join(op["op"] for op in dump["ops"] if op["note"] == note)
        console.print(f"no kernel of {escape(without)}: {escape(note)}", style="dim", soft_wrap=True)


def megabytes(size: int) -> str:
    """Return a size for people."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"
