"""Check the models of a repository against its `onnxfuse.toml` and `onnxfuse.lock`."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack

import onnx
from rich.markup import escape

from onnxfuse.api.optimize.optimizing import Optimized, optimize, too_often
from onnxfuse.api.request.options import Options, check_applies, missed, requirement_line
from onnxfuse.api.run import running
from onnxfuse.api.run.ci_next_steps import explain_command, next_steps
from onnxfuse.api.run.running import verify
from onnxfuse.contract import config as contract_file
from onnxfuse.contract.config import Contract, ModelEntry
from onnxfuse.contract.interface import INPUT, broken, interface
from onnxfuse.contract.lock import (
    APPLICATIONS,
    MODEL,
    NODES,
    OPTION,
    Change,
    Lock,
    ModelLock,
    beyond_tolerance,
    compare,
    lock_model,
    read_lock,
    rule_hashes,
    write_lock,
)
from onnxfuse.files import io
from onnxfuse.files.atomic_write import as_model_error, check_no_links, together
from onnxfuse.model.fused import fused_ops
from onnxfuse.options.functions import CiChecks
from onnxfuse.options.groups import PROVIDERS
from onnxfuse.options.schema import filled
from onnxfuse.rules.language import pack
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match import near_misses
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.support.errors import EXPECTATION_NOT_MET, MISMATCH, OnnxfuseError, UsageError, gravest
from onnxfuse.support.plurals import agreeing, listed, plural
from onnxfuse.support.progress import Steps, silent
from onnxfuse.support.screen import Blocks, Line, Rows, Screen, advice, plain_table

KEYS = {"tolerance": "`tolerance`", "seconds": "optimize --time"}
"""Options in notes on a conversion, as onnxfuse.toml has them; the time is no key of it."""
COLORS = {"ok": "green", "failed": "red", "error": "red"}


@dataclass(frozen=True)
class Lost:
    """Where a rule applied before or was expected to, and does not."""

    reasons: tuple[str, ...]
    nodes: tuple[str, ...]
    """Names of the nodes at which it stopped short, or which other rules took."""
    taken: int
    """Number of its earlier applications whose nodes a fused op of another rule has now."""
    grown: int
    """Those of them in which that fused op has at least as many nodes."""


@dataclass
class Outcome:
    """The result of one model."""

    entry: ModelEntry
    error: OnnxfuseError | None = None
    optimized: dict[str, Any] | None = None
    verified: dict[str, Any] | None = None
    benched: dict[str, Any] | None = None
    locked: ModelLock | None = None
    not_met: list[str] = field(default_factory=list)
    changes: list[Change] = field(default_factory=list)
    why: dict[str, list[str]] = field(default_factory=dict)
    """The causes of what was not met or regressed, by its line, where they are known."""
    strict: bool = False
    """Whether every difference from the lock counts."""
    accepting: bool = False
    """Whether no difference from the lock counts: it is written anew."""
    follows: dict[str, str] = field(default_factory=dict)
    """Regressions that follow from others, by their lines."""
    models: Mapping[str, onnx.ModelProto] = field(default_factory=dict)
    """The models before and after, by these names."""
    notes: list[str] = field(default_factory=list)
    """Notes on its figures."""
    unchecked: dict[str, str] = field(default_factory=dict)
    """What the entry has that was not checked, and why."""
    lost_nodes: list[str] = field(default_factory=list)
    """Names of the nodes at which required or locked rules stopped short, or which another rule took."""

    @property
    def options(self) -> str:
        """The options of onnxfuse.toml that the lock has otherwise, as a reason; empty if there are none."""
        changed = ", ".join(str(c).removeprefix(OPTION) for c in self.changes if c.what.startswith(OPTION))
        return f"onnxfuse.toml has other options than the lock: {changed}" if changed else ""

    @property
    def regressed(self) -> list[Change]:
        """Regressions."""
        return [c for c in self.changes if c.regressed and not self.accepting]

    @property
    def is_right(self) -> bool:
        """Whether it computes what the original does, and meets every requirement, whatever the lock says."""
        return self.error is None and (self.verified is None or self.verified["ok"]) and not self.not_met

    @property
    def exit_code(self) -> int:
        """Exit code of the command line."""
        if self.error is not None:
            return self.error.exit_code
        if self.verified is not None and not self.verified["ok"]:
            return MISMATCH
        return EXPECTATION_NOT_MET if self.not_met or self.regressed or (self.strict and self.changes) else 0

    @property
    def next_steps(self) -> dict[str, str]:
        """What to do about a failure, by the step that failed."""
        fewer = any(c.what.startswith((APPLICATIONS, NODES)) for c in self.regressed)
        fewer |= any(line in self.why or line.startswith("nodes<=") for line in self.not_met)
        return next_steps(self.entry, self.verified, self.benched, fewer=fewer, nodes=self.lost_nodes)

    def row(self) -> tuple[str, ...]:
        """Return the results in one row: name, nodes, fused ops, verdict of verify, speed-up, verdict."""
        if self.optimized is None:
            return (self.entry.name, "", "", "", "", "error")
        nodes, verified, speedup = self.optimized["nodes"], "not run", "not run"
        if self.verified is not None:
            verified = "ok" if self.verified["ok"] else str(self.verified["verdict"]).upper()
            verified += f" ({self.verified['ran_as']})" if self.verified["ran_as"] else ""
        if self.benched is not None:
            slowest = min(self.benched["blocks"], key=lambda block: float(block["speedup"]))
            at = " ".join(f"{k}={v}" for k, v in slowest["dimensions"].items())
            speedup = str(slowest["faster"])
            speedup += f" at {at}" if at else ""
        return (
            self.entry.name,
            f"{nodes['before']} -> {nodes['after']}",
            str(self.optimized["fused_nodes"]),
            verified,
            speedup,
            "failed" if self.exit_code else "ok",
        )

    def lines(self, lock: str) -> Blocks:
        """Return what was missed, what regressed and why, and the notes; `lock`: the lock file, as markup."""
        name = escape(self.entry.name)
        if self.error is not None:
            yield Line(f"[bold red]{name}:[/] {escape(f'{self.error}')}", fold=True)
            for line in (*self.error.hint.splitlines(), *self.notes):
                yield Line(f"{name}: {escape(line)}", style="dim", fold=True)
            return
        if self.verified is not None:
            yield from self._verified_lines(name, self.verified)
        if self.regressed and self.options:
            yield Line(f"[yellow]{name}: note:[/] {escape(self.options)}; this may be why", fold=True)
        failed = [("not met", line, "") for line in self.not_met]
        regressed = [str(change) for change in self.regressed]
        failed += [("regressed", r, f" [dim](against {lock})[/]") for r in regressed if r not in self.follows]
        for title, line, against in failed:
            yield Line(f"[bold red]{name}: {title}:[/] {escape(line)}{against}", fold=True)
            for reason in self._reasons(line):
                yield Line(f"  why: {escape(reason)}", fold=True)
            for other in (r for r in regressed if self.follows.get(r) == line):
                yield Line(f"  and so: {escape('; '.join((other, *self._reasons(other))))}", fold=True)
        for line in self.next_steps.values():
            yield advice(f"{name}: {escape(line)}", fold=True)
        for what, reason in self.unchecked.items():
            yield Line(f"[yellow]{name}: not checked:[/] {escape(f'{what} ({reason})')}", fold=True)
        for line in self.notes:
            yield Line(f"[yellow]{name}: note:[/] {escape(line)}", fold=True)
        if self.entry.output is not None and self.optimized is not None and self.optimized["target"] is not None:
            yield Line(f"{name}: {escape(str(self.entry.output))} written", style="dim", fold=True)
        elif self.entry.output is not None:
            yield Line(f"{name}: {escape(str(self.entry.output))} not written{self._stale}", style="dim", fold=True)

    def _verified_lines(self, name: str, verified: Mapping[str, Any]) -> Blocks:
        """Return what verify found wrong, each output with its numbers."""
        if not verified["ok"]:
            yield Line(f"[bold red]{name}: verify:[/] {escape(verified['summary'])}", fold=True)
        for row in verified["outputs"]:
            if row["verdict"] == "mismatch":
                also = f"; also {row['also']}" if row["also"] else ""
                text = f"{row['element']}: {row['fault']}, worst case {row['worst_case']}{also}"
                yield Line(f"  {escape(text)}", fold=True)
        for problem in verified["problems"]:
            yield Line(f"  {escape(problem)}", fold=True)
        for line in verified["original_broken"]:
            yield Line(f"[yellow]{name}: note:[/] {escape(line)}", fold=True)

    @property
    def _stale(self) -> str:
        """What to know of an output of an earlier run that stays; empty if there is none."""
        output = self.entry.output
        return ": the file there is of an earlier run" if output is not None and output.exists() else ""

    def _reasons(self, line: str) -> list[str]:
        """Return why a line was not met or regressed, without what is said once."""
        return [reason for reason in self.why.get(line, ()) if reason != self.options]

    def changed_lines(self) -> list[str]:
        """Return the differences from the lock that are no regressions, with their reasons."""
        if self.accepting:
            return [f"{c.of_model} (a regression)" if c.regressed else c.of_model for c in self.changes]
        return ["; ".join((c.of_model, *self._reasons(str(c)))) for c in self.changes if not c.regressed]

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as plain data for JSON."""
        return {
            "name": self.entry.name,
            "path": str(self.entry.path),
            "output": None if self.entry.output is None else str(self.entry.output),
            "line": self.entry.line,
            "ok": not self.exit_code,
            "exit_code": self.exit_code,
            "error": None if self.error is None else f"{self.error}",
            "hint": "" if self.error is None else self.error.hint,
            "optimize": self.optimized,
            "verify": self.verified,
            "bench": self.benched,
            "not_met": self.not_met,
            "regressed": [str(c) for c in self.regressed],
            "changed": [str(c) for c in self.changes if not c.regressed or self.accepting],
            "why": self.why,
            "unchecked": self.unchecked,
            "next_steps": self.next_steps,
            "notes": self.notes,
        }


