"""Declarations of options, and what follows from them for a call: defaults, checked values, signature, docstring.

A group of options is a TypedDict: its keys are keywords, their types are what callers pass, and the `Option` in the
annotation is everything else. A function or command takes the groups that it inherits.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from inspect import Parameter
from typing import Any, TypeVar, cast

from onnxfuse.options.kinds import Kind, Wrong
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import agreeing

T = TypeVar("T")
GENERAL = "General"
EVERYWHERE = "Common options"
"""Headings of options without another one, and of those that all commands have."""


@dataclass(frozen=True)
class Option:
    """One option: everything but its name and its type, which stand before it."""

    default: Any
    help: str
    """One or more sentences; `{name}` is another option, spelled as the reader knows it. Empty if `on_command` and
    `in_python` say it all, as for a flag that turns something off."""
    flag: str = ""
    """Flags on the command line, separated by commas, or `--on/--off`; empty for Python alone."""
    metavar: str = ""
    group: str = GENERAL
    """Heading in the help of commands."""
    needs: tuple[str, ...] = ()
    """Options of which one must be given with this one."""
    excludes: tuple[str, ...] = ()
    """Options that cannot be given with this one."""
    toml: bool = False
    """Whether it is a key of a model in onnxfuse.toml."""
    writes: bool = False
    """Whether it names a file or folder that is written."""
    repeated: bool = False
    """Whether a command that is suggested after a call with this option names it, too (`next_command`)."""
    complete: str = ""
    """What completion offers: rules, optional rules, or nodes."""
    words: Mapping[str, Any] = field(default_factory=dict)
    """Words of the flag with the values that they stand for, where these are not the same."""
    from_flag: Callable[[Any], Any] | None = None
    """Converts the flag's value where the keyword has another unit."""
    shown: bool = True
    """Whether the help of a command names the default."""
    on_command: str = ""
    in_python: str = ""
    """A further sentence for readers of the command line, or of Python."""


@dataclass(frozen=True)
class Argument:
    """A positional argument of a command."""

    metavar: str
    kind: str = "path"
    """path; folder: one that is there, by default the current; model: a file or - for a stream; outline: a model
    whose weights are not read; text; words; or rest: another command with its own arguments."""
    required: bool = True
    many: bool = False
    words: tuple[str, ...] = ()
    complete: str = ""


@dataclass(frozen=True)
class Field:
    """An option with its name and type, or a positional argument."""

    name: str
    type: Any
    """What callers pass."""
    kind: Kind
    option: Option

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags, the first of which messages name."""
        return tuple(re.split(r"[,/] ?", self.option.flag)) if self.option.flag else ()

    @property
    def spelled(self) -> str:
        """The option as the command line spells it in messages: its first long flag."""
        return next((flag for flag in self.flags if flag.startswith("--")), f"`{self.name}`")


def fields(group: type) -> Mapping[str, Field]:
    """Return the options of a group by name, in the order of their declaration."""
    return _fields(group)


@cache
def _fields(group: Any) -> Mapping[str, Field]:
    return {name: Field(name, kind_type, kind, option) for name, kind_type, (kind, option) in _annotated(group, Option)}


@cache
def arguments(group: type) -> Mapping[str, Argument]:
    """Return the positional arguments of a command by name."""
    return {name: found[-1] for name, _, found in _annotated(group, Argument)}


def _annotated(group: type, declared: type) -> Iterator[tuple[str, Any, Any]]:
    for name, annotation in group.__annotations__.items():
        found = getattr(annotation, "__metadata__", ())
        if found and isinstance(found[-1], declared):
            yield name, annotation.__origin__, found


def toml_keys(group: type) -> list[str]:
    """Return the options that are keys of a model in onnxfuse.toml."""
    return [name for name, one in fields(group).items() if one.option.toml]


def defaults(group: type[T]) -> T:
    """Return the options of a group with their defaults."""
    return cast(T, {name: one.option.default for name, one in fields(group).items()})


def filled(group: type[T], given: Any) -> T:
    """Return the options of a group, those that are not given by their defaults."""
    return cast(T, {**cast(dict[str, Any], defaults(group)), **given})


def part(group: type[T], given: Any) -> T:
    """Return the options of a group out of those of a larger one."""
    return cast(T, {name: given[name] for name in fields(group) if name in given})


def read(group: type, given: Mapping[str, Any], wrong: Wrong | None = None) -> dict[str, Any]:
    """Return all options of a group, checked and converted; absent ones and those that are their defaults are these.

    Raises UsageError that names the first invalid one, or what `wrong` makes of it.
    """
    options = {}
    for name, one in fields(group).items():
        value = given.get(name, one.option.default)
        options[name] = value if value is one.option.default else one.kind.read(name, value, wrong)
    return options


def check_together(group: type, given: Mapping[str, Any], spell: Callable[[Field], str]) -> None:
    """Raise UsageError for an option without another one that it needs, or with one that it excludes.

    `spell` returns an option's name as the caller knows it.
    """
    known = fields(group)
    chosen = [one for one in known.values() if is_chosen(one, given)]
    for one in chosen:
        needed = [known[name] for name in one.option.needs if name in known]
        if needed and not any(is_chosen(other, given) for other in needed):
            alike = [spell(other) for other in chosen if other.option.needs == one.option.needs]
            required = " or ".join(map(spell, needed))
            raise UsageError(f"{_listed(alike)} {agreeing(len(alike), 'goes', 'go')} with {required}")
        excluded = [known[name] for name in one.option.excludes if name in known]
        if any(is_chosen(other, given) for other in excluded):
            raise UsageError(
                f"{spell(one)} cannot be combined with any of {_listed([spell(other) for other in excluded])}"
            )


def is_chosen(one: Field, given: Mapping[str, Any]) -> bool:
    """Return whether a call gives the option a value that is not its default."""
    value = given.get(one.name)
    return value not in (None, (), {}) and value != one.option.default


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def help_text(one: Field, group: type, *, python: bool) -> str:
    """Return the help of an option for readers of Python or of the command line."""
    known = fields(group)
    words = f"{one.option.help} {one.option.in_python if python else one.option.on_command}".strip()

    def name(match: re.Match[str]) -> str:
        other = known.get(match[1])
        if python:
            return f"`{match[1]}`"
        return f"--{match[1].replace('_', '-')}" if other is None else other.spelled

    return re.sub(r"\{(\w+)\}", name, words)


def parameters(group: type) -> list[Parameter]:
    """Return the options as keyword parameters of a function."""
    return [
        Parameter(name, Parameter.KEYWORD_ONLY, default=one.option.default, annotation=one.type)
        for name, one in fields(group).items()
    ]


def options_section(group: type) -> str:
    """Return the options as a section of a docstring, one line for each."""
    return "\n".join(f"- `{name}`: {help_text(one, group, python=True)}" for name, one in fields(group).items())
