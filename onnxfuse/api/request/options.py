"""Optimization options: one `Options` for every function that optimizes, whether to write, explain or compare."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxfuse.contract.config import Requirement
from onnxfuse.options.groups import Optimizing
from onnxfuse.options.kinds import extents
from onnxfuse.options.schema import filled
from onnxfuse.rules.language import pack
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural

if TYPE_CHECKING:
    from onnxfuse.deploy.compiling import Compiling
    from onnxfuse.precision import Lowering
    from onnxfuse.verification import RealInputs


@dataclass(frozen=True)
class Guarding:
    """Check each fusion by itself, and revert it if it exceeds the error budget."""

    inputs: "tuple[RealInputs, ...]" = ()
    """Real inputs, in files or as arrays by name; by default generated ones of every kind."""


@dataclass(frozen=True)
class TuningOptions:
    """Decide by measured times."""

    file: Path
    """The tuning file."""
    measure: bool = False
    """Whether to measure what the file lacks for this GPU, and store it there."""
    sizes: tuple[Mapping[str, int], ...] = ()
    """Sets of sizes of the dynamic dimensions; by default all that were measured."""


@dataclass(frozen=True)
class Dump:
    """Write every phase and every kernel into a folder."""

    folder: Path
    """A new or empty folder."""
    arch: str | None = None
    """Architecture for which kernels are compiled, such as sm_90a: by default the GPU here, or an H200."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of dynamic dimensions, for the launch plans."""


@dataclass(frozen=True)
class Options:
    """Options of the optimizer: those of `options.groups.Optimizing`, which describes them, and what commands add."""

    rules: tuple[Path, ...] = ()
    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    require: tuple[Requirement, ...] = ()
    strict_fp32: bool = False
    freeze_initializers: bool = False
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    custom_ops: tuple[Path, ...] = ()
    precision: "Lowering | None" = None
    guard: Guarding | None = None
    tuning: TuningOptions | None = None
    external_data: bool | None = None
    """Whether to write weights to an external data file; None leaves them where they were."""
    dump: Dump | None = None
    compile: "Compiling | None" = None
    """Also write the kernel pack of the written model."""
    keep: bool = False
    """Whether the result also retains the original model."""

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "Options":
        """Return the options of a call: keywords of `Optimizing` as the schema reads them, absent ones at their
        defaults.

        `guard_inputs`, if there are any, replace `inputs` for the guard.
        """
        chosen: dict[str, Any] = {**filled(Optimizing, given)}
        converted = {
            "require": tuple(map(requirement, chosen["require"])),
            "shapes": extents(chosen["shapes"]),
            "precision": _lowering(chosen),
            "guard": Guarding(given.get("guard_inputs") or chosen["inputs"]) if chosen["guard"] else None,
            "tuning": None if chosen["tuning"] is None else TuningOptions(Path(chosen["tuning"])),
        }
        own = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in (chosen | converted).items() if name in own})

    def chosen(self) -> tuple[Rule, ...]:
        """Return the rules to apply. Raises RuleError for a rule file, UsageError for an unknown rule name."""
        rules = pack.select(self.rules)
        for name in (*self.only, *self.skip):
            find_rule(rules, name)
        for name in self.also:
            if not find_rule(rules, name).optional:
                optional = ", ".join(r.name for r in rules if r.optional) or "none"
                raise UsageError(
                    f"'{name}' applies without --also, which is for optional rules", f"Optional: {optional}."
                )
        named = {*self.only, *self.also}
        applied = tuple(
            r for r in rules if r.name not in self.skip and (r.name in named or not (self.only or r.optional))
        )
        for required in self.require:
            check_applies(required.rule, applied, rules)
        return applied


def _lowering(chosen: Mapping[str, Any]) -> "Lowering | None":
    """Return the requested conversion; None if there is none."""
    if chosen["precision"] is None:
        return None
    from onnxfuse.precision import SECONDS, Lowering  # ONNX Runtime is imported only when something is run.

    return Lowering(
        chosen["precision"], chosen["inputs"], chosen["tolerance"], chosen["io_precision"],
        chosen["seconds"] or SECONDS, chosen["keep_fp32"],
    )  # fmt: skip


def find_rule(rules: Sequence[Rule], name: str) -> Rule:
    """Return the rule called `name`; raises UsageError that suggests the nearest name."""
    by_name = {r.name: r for r in rules}
    if name not in by_name:
        suggestion = did_you_mean(name, set(by_name)) or f" There are: {', '.join(by_name)}."
        raise UsageError(f"'{name}' is not a rule.{suggestion}", "See onnxfuse rules.")
    return by_name[name]


def check_applies(name: str, chosen: Sequence[Rule], rules: Sequence[Rule]) -> None:
    """Raise UsageError if the rule called `name` is unknown, or not `chosen`."""
    if name in {r.name for r in chosen}:
        return
    optional = [r for r in rules if r.optional and r.name == name]
    if optional:
        raise UsageError(
            f"the rule '{name}' is optional and was not requested",
            f'Request it: --also {name}, or also = ["{name}"] in onnxfuse.toml.',
        )
    find_rule(rules, name)
    raise UsageError(f"the rule '{name}' is required, but excluded by only or skip")


def without(rules: Sequence[Rule], names: Collection[str]) -> tuple[Rule, ...]:
    """Return the rules except those of these names."""
    return tuple(r for r in rules if r.name not in names)


def requirement(text: str) -> Requirement:
    """Parse a requirement `RULE`, `RULE>=N` or `RULE==N`, as in onnxfuse.toml; raises UsageError for other text."""
    named = re.match(r"\s*(\w+)", text)
    parsed = None if named is None else Requirement.of(named[1], text[named.end() :].strip() or ">=1")
    if parsed is None:
        raise UsageError(
            f"require: '{text}' is not of the form RULE, RULE>=N or RULE==N", "The relations are ==, >=, <=, > and <."
        )
    return parsed


def missed(report: OptimizeReport, required: Sequence[Requirement]) -> list[Requirement]:
    """Return the requirements that are not met."""
    applied = report.by_rule()
    return [r for r in required if not r.met(applied[r.rule])]


def requirement_line(report: OptimizeReport, required: Requirement) -> str:
    """Format a requirement and its result in one line."""
    return f"{required}: applied {plural(report.by_rule()[required.rule], 'time')}"