@dataclass(frozen=True, repr=False)
class CiResult(Screen):
    """The result of all models."""

    config: Path
    lock: Path
    lock_state: str
    """`written`, `absent` or `read`."""
    outcomes: tuple[Outcome, ...]
    changed: tuple[Change, ...]
    """Differences from the lock that do not concern the models that were run."""
    exit_code: int
    locked: bool = False
    update: bool = False
    """Whether every difference counts, and whether the lock was to be written."""
    unread: str = ""
    """Why nothing was compared with the lock that is replaced; empty if it was."""

    @property
    def accept(self) -> str:
        """The command that makes the differences from the lock its new contents; empty if there is none.

        A lock file is only written for models that compute the same and meet their requirements.
        """
        differs = bool(self.changed) or any(o.changes for o in self.outcomes)
        accepted = differs and all(o.is_right for o in self.outcomes)
        return shlex.join(["onnxfuse", "ci", str(self.config), "--update"]) if accepted else ""

    def screen(self) -> Blocks:
        """Return a table of the models, what each misses, and the differences from the lock."""
        config, lock = escape(str(self.config)), escape(str(self.lock))
        good = sum(not o.exit_code for o in self.outcomes)
        meeting = agreeing(good, "meets", "meet", of=self.outcomes)
        verdict = "failed" if self.exit_code else "ok"
        yield Line(
            f"[bold {COLORS[verdict]}]{verdict}[/]: {good} of {plural(self.outcomes, 'model')} {meeting} {config}"
            + (f", but not {lock}" if self.exit_code and good == len(self.outcomes) else ""),
            fold=True,
        )
        printed = plain_table("model", "nodes", "fused ops", "verify", "speed-up", "verdict")
        for *cells, verified, speedup, last in (o.row() for o in self.outcomes):
            shown = f"[red]{verified}[/]" if verified.partition(" ")[0].isupper() else verified
            printed.add_row(*map(escape, cells), shown, escape(speedup), f"[{COLORS[last]}]{last}[/]")
        yield Rows(printed)
        for outcome in self.outcomes:
            yield from outcome.lines(lock)
        changed = [c.of_model for c in self.changed] + [line for o in self.outcomes for line in o.changed_lines()]
        if changed:
            color = "bold red" if self.locked else "bold" if self.update else "dim"
            accepted = "accepted" if self.lock_state == "written" else "to be accepted"
            title = f"{accepted} by --update:" if self.update else f"changed since {lock}:"
            yield Line(f"[{color}]{title}[/]", fold=True)
            for line in changed:
                yield Line(f"  {escape(line)}", style="dim", fold=True)
        if self.accept and not self.update:
            purpose = "if this is intended, accept it" if self.exit_code else "to record these in the lock"
            yield advice(f"{purpose}: {escape(self.accept)}")
        if self.lock_state == "absent":
            yield Line(
                f"[yellow]no {lock} yet:[/] nothing was compared with earlier results",
                hint=f"; onnxfuse ci {config} --update writes it, then commit it",
                fold=True,
            )
        if self.update and self.lock_state != "written":
            yield Line(f"{lock} not written: every model has to pass first", style="bold red", fold=True)
        if self.lock_state == "written":
            nothing = f"; {escape(self.unread)}, so nothing was compared with it" if self.unread else ""
            yield Line(f"{lock} written{nothing}", fold=True)

    def as_dict(self) -> dict[str, Any]:
        """Return every fact as plain data for JSON."""
        return {
            "ok": not self.exit_code,
            "config": str(self.config),
            "lock": str(self.lock),
            "lock_state": self.lock_state,
            "unread": self.unread,
            "locked": self.locked,
            "changed": [c.of_model for c in self.changed],
            "accept": self.accept,
            "models": [o.as_dict() for o in self.outcomes],
        }


