"""`onnxfuse ci`: optimize, verify and time the models of onnxfuse.toml, and hold them to it and to onnxfuse.lock."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import onnx
from rich.markup import escape
from rich.table import Table

from onnxfuse import contract
from onnxfuse.cli import misses
from onnxfuse.cli.console import output, print_json, working
from onnxfuse.cli.optimize import EXPECTATION_NOT_MET, choose, facts_of, find, run
from onnxfuse.cli.outputs import Models, Outputs, output_options
from onnxfuse.cli.verify import EXIT_MISMATCH, PROVIDERS
from onnxfuse.contract import Change, Contract, Entry, Lock, ModelLock
from onnxfuse.model import io
from onnxfuse.model.errors import OnnxfuseError, UsageError
from onnxfuse.model.isolation import Crash, isolated
from onnxfuse.rewrite.language import rule_file
from onnxfuse.rewrite.pipeline import Progress
from onnxfuse.rewrite.report import Report

LOCK = ".lock"
WHYS = 3
"""Near misses that are told for a lost fusion."""


@dataclass
class Outcome:
    """What became of one model."""

    entry: Entry
    error: OnnxfuseError | None = None
    optimized: dict[str, Any] | None = None
    verified: dict[str, Any] | None = None
    benched: dict[str, Any] | None = None
    locked: ModelLock | None = None
    not_met: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    why: list[str] = field(default_factory=list)
    """The nearest misses of the rules that lost a fusion."""
    models: Models = field(default_factory=dict)

    @property
    def lost(self) -> list[Change]:
        return [c for c in self.changes if c.lost]

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return self.error.exit_code
        if self.verified is not None and not self.verified["ok"]:
            return EXIT_MISMATCH
        return EXPECTATION_NOT_MET if self.not_met or self.lost else 0

    def as_dict(self) -> dict[str, Any]:
        """Return every fact for JSON."""
        return {
            "name": self.entry.name,
            "path": str(self.entry.path),
            "output": None if self.entry.output is None else str(self.entry.output),
            "line": self.entry.line,
            "ok": not self.exit_code,
            "exit_code": self.exit_code,
            "error": None if self.error is None else str(self.error),
            "hint": "" if self.error is None else self.error.hint,
            "optimize": self.optimized,
            "verify": self.verified,
            "bench": self.benched,
            "not_met": self.not_met,
            "lost": [str(c) for c in self.lost],
            "changed": [str(c) for c in self.changes if not c.lost],
            "why": self.why,
        }


@click.command("ci")
@click.argument("config", required=False, default="onnxfuse.toml", type=click.Path(path_type=Path))
@click.option("--update", is_flag=True, help="Write the lock file as things are now.")
@click.option("--locked", is_flag=True, help="Exit 4 for any difference to the lock file, not only for losses.")
@click.option("--model", "names", metavar="NAME", multiple=True, help="This model alone; may be repeated.")
@click.option("--no-bench", is_flag=True, help="Leave the timing out: on a machine without the GPU.")
@output_options
@click.option("--json", "as_json", is_flag=True, help="Print every fact as JSON.")
def command(
    config: Path,
    update: bool,
    locked: bool,
    names: tuple[str, ...],
    no_bench: bool,
    as_json: bool,
    outputs: Outputs,
) -> int:
    """Hold the models of CONFIG (onnxfuse.toml) to what it asks for, and to what CONFIG's lock file remembers.

    Each [[model]] has path, and may have output, require (fusions with counts), shapes, budget (nodes, megabytes,
    error), verify (seeds, inputs; or false), bench (min_speedup), provider, rules, skip, freeze_initializers, name. A
    lost fusion, a node more than was locked or a larger error exits 4 and says what and why; a wrong number exits 1. An
    output is written only where everything held.
    """
    if update and (locked or names):
        raise UsageError("--update writes the whole lock file: it goes with neither --locked nor --model")
    promised = _chosen(contract.read(config), names)
    lock_file = config.with_suffix(LOCK)
    was = None if update else contract.read_lock(lock_file)
    if locked and was is None:
        raise UsageError(f"{lock_file}: no such file, and --locked asks for it", "Write it: onnxfuse ci --update")
    # Outputs and the lock take their places last: where a report cannot be written, they stay as they were.
    with ExitStack() as pending:
        with working("read") as progress:
            rules = {e.name: choose(rule_file.select(e.rules), (), e.skip) for e in promised.models}
            _check_rules(promised, rules)
            done = [
                _hold(entry, rules[entry.name], was, progress, pending, no_bench=no_bench) for entry in promised.models
            ]
        hashes = contract.rule_hashes({r.name: r for chosen in rules.values() for r in chosen}.values())
        now = Lock(hashes, {o.entry.name: o.locked for o in done if o.locked is not None})
        general = _general(was, now, whole=not names)
        code = next((c for c in (5, 3, 2, EXIT_MISMATCH, EXPECTATION_NOT_MET) if c in {o.exit_code for o in done}), 0)
        if locked and not code and (general or any(o.changes for o in done)):
            code = EXPECTATION_NOT_MET
        facts = {
            "ok": not code,
            "config": str(config),
            "lock": str(lock_file),
            "lock_state": "written" if update and not code else "absent" if was is None else "read",
            "changed": [str(c) for c in general],
            "models": [o.as_dict() for o in done],
        }
        outputs.write("ci", facts, more={o.entry.name: o.models for o in done})
        if update and not code:
            contract.write_lock(now, lock_file)
    if as_json:
        print_json("ci", facts)
    else:
        _print(facts, done, locked=locked, update=update)
    return code


def _chosen(promised: Contract, names: tuple[str, ...]) -> Contract:
    known = [e.name for e in promised.models]
    unknown = next((n for n in names if n not in known), None)
    if unknown is not None:
        raise UsageError(f"{promised.path}: has no model '{unknown}'", f"There are: {', '.join(known)}.")
    return Contract(promised.path, tuple(e for e in promised.models if not names or e.name in names))


def _check_rules(promised: Contract, rules: Mapping[str, tuple[rule_file.Rule, ...]]) -> None:
    """Raise UsageError for a requirement on a rule that there is not, before any model is read."""
    for entry in promised.models:
        for required in entry.require:
            try:
                find(rules[entry.name], required.rule)
            except UsageError as error:
                raise UsageError(f"{promised.path}:{entry.line}: require: {error}", error.hint) from None


def _general(was: Lock | None, now: Lock, *, whole: bool) -> list[Change]:
    """Return what differs from the lock beside the models that were run."""
    if was is None:
        return []
    changes = contract.compare(was, now)
    return [c for c in changes if whole and (not c.model or c.now == "no longer checked")]


def _hold(
    entry: Entry,
    rules: tuple[rule_file.Rule, ...],
    was: Lock | None,
    progress: Progress,
    pending: ExitStack,
    *,
    no_bench: bool,
) -> Outcome:
    """Run one model; what is wrong with it does not keep the others from being run."""
    outcome = Outcome(entry)
    try:
        _run(outcome, rules, was, progress, pending, no_bench=no_bench)
    except OnnxfuseError as error:
        outcome.error = error
    return outcome


def _run(
    outcome: Outcome,
    rules: tuple[rule_file.Rule, ...],
    was: Lock | None,
    progress: Progress,
    pending: ExitStack,
    *,
    no_bench: bool,
) -> None:
    entry = outcome.entry
    start = time.perf_counter()
    progress(f"{entry.name}: optimize")
    original, model = io.load(entry.path), io.load(entry.path)
    report = run(model, rules, lambda _: None, entry.path, freeze=entry.freeze_initializers)
    sizes = (io.size(original), io.size(model))
    target = entry.output or entry.path
    outcome.optimized = facts_of(report, entry.path, target, sizes, time.perf_counter() - start)
    outcome.optimized["near"] = misses.facts(misses.ranked(report), report)
    outcome.models = {"before": original, "after": model}
    _require(outcome, report, sizes[1])
    if entry.verify:
        progress(f"{entry.name}: verify")
        _verify(outcome, original, model)
    if entry.min_speedup is not None and not no_bench:
        progress(f"{entry.name}: bench")
        _bench(outcome, original, model)
    outcome.locked = contract.lock_model(report, outcome.verified)
    if was is not None:
        _against_lock(outcome, report, was)
    if entry.output is not None and not outcome.exit_code:
        progress(f"{entry.name}: write")
        pending.enter_context(io.saving(model, entry.output))
    elif entry.output is not None:
        outcome.optimized["target"] = None


def _require(outcome: Outcome, report: Report, size: int) -> None:
    """Note every fusion and size that is not as required."""
    entry, applied = outcome.entry, report.by_rule()
    for required in entry.require:
        if not required.met(applied[required.rule]):
            outcome.not_met.append(f"{required}: applied {applied[required.rule]} times")
            outcome.why += _why(report, required.rule)
    nodes = report.after.total()
    if entry.nodes is not None and nodes > entry.nodes:
        outcome.not_met.append(f"nodes<={entry.nodes}: {nodes}")
    if entry.megabytes is not None and size > entry.megabytes * 1e6:
        outcome.not_met.append(f"megabytes<={entry.megabytes:g}: {size / 1e6:.1f}")


def _verify(outcome: Outcome, original: onnx.ModelProto, model: onnx.ModelProto) -> None:
    from onnxfuse.verification import verify
    from onnxfuse.verification.crashes import Run, report_of

    entry = outcome.entry
    chosen: dict[str, Any] = {
        "inputs": entry.inputs or None,
        "seeds": range(entry.seeds),
        "shapes": dict(entry.shapes) or None,
        "providers": PROVIDERS[entry.provider],
    }
    report = isolated(lambda tell: verify(original, model, **chosen, progress=tell))
    if isinstance(report, Crash):
        report = report_of(report, Run(original, model, **chosen))
    outcome.verified = report.as_dict()
    for row in outcome.verified["outputs"]:
        used, allowed = float(row["error"]), float(row["budget"])
        if entry.error is not None and not used <= entry.error * allowed:
            share = used / allowed if allowed else float("inf")
            outcome.not_met.append(f"error<={entry.error:g}: output {row['output']} uses {share:.2f} of its budget")


def _bench(outcome: Outcome, original: onnx.ModelProto, model: onnx.ModelProto) -> None:
    from onnxfuse.benchmark import bench
    from onnxfuse.verification.crashes import Run, surviving

    entry = outcome.entry
    assert entry.min_speedup is not None
    sizes, providers = dict(entry.shapes), PROVIDERS[entry.provider]
    report = surviving(
        lambda tell: bench(original, model, shapes=sizes, providers=providers, progress=tell),
        Run(original, model, shapes=sizes, providers=providers),
    )
    missed = report.missed(entry.min_speedup)
    not_met = [f"min_speedup {entry.min_speedup:g}: {b.speedup:.4g}x at {b.name}" for b in missed]
    outcome.benched = {"ok": not missed, **report.as_dict(), "min_speedup": entry.min_speedup, "not_met": not_met}
    outcome.not_met += not_met


def _against_lock(outcome: Outcome, report: Report, was: Lock) -> None:
    """Note how the model differs from its lock, and for a lost fusion what stopped the rule."""
    name = outcome.entry.name
    assert outcome.locked is not None
    only = Lock({}, {name: was.models[name]} if name in was.models else {})
    outcome.changes += contract.compare(only, Lock({}, {name: outcome.locked}))
    if outcome.verified is not None and name in was.models:
        outcome.changes += contract.beyond_tolerance(was.models[name], outcome.verified, name)
    for change in outcome.lost:
        if change.what.startswith("fusions by "):
            name = change.what.removeprefix("fusions by ")
            outcome.why += _why(report, name, was.models[outcome.entry.name].places.get(name, ()))


def _why(report: Report, name: str, places: Sequence[str] = ()) -> list[str]:
    """Return where a rule stopped short: the places where it once applied first, then those that no fusion took."""
    taken = misses.fused_nodes(report)
    near = [n for n in misses.ranked(report) if n.rule == name]
    near = [n for n in near if n.root in places] or sorted(near, key=lambda n: n.root in taken)
    return [f"{name} at {n.root}: stopped at {n.refusal.node}: {n.refusal.reason}" for n in near[:WHYS]]


def _print(facts: dict[str, Any], done: list[Outcome], *, locked: bool, update: bool) -> None:
    console = output()
    good = sum(not o.exit_code for o in done)
    verdict = "[bold green]ok[/]" if facts["ok"] else "[bold red]failed[/]"
    console.print(f"{verdict}: {good} of {len(done)} models hold to {escape(facts['config'])}")
    table = Table("model", "nodes", "fusions", "verify", "speed-up", "verdict", box=None, pad_edge=False)
    table.header_style = "bold"
    for outcome in done:
        table.add_row(*_row(outcome))
    console.print(table)
    for outcome in done:
        _print_outcome(outcome, console, facts["lock"])
    changed = facts["changed"] + [f"{o.entry.name}: {c}" for o in done for c in o.changes if not c.lost]
    if changed:
        color = "bold red" if locked else "dim"
        console.print(f"[{color}]changed since {escape(facts['lock'])}:[/]")
        for line in changed:
            console.print(f"  {escape(line)}", style="dim")
        console.print(f"keep it: onnxfuse ci {escape(facts['config'])} --update", style="dim", soft_wrap=True)
    if facts["lock_state"] == "absent" and facts["ok"]:
        again = f"onnxfuse ci {escape(facts['config'])} --update"
        console.print(f"no {escape(facts['lock'])} yet: {again} writes it", style="dim", soft_wrap=True)
    if update and facts["lock_state"] != "written":
        console.print(f"{escape(facts['lock'])} not written: it is for models that hold", style="bold red")
    if facts["lock_state"] == "written":
        console.print(f"{escape(facts['lock'])} written")


def _row(outcome: Outcome) -> tuple[str, ...]:
    if outcome.optimized is None:
        return (escape(outcome.entry.name), "", "", "", "", "[red]error[/]")
    nodes = outcome.optimized["nodes"]
    verified = "not run" if outcome.verified is None else "ok" if outcome.verified["ok"] else "[red]MISMATCH[/]"
    speedup = "not run" if outcome.benched is None else f"{outcome.benched['speedup']:.2f}x"
    return (
        escape(outcome.entry.name),
        f"{nodes['before']} -> {nodes['after']}",
        str(sum(outcome.optimized["rules"].values())),
        verified,
        speedup,
        "[red]failed[/]" if outcome.exit_code else "[green]ok[/]",
    )


def _print_outcome(outcome: Outcome, console: Any, lock: str) -> None:
    name = escape(outcome.entry.name)
    if outcome.error is not None:
        console.print(f"[bold red]{name}:[/] {escape(str(outcome.error))}")
        console.print(escape(outcome.error.hint), style="dim")
        return
    if outcome.verified is not None and not outcome.verified["ok"]:
        console.print(f"[bold red]{name}: verify:[/] {escape(outcome.verified['summary'])}")
    for line in outcome.not_met:
        console.print(f"[bold red]{name}: not met:[/] {escape(line)}")
    for change in outcome.lost:
        console.print(f"[bold red]{name}: lost:[/] {escape(str(change))} [dim](against {escape(lock)})[/]")
    for line in dict.fromkeys(outcome.why):
        console.print(f"  why: {escape(line)}")
    if outcome.entry.output is not None and not outcome.exit_code:
        console.print(f"{escape(str(outcome.entry.output))} written", style="dim")
