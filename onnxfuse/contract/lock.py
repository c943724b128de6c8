"""The lock file `onnxfuse.lock`: results at the last update, and differences from them."""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from onnxfuse.contract import interface
from onnxfuse.files import io
from onnxfuse.model.precision_record import PrecisionRecord
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.support import json_fields
from onnxfuse.support.bounded_text import read_text
from onnxfuse.support.errors import UsageError
from onnxfuse.support.json_fields import JsonObject, as_integer, as_number, as_text
from onnxfuse.support.shown import shown

SCHEMA = 3
Kept = TypeVar("Kept")


@dataclass(frozen=True)
class ModelLock:
    """Results of one model."""

    applied: Mapping[str, int]
    """How often each rule applied."""
    exported: Mapping[str, int]
    """Node count per operator in the original model."""
    operators: Mapping[str, int]
    """Node count per operator in the optimized model; fused ops without the hash in their names."""
    opsets: Mapping[str, int] = field(default_factory=dict)
    """Opset of each domain that the original model imports; "ai.onnx" is ONNX's own."""
    provider: str = ""
    """Execution provider on which `tolerances` were measured."""
    tolerances: Mapping[str, float] = field(default_factory=dict)
    """The largest allowed difference from the original of each output."""
    precision: str = ""
    """Target type for float32; empty if not converted."""
    kept: Mapping[str, str] = field(default_factory=dict)
    """Nodes that do not compute in that type, as "Op name", with the reason."""
    places: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Where each rule applied: the node at which it began, as "Op name", and how many nodes it took. They tell a fusion
    that is lost from one that became a larger one of another rule."""
    interface: Mapping[str, str] = field(default_factory=dict)
    """The type of each input and output of the original model."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `optimize` that onnxfuse.toml sets; paths are relative to it."""
    checks: Mapping[str, Any] = field(default_factory=dict)
    """What onnxfuse.toml requires of it and how it is run and judged, as `ModelEntry.checks` has it."""


@dataclass(frozen=True)
class Lock:
    """A whole lock file."""

    rules: Mapping[str, str]
    """SHA-256 of each rule file, by rule."""
    models: Mapping[str, ModelLock]
    packs: Mapping[str, str] = field(default_factory=dict)
    """Version of each package with rules."""


NODES = "nodes of the optimized model"
APPLICATIONS = "applications of "
"""Before the name of a rule."""
OPTION = "option "
"""Before the name of an option."""
MODEL = "model"
"""What changed if a model is new, or no longer checked."""


@dataclass(frozen=True)
class Change:
    """One difference from the lock."""

    model: str
    """"" if it concerns the rules."""
    what: str
    was: str
    now: str
    regressed: bool
    """Whether it is a regression: a lost fusion, an additional node, a larger error."""
    why: tuple[str, ...] = ()
    """Its causes, as far as the lock and the results tell."""

    def __str__(self) -> str:
        return f"{self.what}: {self.text}"

    @property
    def text(self) -> str:
        """What it was and is; several counts have both in `now`."""
        return f"{self.was} -> {self.now}" if self.was else self.now

    @property
    def of_model(self) -> str:
        """The difference behind the name of its model, if it is that of one."""
        return f"{self.model}: {self}" if self.model else f"{self}"


def rule_hashes(rules: Iterable[Rule]) -> dict[str, str]:
    """Return the SHA-256 of each rule's file, including the shared parts that it uses."""
    files = {r.name: r.files or (r.path,) for r in sorted(rules, key=lambda r: r.name)}
    return {name: hashlib.sha256(b"".join(f.read_bytes() for f in each)).hexdigest() for name, each in files.items()}


def lock_model(
    report: OptimizeReport,
    verified: Mapping[str, Any] | None,
    lowered: PrecisionRecord | None = None,
    options: Mapping[str, Any] | None = None,
    checks: Mapping[str, Any] | None = None,
    values: Mapping[str, str] | None = None,
    opsets: Mapping[str, int] | None = None,
    folder: Path = Path(),
) -> ModelLock:
    """Return the lock entry of an optimized model.

    `verified` is the dictionary of verify's report; `values` and `opsets` are the interface and the opsets of the
    original model, `folder` is that of onnxfuse.toml.

    The tolerance of an output is twice the largest difference seen, and at least what verify allows its error: a run on
    other inputs of the same kind stays below, one with a lost digit does not.
    """
    plain: dict[str, int] = {}
    for op, count in report.after.items():
        name = re.sub(r"^(onnxfuse:.*)_[0-9a-f]{10}$", r"\1", op)
        plain[name] = plain.get(name, 0) + count
    tolerances = {}
    for row in (verified or {}).get("outputs", []):
        bound = max(2 * float(row["max_abs"]), float(row["budget"]))
        if math.isfinite(bound):
            tolerances[row["output"]] = float(f"{bound:.3g}")
    provider = str((verified or {}).get("provider", ""))
    nodes_by_rule: dict[str, dict[str, int]] = {}
    for applied in report.applied:
        nodes_by_rule.setdefault(applied.rule, {})[applied.root or applied.nodes[0]] = len(applied.nodes)
    return ModelLock(
        applied=_sorted(report.by_rule()),
        exported=_sorted(report.before),
        operators=_sorted(plain),
        provider=provider,
        tolerances=_sorted(tolerances),
        places=_sorted(nodes_by_rule),
        precision="" if lowered is None else lowered.precision,
        interface=dict(values or {}),
        options=_recorded({name: value for name, value in (options or {}).items() if value not in ((), None)}, folder),
        checks=_recorded(checks or {}, folder),
        opsets=_sorted(opsets or {}),
        kept={} if lowered is None else _sorted({f"{k.op} {k.node}": k.reason for k in lowered.kept}),
    )