def ci(config: str | Path | None = None, *, progress: Steps = silent, **given: Unpack[CiChecks]) -> CiResult:
    """Check the models of `config`: optimize, verify and time them as it specifies; see `onnxfuse.ci`.

    `config` defaults to the nearest onnxfuse.toml, in the current folder or a parent. Outputs are written if everything
    passed. A failing model does not stop the others. Raises UsageError for a mistake in the file.
    """
    with checked(None if config is None else Path(config), progress=progress, **given) as result:
        return result


@contextmanager
def checked(config: Path | None, *, progress: Steps = silent, **given: Unpack[CiChecks]) -> Iterator[CiResult]:
    """Yield the result of `ci`; outputs and the lock file are put in place if the block succeeds, and otherwise
    discarded."""
    checks = filled(CiChecks, given)
    update, locked, names, bench = checks["update"], checks["locked"], checks["names"], checks["bench"]
    if update and (locked or names):
        raise UsageError("--update writes the whole lock file: it cannot be combined with --locked or --model")
    selected = read_config(config, names)
    config = selected.path
    lock_file = contract_file.lock_of(config)
    if update:
        check_no_links(lock_file, lock_file.parent)
    old_lock, unread = _replaced_lock(lock_file) if update else (read_lock(lock_file), "")
    if locked and old_lock is None:
        raise UsageError(f"{lock_file}: no such file, and --locked needs it", "Write it: onnxfuse ci --update")
    with ExitStack() as pending, together():
        _check_folders(selected)
        rules = {e.name: _options(e).chosen() for e in selected.models}
        _check_rules(selected, rules)
        every = {r.name: r for chosen in rules.values() for r in chosen}.values()
        hashes, packs = rule_hashes(every), pack.versions(every)
        general = (
            [] if old_lock is None else _other_changes(old_lock, Lock(hashes, {}, packs), selected, whole=not names)
        )
        # Differences that do not concern the models are known beforehand: then no output is written at all.
        outputs = None if locked and general else pending
        gone = [c.model for c in general if c.what == MODEL]
        run = _Run(old_lock, gone, config.parent, progress, outputs, bench)
        outcomes = tuple(_run_model(Outcome(e, strict=locked, accepting=update), run) for e in selected.models)
        new_lock = Lock(hashes, {o.entry.name: o.locked for o in outcomes if o.locked is not None}, packs)
        code = gravest([o.exit_code for o in outcomes])
        if locked and general:
            code = code or EXPECTATION_NOT_MET
        state = "written" if update and not code else "absent" if old_lock is None else "read"
        yield CiResult(config, lock_file, state, outcomes, tuple(general), code, locked, update, unread)
        if state == "written":
            write_lock(new_lock, lock_file)


