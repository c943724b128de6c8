"""Click's arguments and options, made of the schema of options."""

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from onnxfuse.cli.base.console import register_stdin
from onnxfuse.options import COMMANDS, schema
from onnxfuse.options.commands import STREAM
from onnxfuse.options.kinds import extents
from onnxfuse.options.schema import Argument, Field
from onnxfuse.support import manual
from onnxfuse.support.errors import ModelError, OnnxfuseError, UsageError

STDIN = "stdin.onnx"
"""Name of the temporary file with the model from standard input, in a folder of its own."""

COMPLETED = 200
"""Largest number of node names offered for completion."""


def from_stdin(*, weights: bool = True) -> Path:
    """Return a temporary file with the model from standard input, deleted when the command ends.

    With `weights` it must contain its own. Raises UsageError if another argument has read it, ModelError.
    """
    from onnxfuse.files.io import data_files  # ONNX is imported where a model is read

    root = click.get_current_context().find_root()
    if STDIN in root.meta:
        raise UsageError(
            "-: standard input carries one model, and two arguments are -", "Give the other model as a file."
        )
    if sys.stdin.isatty():
        raise UsageError(
            "-: standard input is a terminal, and a model is binary", "Redirect a file to it: onnxfuse ... - < IN.onnx"
        )
    folder = root.with_resource(tempfile.TemporaryDirectory(prefix="onnxfuse-"))
    root.meta[STDIN] = file = Path(folder) / STDIN
    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    register_stdin(file)
    elsewhere = data_files(file) if weights else ()
    if elsewhere:
        raise ModelError(
            f"-: the model's weights are in {elsewhere[0]}, which standard input does not carry",
            "Name the model's file in place of -, with its data file beside it; or first put the weights into the "
            "model: onnxfuse optimize IN.onnx OUT.onnx --no-external-data.",
        )
    return file


def came_through_stdin(file: Path) -> bool:
    """Return whether a model's file was created by `from_stdin`, so that its name means nothing to the caller."""
    return file.name == STDIN and file.parent.name.startswith("onnxfuse-")


class ModelFile(click.Path):
    """Path of a model; `-` is standard input."""

    def __init__(self, *, weights: bool = True) -> None:
        """`weights`: whether the command reads weights, which a stream must then contain."""
        super().__init__(path_type=Path)
        self.weights = weights

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of a file."""
        return from_stdin(weights=self.weights) if value == STREAM else super().convert(value, param, ctx)


class _Tolerance(click.ParamType[tuple[str, float]]):
    """`1e-3` for every output, `logits=1e-3` for one, `float16=1e-2` for an element type."""

    name = "[NAME=]NUMBER"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Return the name, empty for every output, and the number."""
        name, _, tolerance = str(value).rpartition("=")
        try:
            return name, float(tolerance)
        except ValueError:
            self.fail(f"'{value}' is neither a number nor OUTPUT=NUMBER nor TYPE=NUMBER", param, ctx)


class _Size(click.ParamType[tuple[str, Sequence[int]]]):
    """`name=1,7` or `name=1..32` for the values of a dimension, `input=1x3x224x224` for the shape of an input."""

    name = "NAME=SIZES"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Sequence[int]]:
        """Return the name and the sizes."""
        name, equals, sizes = (part.strip() for part in str(value).rpartition("="))
        low, dots, high = sizes.partition("..")
        if name and dots and low.strip().isdecimal() and high.strip().isdecimal():
            if int(low) > int(high):
                self.fail(f"'{value}' is reversed: the smaller size comes first, {name}={high}..{low}", param, ctx)
            return name, range(int(low), int(high) + 1)
        extents = sizes.replace("x", ",").split(",")
        if not equals or not name or not all(re.fullmatch(r"\s*[0-9]{1,18}\s*", n) for n in extents):
            self.fail(f"'{value}' is neither DIMENSION=1,7 nor DIMENSION=1..32 nor INPUT=1x3x224x224", param, ctx)
        return name, tuple(int(n) for n in extents)


def ranges(shapes: Mapping[str, int | Sequence[int]] | None) -> dict[str, tuple[int, int]]:
    """Return the least and the greatest size of each dimension. Raises UsageError for sizes that are not a range."""
    sizes_by_name = extents(shapes)
    for name, sizes in sizes_by_name.items():
        if not isinstance(sizes, range) and len(sizes) != 1:
            text = ",".join(map(str, sizes))
            raise UsageError(f"--shape {name}={text}: kernels are compiled for a range", "Use --shape batch=1..32.")
    return {name: (sizes[0], sizes[-1]) for name, sizes in sizes_by_name.items()}


def rule_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the shipped rules whose names start with a prefix, for shell completion."""
    from onnxfuse.rules.language.rule_file import shipped_files  # ONNX is imported where a rule is read

    return [name for name in shipped_files() if name.startswith(incomplete)]


def optional_rule_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the shipped optional rules whose names start with a prefix, for shell completion."""
    from onnxfuse.rules.language.rule_file import shipped

    return [r.name for r in shipped() if r.optional and r.name.startswith(incomplete)]