def _sorted(table: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(table.items()))


def _recorded(table: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return values as JSON has them, so that they equal those that are read; paths relative to `folder`."""

    def relative(path: object) -> str:
        one = Path(str(path))
        return (one.relative_to(folder) if one.is_relative_to(folder) else one).as_posix()

    return _sorted(json.loads(json.dumps(table, default=relative)))


def read_lock(path: Path) -> Lock | None:
    """Return the lock in `path`; None if there is none. Raises UsageError for an invalid one."""
    if not os.path.lexists(path):
        return None
    try:
        data = json_fields.parse(read_text(path))
        version = data.at("schema")[0]
        if version != SCHEMA:
            newer = isinstance(version, int) and version > SCHEMA
            raise UsageError(
                f"{path}: is of version {shown(version)}, this onnxfuse reads version {SCHEMA}",
                "A newer onnxfuse wrote it: upgrade this one."
                if newer
                else "Run ci with the onnxfuse that wrote it first: a new lock is compared with nothing. Then write it "
                "again: onnxfuse ci --update",
            )
        models = data.object("models")
        packs = _table(data.object("packs"), as_text) if "packs" in data else {}
        models_by_name = {name: _model(models.object(name)) for name in models.all}
        return Lock(_table(data.object("rules"), as_text), models_by_name, packs)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: is not a lock file of onnxfuse ({error})", _restore(path)) from None


def _restore(path: Path) -> str:
    """Return how to get back a lock file that cannot be read; a new one would accept whatever regressed."""
    return (
        f"Restore it: git checkout -- {path}; after a merge, resolve its conflict first. Only if it is lost, write a "
        "new one, which is compared with nothing: onnxfuse ci --update"
    )


def _model(entry: JsonObject) -> ModelLock:
    entry.only(*(f.name for f in fields(ModelLock)))

    def counts(key: str, within: JsonObject = entry) -> dict[str, int]:
        return _table(within.object(key), lambda value, place: as_integer(value, place, 0, 2**31))

    places = entry.object("places")

    return ModelLock(
        applied=counts("applied"),
        exported=counts("exported"),
        operators=counts("operators"),
        opsets=counts("opsets"),
        provider=entry.text("provider"),
        tolerances=_table(entry.object("tolerances"), as_number),
        places={rule: counts(rule, places) for rule in places.all},
        precision=entry.text("precision"),
        interface=_table(entry.object("interface"), as_text),
        options=entry.object("options").all,
        checks=entry.object("checks").all,
        kept=_table(entry.object("kept"), as_text),
    )


def _table(entry: JsonObject, read: Callable[[object, str], Kept]) -> dict[str, Kept]:
    return {key: read(*entry.at(key)) for key in entry.all}


def write_lock(lock: Lock, path: Path) -> None:
    """Write `lock` atomically; equal facts produce equal bytes. Raises ModelError."""
    packs = {"packs": _sorted(lock.packs)} if lock.packs else {}
    models = {n: asdict(m) for n, m in sorted(lock.models.items())}
    document = {"schema": SCHEMA, **packs, "rules": lock.rules, "models": models}
    io.write_text(path, json.dumps(document, indent=2) + "\n")


def compare(old_lock: Lock, new_lock: Lock) -> tuple[Change, ...]:
    """Return every difference, those of the rules first, then model by model."""
    changes = [
        Change("", f"rule {name}", old_lock.rules.get(name, "none")[:12], new_lock.rules.get(name, "none")[:12], False)
        for name in sorted({*old_lock.rules, *new_lock.rules})
        if old_lock.rules.get(name) != new_lock.rules.get(name)
    ]
    changes += [
        Change("", f"rule pack {name}", old_lock.packs.get(name, "none"), new_lock.packs.get(name, "none"), False)
        for name in sorted({*old_lock.packs, *new_lock.packs})
        if old_lock.packs.get(name) != new_lock.packs.get(name)
    ]
    for name in sorted({*old_lock.models, *new_lock.models}):
        old, new = old_lock.models.get(name), new_lock.models.get(name)
        if old is None or new is None:
            words = ("not locked", "new") if old is None else ("locked", "no longer checked")
            changes.append(Change(name, MODEL, *words, False))
        else:
            changes += _compare_models(name, old, new)
    return tuple(changes)


def _compare_models(name: str, old_model: ModelLock, new_model: ModelLock) -> list[Change]:
    changes = _compare_interfaces(name, old_model.interface, new_model.interface)
    if old_model.precision != new_model.precision:
        words = (old_model.precision or "as exported", new_model.precision or "as exported")
        changes.append(Change(name, "precision", *words, not new_model.precision))
    for node in sorted(
        new_model.kept.keys() - old_model.kept.keys() if old_model.precision == new_model.precision else ()
    ):
        reasons = (new_model.kept[node],)
        changes.append(Change(name, f"precision of {node}", new_model.precision, "float32", True, reasons))
    changes += _compare_settings(name, OPTION, old_model.options, new_model.options, "default")
    changes += _compare_settings(name, "", old_model.checks, new_model.checks, "none")
    changes += _compare_settings(name, "opset of ", old_model.opsets, new_model.opsets, "none")
    changes += [
        Change(name, f"{APPLICATIONS}{rule}", str(old), str(new), new < old)
        for rule, old, new in _differences(old_model.applied, new_model.applied)
    ]
    if old_model.provider in ("", new_model.provider):  # "": nothing was verified, or no output had a tolerance
        changes += [
            Change(name, f"tolerance of output {output}", "none", f"{new_model.tolerances[output]:g}", False)
            for output in sorted(new_model.tolerances.keys() - old_model.tolerances.keys())
        ]
    nodes = sum(old_model.operators.values()), sum(new_model.operators.values())
    if nodes[0] != nodes[1]:
        more = ", ".join(
            f"{new - old} {op}" for op, old, new in _differences(old_model.operators, new_model.operators) if new > old
        )
        grown = nodes[1] > nodes[0]
        changes.append(Change(name, NODES, str(nodes[0]), str(nodes[1]), grown, (f"more remain: {more}",) * grown))
    for title, old_counts, new_counts in (
        ("exported", old_model.exported, new_model.exported),
        ("remaining", old_model.operators, new_model.operators),
    ):
        counts = ", ".join(f"{op} {old} -> {new}" for op, old, new in _differences(old_counts, new_counts))
        if counts:
            changes.append(Change(name, f"{title} operators", "", counts, False))
    return changes


def _compare_interfaces(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> list[Change]:
    reasons = dict(interface.broken(old, new))
    return [
        Change(name, value, old.get(value, interface.ABSENT), new.get(value, interface.ABSENT), value in reasons,
               tuple(filter(None, (reasons.get(value),))))
        for value in dict.fromkeys((*old, *new))
        if old.get(value) != new.get(value)
    ]  # fmt: skip


def _compare_settings(
    name: str, kind: str, old: Mapping[str, Any], new: Mapping[str, Any], absent: str
) -> list[Change]:
    """Return the differences of a table of values, each as JSON; `absent` is what stands for one that is not there."""
    before, after = ({key: json.dumps(value) for key, value in table.items()} for table in (old, new))
    return [
        Change(name, f"{kind}{key}", before.get(key, absent), after.get(key, absent), False)
        for key in sorted({*before, *after})
        if before.get(key) != after.get(key)
    ]


def _differences(before: Mapping[str, int], after: Mapping[str, int]) -> list[tuple[str, int, int]]:
    pairs = [(key, before.get(key, 0), after.get(key, 0)) for key in sorted({*before, *after})]
    return [(key, old, new) for key, old, new in pairs if old != new]


def beyond_tolerance(
    old_model: ModelLock, new_model: ModelLock, verified: Mapping[str, Any], name: str
) -> tuple[Change, ...]:
    """Return the outputs that differ from the original by more than the lock allows, on the provider of the lock."""
    if verified["provider"] != old_model.provider:
        return ()
    types = [f"in {model.precision or 'the types of the original'}" for model in (old_model, new_model)]
    other = (
        "the lock allows twice the difference at the last --update, or what verify allowed; new weights may need more"
    )
    if types[0] != types[1]:
        other = f"the lock has the difference {types[0]}, and it is computed {types[1]} now"
    return tuple(
        Change(name, f"difference of output {row['output']}", f"at most {old_model.tolerances[row['output']]:g}",
               f"{float(row['max_abs']):.3g}", True,
               (f"verify allows it: error {float(row['error']):.2g}, allowed {float(row['budget']):.2g}; {other}",)
               * (row["verdict"] == "ok"))
        for row in verified["outputs"]
        if row["output"] in old_model.tolerances and not float(row["max_abs"]) <= old_model.tolerances[row["output"]]
    )  # fmt: skip