def _replaced_lock(path: Path) -> tuple[Lock | None, str]:
    """Return the lock that will be replaced, or None and why nothing can be compared with it."""
    try:
        lock = read_lock(path)
    except UsageError as error:
        return None, f"{error}"
    return lock, "" if lock is not None else "there was none"


def _options(entry: ModelEntry) -> Options:
    return Options.of({**entry.options, "inputs": entry.inputs})


def read_config(config: Path | None, names: Sequence[str]) -> Contract:
    """Return the models of a file, by default the nearest onnxfuse.toml, those of `names` if there are any.

    Raises UsageError for a mistake in the file, and for a name that it has not.
    """
    entries = contract_file.read(contract_file.nearest() if config is None else config)
    valid_names = [e.name for e in entries.models]
    unknown = next((n for n in names if n not in valid_names), None)
    if unknown is not None:
        raise UsageError(f"{entries.path}: has no model '{unknown}'", f"There are: {', '.join(valid_names)}.")
    return replace(entries, models=tuple(e for e in entries.models if not names or e.name in names))


def _check_folders(entries: Contract) -> None:
    """Raise UsageError for a folder of rules that does not exist, at the line that names it."""
    for entry in entries.models:
        for folder in entry.options["rules"]:
            if not folder.is_dir():
                own = (*entry.where, "rules")
                place = entries.place(own if own in entries.positions else (*entry.where[:-2], "rules"))
                raise UsageError(
                    f"{place}: model '{entry.name}': {folder}: no such folder of rules",
                    "Give a folder that holds .toml rule files.",
                )


