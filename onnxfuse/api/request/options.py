"""How a model is optimized: one `Options` for everything that optimizes, be it to write, to explain or to compare."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfuse.contract import Requirement
from onnxfuse.rules.language import pack, rule_file
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural

if TYPE_CHECKING:
    from onnxfuse.precision import Lowering
    from onnxfuse.verification import RealInputs

Progress = Callable[[str], None]
"""Called with the name of each step as it starts."""


def silent(step: str) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class Guarding:
    """Each fusion is checked by itself, and taken back where it leaves the error budget."""

    inputs: "tuple[RealInputs, ...]" = ()
    """Real inputs, in files or as arrays by name; without them made-up ones of every kind."""


@dataclass(frozen=True)
class TuningOptions:
    """What was measured decides."""

    file: Path
    """Where the times are."""
    measure: bool = False
    """Whether what the file does not tell of this GPU is measured, and kept there."""
    sizes: tuple[Mapping[str, int], ...] = ()
    """The sets of sizes of the dynamic dimensions; without any, all that was measured."""


@dataclass(frozen=True)
class Dump:
    """Every phase and every kernel goes into a folder, as files to look at."""

    folder: Path
    """A new or an empty one."""
    arch: str | None = None
    """What kernels are compiled for, as sm_90a: by default the GPU here, or an H200."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of dynamic dimensions, for the launch plans."""


@dataclass(frozen=True)
class Compiling:
    """A kernel pack: all launch programs and compiled kernels for ranges of shapes, in a file beside the model's."""

    archs: tuple[str, ...] = ()
    """GPUs, as sm_90a: by default the one here, without one all that kernels are made for."""
    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By dimension of the inputs, the least and the greatest; by default 1 to 32 for the first one of an input, 1 to
    512 for the others."""
    ptx: bool | None = None
    """Whether kernels that later GPUs take are in it, too; by default where no GPU is named and none is here."""
    rules: tuple[Path, ...] = ()
    """Folders of the rules that made the model, beside the shipped ones."""


@dataclass(frozen=True)
class Exporting:
    """A folder that serves a fused model without Python."""

    compiling: Compiling = Compiling(ptx=True)
    at: str | None = None
    """The path of the folder where the server sees it, by default where it is written."""
    batch: bool | None = None
    """Whether Triton joins requests along the dimension that all inputs and outputs begin with; by default where there
    is one."""


@dataclass(frozen=True)
class Options:
    """What a caller chooses of how a model is optimized."""

    rules: tuple[Path, ...] = ()
    """Folders of rule files beside the shipped ones."""
    only: tuple[str, ...] = ()
    """These rules alone; without any, all."""
    skip: tuple[str, ...] = ()
    """Rules that are left out."""
    also: tuple[str, ...] = ()
    """Optional rules that are asked for; those named by `only` are, too."""
    require: tuple[Requirement, ...] = ()
    """How often rules have to apply: a model that misses one is not written."""
    strict_fp32: bool = False
    """No kernel rounds float32 to TF32, and the model says so; a model that says so keeps to it without."""
    freeze_initializers: bool = False
    """Weights that are graph inputs, too, become constants."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Numbers for dynamic dimensions, by their names, and shapes of inputs: the model is made for these alone."""
    external_data: bool | None = None
    """Whether weights are written into a file beside the model's; None leaves them where they were."""
    precision: "Lowering | None" = None
    """The model is converted to lower precision first, where its outputs keep what the contract asks."""
    guard: Guarding | None = None
    tuning: TuningOptions | None = None
    dump: Dump | None = None
    compile: Compiling | None = None
    """Where the model is written, its kernel pack is, too."""
    custom_ops: tuple[Path, ...] = ()
    """Libraries with operators of the user's own, which ONNX Runtime loads."""
    keep: bool = False
    """Whether the result holds the model as it came, too."""

    def chosen(self) -> tuple[Rule, ...]:
        """Return the rules that apply. Raises RuleError for a rule file, UsageError for a name that is no rule."""
        rules = pack.select(self.rules)
        for name in (*self.only, *self.skip):
            find(rules, name)
        for name in self.also:
            if not find(rules, name).optional:
                known = ", ".join(r.name for r in rules if r.optional) or "none"
                raise UsageError(f"'{name}' applies without --also, which is for optional rules", f"Optional: {known}.")
        named = {*self.only, *self.also}
        left = tuple(r for r in rules if r.name not in self.skip and (r.name in named or not (self.only or r.optional)))
        for required in self.require:
            must_apply(required.rule, left, rules)
        return left


def find(rules: Sequence[Rule], name: str) -> Rule:
    """Return the rule called `name`; raises UsageError that names the nearest one."""
    known = {r.name: r for r in rules}
    if name not in known:
        near = did_you_mean(name, set(known)) or f" There are: {', '.join(known)}."
        raise UsageError(f"'{name}' is not a rule.{near}", "See onnxfuse rules.")
    return known[name]


def must_apply(name: str, chosen: Sequence[Rule], rules: Sequence[Rule]) -> None:
    """Raise UsageError where the rule called `name` is none of `rules`, or optional and not among those `chosen`."""
    if name in {r.name for r in chosen}:
        return
    unasked = [r for r in rules if r.optional and r.name == name]
    if unasked:
        raise UsageError(
            f"the rule '{name}' is optional, and was not asked for",
            f'Ask for it: --also {name}, or also = ["{name}"] in onnxfuse.toml.',
        )
    find(chosen, name)


def without(rules: Sequence[Rule], names: Collection[str]) -> tuple[Rule, ...]:
    """Return the rules but those of these names."""
    return tuple(r for r in rules if r.name not in names)


def requirement(text: str) -> Requirement:
    """Return what `RULE`, `RULE>=N` or `RULE==N` asks for, as in onnxfuse.toml; raises UsageError for another text."""
    named = re.match(r"\s*(\w+)", text)
    asked = None if named is None else Requirement.of(named[1], text[named.end() :].strip() or ">=1")
    if asked is None:
        raise UsageError(
            f"require: '{text}' is not of the form RULE, RULE>=N or RULE==N", "The relations are ==, >=, <=, > and <."
        )
    return asked


def missed(report: OptimizeReport, required: Sequence[Requirement]) -> list[Requirement]:
    """Return what is required and was not reached."""
    applied = report.by_rule()
    return [r for r in required if not r.met(applied[r.rule])]


def requirement_line(report: OptimizeReport, required: Requirement) -> str:
    """Return a requirement and what came of it, in one line."""
    return f"{required}: applied {plural(report.by_rule()[required.rule], 'time')}"


def shipped_names(beginning: str) -> list[str]:
    """Return the shipped rules whose names begin so."""
    return [name for name in rule_file.shipped_files() if name.startswith(beginning)]


def optional_names(beginning: str) -> list[str]:
    """Return the shipped rules that apply only where they are asked for, whose names begin so."""
    return [r.name for r in rule_file.shipped() if r.optional and r.name.startswith(beginning)]