def node_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the nodes and values of the call's model whose names start with a prefix, for shell completion."""
    # An option without its value stops click's parser: the preceding arguments are then unparsed.
    words = (context.params.get("source"), context.params.get("model"), *context.args)
    path = next((word for word in words if word and Path(word).is_file()), None)
    if path is None:
        return []
    from onnxfuse.files import io  # ONNX is imported where a model is read
    from onnxfuse.model.nested import nodes_of

    try:
        nodes = nodes_of(io.load(Path(path), weights=False).graph)
    except OnnxfuseError:
        return []
    # As in reports: a node without a name is called by its first output.
    names = dict.fromkeys(n.name or next(filter(None, n.output), "") for n in nodes)
    return [name for name in names if name.startswith(incomplete)][:COMPLETED]


def command_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the commands whose names start with a prefix, for the first of several words; nothing for the others."""
    return [name for name in COMMANDS if name.startswith(incomplete) and not context.params.get("call")]


def page_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the pages of the documentation whose names start with a prefix; nothing after the first word."""
    return [name for name in manual.pages() if name.startswith(incomplete) and not context.params.get("words")]


Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem] | list[str]]
COMPLETE: Mapping[str, Completer] = {
    "rules": rule_names,
    "optional rules": optional_rule_names,
    "nodes": node_names,
    "commands": command_names,
    "pages": page_names,
}


def parameters(group: type) -> list[click.Parameter]:
    """Return the arguments of a command, then its options that have a flag."""
    options = schema.fields(group).values()
    return [
        *(_argument(name, argument) for name, argument in schema.arguments(group).items()),
        *(_option(one, group) for one in options if one.option.flag),
    ]


class GroupedOption(click.Option):
    """An option with the heading below which help lists it."""

    def __init__(self, *declared: Any, group: str, **given: Any) -> None:
        super().__init__(*declared, **given)
        self.group = group


def _argument(name: str, argument: Argument) -> click.Argument:
    kinds: dict[str, Any] = {
        "path": click.Path(path_type=Path),
        "model": ModelFile(),
        "outline": ModelFile(weights=False),
        "words": click.Choice(argument.words),
        "folder": click.Path(path_type=Path, file_okay=False, exists=True),
    }
    default: dict[str, Any] = {"default": Path()} if argument.kind == "folder" else {}
    return click.Argument(
        [name], metavar=argument.metavar, type=kinds.get(argument.kind), required=argument.required,
        nargs=-1 if argument.many else 1, shell_complete=COMPLETE.get(argument.complete), **default,
    )  # fmt: skip


def _option(one: Field, group: type) -> click.Option:
    option, kind = one.option, one.kind
    text = schema.help_text(one, group, python=False)
    if kind.many:
        text = text.removesuffix(".") + "; may be repeated."
    given: dict[str, Any] = {"help": text, "metavar": option.metavar or None}
    if kind.parser == "switch":
        off = option.default is True and "/" not in option.flag
        given |= {"is_flag": True, "flag_value": False} if off else {}
        given |= {} if "/" in option.flag else {"is_flag": True}
        given["default"] = option.default
        given["show_default"] = "/" in option.flag and option.default is not None
    elif kind.many:
        given |= {"multiple": True, "type": _word(one)}
    else:
        words = {repr(value): word for word, value in option.words.items()}
        default = words[repr(option.default)] if words else option.default
        given |= {"type": _word(one), "default": default, "show_default": option.shown and default is not None}
    declared = [option.flag] if "/" in option.flag else one.flags
    return GroupedOption(
        [one.name, *declared], callback=_finisher(one), shell_complete=COMPLETE.get(option.complete),
        group=option.group, **given,
    )  # fmt: skip


class _Words(click.Choice[str]):
    """A choice of words, which have other names, too; help lists the words alone."""

    def __init__(self, words: Sequence[str], aliases: Mapping[str, str]) -> None:
        super().__init__(words)
        self.aliases = aliases

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        return super().convert(self.aliases.get(value, value), parameter, context)


def _word(one: Field) -> Any:
    """Return click's type of one word of an option."""
    kind, option = one.kind, one.option
    if option.words or kind.words:
        return _Words([*option.words] or kind.words, kind.aliases)
    if option.from_flag is not None:
        return click.FloatRange(0, min_open=True)
    limits: Any = kind.limits  # those of integers are integers
    above, below = limits.above is not None, limits.below is not None
    if kind.parser == "integer":
        return click.IntRange(limits.least, limits.most)
    if kind.parser == "number":
        least, most = limits.above if above else limits.least, limits.below if below else limits.most
        return click.FloatRange(least, most, min_open=above, max_open=below)
    types: dict[str, Any] = {
        "path": click.Path(path_type=Path),
        "folder": click.Path(path_type=Path, file_okay=False),
        "size": _Size(),
        "tolerance": _Tolerance(),
    }
    return types.get(kind.parser, click.STRING)


def _finisher(one: Field) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return what turns the flag's value into the keyword's."""
    kind, option = one.kind, one.option

    def finish(_: click.Context, __: click.Parameter, value: Any) -> Any:
        if kind.parser == "list":
            value = tuple(name.strip() for names in value for name in names.split(",") if name.strip())
        if kind.many:
            return kind.collect(value) if value else option.default
        if option.words:
            return option.words[value]
        return value if value is None or option.from_flag is None else option.from_flag(value)

    return finish