def _check_rules(entries: Contract, rules: Mapping[str, tuple[Rule, ...]]) -> None:
    """Raise UsageError for a requirement on a rule that does not apply, before any model is read."""
    for entry in entries.models:
        available = pack.select(entry.options["rules"]) if entry.require else ()
        for required in entry.require:
            try:
                check_applies(required.rule, rules[entry.name], available)
            except UsageError as error:
                place = entries.place((*entry.where, "require", required.rule))
                raise UsageError(f"{place}: require: {error}", error.hint) from None


def _other_changes(old_lock: Lock, new_lock: Lock, entries: Contract, *, whole: bool) -> list[Change]:
    """Return the differences from the lock that do not concern the models that are run.

    Of a run that is not `whole`, only the rules of its models are compared: others may be of other models.
    """
    if not whole:
        rules, packs = (
            {name: old[name] for name in new if name in old}
            for old, new in ((old_lock.rules, new_lock.rules), (old_lock.packs, new_lock.packs))
        )
        return list(compare(Lock(rules, {}, packs), new_lock))
    run = {e.name for e in entries.models}
    other_models = {name: model for name, model in old_lock.models.items() if name not in run}
    return list(compare(Lock(old_lock.rules, other_models, old_lock.packs), new_lock))


@dataclass(frozen=True)
class _Run:
    """What the runs of all models share."""

    lock: Lock | None
    gone: Sequence[str]
    """Models of the lock that are no longer checked."""
    folder: Path
    """The folder of the configuration."""
    progress: Steps
    pending: ExitStack | None
    """Puts outputs in place when it closes; without it none is written."""
    bench: bool


def _run_model(outcome: Outcome, run: _Run) -> Outcome:
    """Run one model; its failure does not stop the others."""
    try:
        _run(outcome, run)
    except OnnxfuseError as error:
        error.hint = error.hint.replace("--provider cpu", 'provider = "cpu" in onnxfuse.toml')
        outcome.error = error
        if not outcome.entry.path.exists() and run.lock is not None and outcome.entry.name in run.lock.models:
            outcome.notes.append(
                f'if the file was renamed, change path, and add name = "{outcome.entry.name}": it keeps its place in '
                "the lock"
            )
    return outcome


def _run(outcome: Outcome, run: _Run) -> None:
    """Like `_run_model`."""
    entry, old_lock, progress, pending = outcome.entry, run.lock, run.progress, run.pending
    progress(f"{entry.name}: optimize")
    original = io.load(entry.path)
    if fused_ops(original):
        outcome.notes.append(f"{entry.path} already contains fused ops: list the original model instead")
    optimized = optimize(entry.path, _options(entry))
    outcome.optimized = optimized.as_dict(entry.path, entry.output or entry.path)
    outcome.optimized["near"] = near_misses.facts(near_misses.ranked(optimized.report), optimized.report)
    outcome.notes += optimized.notes_for(KEYS, explain_command(entry))
    outcome.models = {"before": original, "after": optimized.model}
    locked_before = None if old_lock is None else old_lock.models.get(entry.name)
    _require(outcome, optimized, {} if locked_before is None else locked_before.places)
    try:
        _judge(outcome, run)
    except UsageError as error:
        # Sizes of onnxfuse.toml that the model no longer takes: what changed in the model comes first.
        if outcome.accepting or locked_before is None or not any(broken(locked_before.interface, interface(original))):
            raise
        outcome.unchecked |= {"verify": f"{error}"}
    outcome.unchecked |= _unchecked(entry, bench=run.bench)
    outcome.locked = lock_model(
        optimized.report,
        outcome.verified,
        optimized.lowered,
        options=entry.options,
        checks=entry.checks,
        values=interface(original),
        opsets={one.domain or "ai.onnx": one.version for one in original.opset_import},
        folder=run.folder,
    )
    if old_lock is not None:
        _against_lock(outcome, outcome.locked, optimized.report, old_lock, run.gone)
    if entry.output is not None and pending is not None and not outcome.exit_code:
        progress(f"{entry.name}: write")
        with as_model_error(entry.output):
            entry.output.parent.mkdir(parents=True, exist_ok=True)
        pending.enter_context(
            io.saving(optimized.model, entry.output, external_data=optimized.external_data, opens=optimized.opens())
        )
    elif entry.output is not None:
        outcome.optimized["target"] = None


def _judge(outcome: Outcome, run: _Run) -> None:
    """Verify and time a model as its entry says."""
    entry = outcome.entry
    if entry.verify:
        run.progress(f"{entry.name}: verify")
        _verify(outcome)
    if entry.min_speedup is not None and run.bench:
        run.progress(f"{entry.name}: bench")
        _bench(outcome, entry.min_speedup)


def _require(outcome: Outcome, optimized: Optimized, places: Mapping[str, Mapping[str, int]]) -> None:
    """Record every rule and size that does not meet its requirement; `places`: where each rule began in the lock."""
    entry, size, report = outcome.entry, optimized.sizes[1], optimized.report
    for required in missed(report, entry.require):
        line, rule = requirement_line(report, required), required.rule
        outcome.not_met.append(line)
        if required.exceeded_by(report.by_rule()[rule]):
            outcome.why[line] = too_often(report, rule)
        else:
            lost = _lost(report, rule, places.get(rule, {}))
            outcome.why[line] = [*lost.reasons] or [f"no node of the model comes near the pattern of {rule}"]
            outcome.lost_nodes += lost.nodes
    nodes = report.after.total()
    if entry.nodes is not None and nodes > entry.nodes:
        outcome.not_met.append(f"nodes<={entry.nodes}: {plural(nodes, 'node')}")
    if entry.megabytes is not None and size > entry.megabytes * 1e6:
        outcome.not_met.append(f"megabytes<={entry.megabytes:g}: {size / 1e6:.3g} MB")


def _unchecked(entry: ModelEntry, *, bench: bool) -> dict[str, str]:
    """Return the checks of an entry that it, or the call, leaves out, with the reason."""
    error = {} if entry.error is None else {f"error<={entry.error:g}": "verify = false"}
    timing = {} if entry.min_speedup is None else {f"min_speedup {entry.min_speedup:g}": "--no-bench"}
    return {**({} if entry.verify else {"verify": "verify = false", **error}), **({} if bench else timing)}


def _verify(outcome: Outcome) -> None:
    entry = outcome.entry
    report = verify(
        outcome.models["before"],
        outcome.models["after"],
        inputs=entry.inputs or None,
        seeds=range(entry.seeds),
        shapes=dict(entry.shapes) or None,
        providers=PROVIDERS[entry.provider],
    )
    outcome.verified = report.as_dict()
    for row in outcome.verified["outputs"]:
        used, allowed = float(row["error"]), float(row["budget"])
        if entry.error is not None and not used <= entry.error * allowed:
            share = used / allowed if allowed else float("inf")
            outcome.not_met.append(
                f"error<={entry.error:g}: output {row['output']} uses {share:.3g} of its budget, "
                f"{used:.2g} of {allowed:.2g}"
            )


def _bench(outcome: Outcome, required: float) -> None:
    entry = outcome.entry
    before, after = outcome.models["before"], outcome.models["after"]
    report = running.bench(before, after, shapes=dict(entry.shapes), providers=PROVIDERS[entry.provider]).report
    slow = report.missed(required)
    not_met = [f"min_speedup {required:g}: {b.measured}" for b in slow]
    if report.portable:
        outcome.notes.append(f"{report.portable}; --no-bench skips the timing")
    outcome.benched = {"ok": not slow, **report.as_dict(), "min_speedup": required, "not_met": not_met}
    outcome.not_met += not_met


def _lost(report: OptimizeReport, rule: str, places: Mapping[str, int]) -> Lost:
    """Return why a rule applies less often than required or before; `places`: where it began before, and with how many
    nodes.

    Where another rule's fused op has fewer nodes now, what stopped this rule is the cause, and comes first.
    """
    taken = near_misses.taken(report, rule, [*places])
    lesser = [place for place, applied in taken.items() if len(applied.nodes) < places[place]]
    others = [place for place in places if place not in taken]
    stopped = near_misses.began_at(report, rule, lesser)
    misses = [*stopped, *(near_misses.lost(report, rule, others) if others or not taken else [])]
    by = near_misses.fused_beside(report, stopped)
    nodes = [*by, *(n.root for n in misses), *taken]
    return Lost(
        (*near_misses.why(misses), *near_misses.why_taken(by), *near_misses.why_taken(taken)),
        tuple(node.partition(" ")[2] for node in nodes),
        len(taken),
        len(taken) - len(lesser),
    )


def _against_lock(
    outcome: Outcome, locked: ModelLock, report: OptimizeReport, old_lock: Lock, gone: Sequence[str]
) -> None:
    """Record differences from the lock and why, for a lost fusion what stopped the rule."""
    name = outcome.entry.name
    locked_before = old_lock.models.get(name)
    if locked_before is None:
        _not_locked(outcome, gone)
        return
    changes = [*compare(Lock({}, {name: locked_before}), Lock({}, {name: locked}))]
    if outcome.verified is not None:
        changes += beyond_tolerance(locked_before, locked, outcome.verified, name)
        if locked_before.tolerances and locked_before.provider != locked.provider:
            reason = f"measured on {locked_before.provider or 'no provider'}, this ran on {locked.provider}"
            outcome.unchecked["tolerances of the lock"] = reason
    grown = any(c.what == NODES and c.regressed for c in changes)
    causes: dict[str, set[str]] = {}
    for change in changes:
        reasons, line = [*change.why], str(change)
        nodes: set[str] = {change.what.removeprefix(INPUT)}
        if change.regressed and change.what.startswith(APPLICATIONS):
            rule = change.what.removeprefix(APPLICATIONS)
            lost = _lost(report, rule, locked_before.places.get(rule, {}))
            reasons += lost.reasons
            if (lost.grown if grown else lost.taken) >= int(change.was) - int(change.now):
                change = replace(change, regressed=False)  # larger fusions have all of its nodes
            else:
                outcome.lost_nodes += lost.nodes
                _follows(outcome, line, lost.reasons, causes)
            nodes = {*lost.nodes}
        elif change.what == NODES and change.regressed:
            lines = [other for other in causes if other.startswith(APPLICATIONS)]
            if lines:
                outcome.follows[line] = outcome.follows.get(lines[0], lines[0])
        if change.regressed:
            causes[line] = nodes
        outcome.changes.append(change)
        outcome.why[line] = [*dict.fromkeys(reasons)]
    if outcome.options:
        for change in outcome.regressed:
            outcome.why[str(change)].append(outcome.options)
    outcome.why = {line: reasons for line, reasons in outcome.why.items() if reasons}


def _follows(outcome: Outcome, line: str, reasons: Sequence[str], causes: Mapping[str, set[str]]) -> None:
    """Record that a regression follows from an earlier one, if its reasons name a node or value of that."""
    words = {word.strip("'\",;:()") for reason in reasons for word in reason.split()}
    cause = next((other for other, names in causes.items() if names & words), None)
    if cause is not None:
        outcome.follows[line] = outcome.follows.get(cause, cause)


def _not_locked(outcome: Outcome, gone: Sequence[str]) -> None:
    """Record that the lock has no model of this name: a failure if it has others that are no longer checked."""
    change = Change(outcome.entry.name, MODEL, "not locked", "new", bool(gone))
    outcome.changes.append(change)
    if gone and not outcome.accepting:
        outcome.why[str(change)] = [
            f"it was compared with nothing: the lock has {listed(gone)} instead, which "
            f"{agreeing(len(gone), 'is', 'are')} no longer checked; a renamed model keeps its place in the lock by "
            f'name = "{gone[0]}", in a table of its own'
        ]
    elif not outcome.accepting:
        outcome.notes.append("it is not in the lock yet, so it was compared with nothing: onnxfuse ci --update adds it")
