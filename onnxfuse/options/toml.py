"""Keys of `onnxfuse.toml` and their JSON schema: what it requires, and the options of `optimize` that it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from onnxfuse.options import types
from onnxfuse.options.groups import Optimizing, ProviderWord
from onnxfuse.options.kinds import (
    BOOLEAN,
    EXTENTS,
    PATH,
    SHAPES,
    STRING,
    Kind,
    OptionalFactor,
    Paths,
    Size,
    integer,
    one_of,
)
from onnxfuse.options.schema import Field, Option, fields, toml_keys
from onnxfuse.options.types import Limits

MOST_COUNT = 2**31
MOST_SEEDS = 10_000
"""Each seed is five cases, which are planned before the first is run; verify stops after five minutes of them."""
RELATION = r"\s*(==|>=|<=|>|<)\s*([0-9]{1,18})\s*"
"""A requirement on a number, such as `>=3`."""
REQUIRED = Annotated[int, Limits(least=0)] | Annotated[str, Limits(pattern=RELATION)]
REQUIRE = Kind(dict, "a table of numbers by rule", values=Kind(REQUIRED, 'a number or a string such as "==24"'))
SIZES = replace(
    SHAPES,
    expected="a table of sizes by name, such as { batch = [1, 8] }",
    values=replace(EXTENTS, type=Size | Annotated[tuple[Size, ...], Limits(items=1)]),
)
"""Sizes at which a model runs: here a list has those that a dimension takes in turn."""

# An option is a row of a table.
# fmt: off


class Budget(TypedDict, total=False):
    """The table `budget`."""

    nodes: Annotated[int | None, integer(0, MOST_COUNT), Option(None, "Maximum number of nodes.")]
    megabytes: Annotated[OptionalFactor, Option(None, "Largest size of the optimized model.")]
    error: Annotated[OptionalFactor, Option(None, "Largest share of verify's error budget that an output may use; 1 is "
        "what verify itself allows.")]


class Verify(TypedDict, total=False):
    """The table `verify`."""

    seeds: Annotated[int, integer(1, MOST_SEEDS), Option(1, "Number of seeds of generated inputs.")]
    inputs: Annotated[Paths, Option((), "Real inputs.")]


class Bench(TypedDict, total=False):
    """The table `bench`."""

    min_speedup: Annotated[OptionalFactor, Option(None, "Minimum speed-up at every shape.")]


class Model(TypedDict, total=False):
    """A table `[[model]]`, but for its tables and the options of `optimize`."""

    path: Annotated[str, PATH, Option(None, "The model, relative to this file; or a pattern, "
        "such as models/*.onnx, for a table that holds for each of these.")]
    name: Annotated[str | None, STRING, Option(None, "Name in the lock file; default the file's.")]
    output: Annotated[Path | None, PATH, Option(None, "Where the optimized model is written if "
        "everything is met; a folder if path is a pattern.")]
    require: Annotated[Mapping[str, int | str] | None, REQUIRE, Option(None,
        "How often each rule has to apply: a number is at least that, or a string such as \"==24\".")]
    shapes: Annotated[Mapping[str, int | Sequence[int]] | None, SIZES, Option(None,
        "Sizes of dynamic dimensions, or shapes of inputs, at which it runs.")]
    provider: Annotated[ProviderWord, one_of(ProviderWord), Option("auto", "Where it runs.")]


TABLES: Mapping[str, type] = {"budget": Budget, "verify": Verify, "bench": Bench}


def model_options() -> dict[str, Field]:
    """Return the options of `optimize` that are keys of a model."""
    return {name: fields(Optimizing)[name] for name in toml_keys(Optimizing)}


def explained() -> dict[str, list[tuple[str, str]]]:
    """Return what each key means, what it takes and its default, below the headings of their tables."""
    tables = {f"{name} = {{ ... }}": fields(group) for name, group in TABLES.items()}
    groups = {"[[model]] in onnxfuse.toml": fields(Model), **tables, "[[model]], as in optimize": model_options()}
    return {title: [(name, _explained(one)) for name, one in group.items()] for title, group in groups.items()}


def _explained(one: Field) -> str:
    usual = one.option.default
    default = f"; default {usual}" if usual not in (None, (), False) and one.option.shown else ""
    return f"{_help(one)}  [{expected(one.kind)}{default}]"


def expected(kind: Kind) -> str:
    """Return what a key takes, as TOML writes it."""
    return "true or false" if kind is BOOLEAN else kind.expected


def _help(one: Field) -> str:
    """Return the help of an option for readers of the file, where options are keys."""
    return one.option.help.replace("{", "").replace("}", "")


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of onnxfuse.toml."""
    model = _table({**fields(Model), **model_options()}.values())
    model["properties"] |= {name: _table(fields(group).values()) for name, group in TABLES.items()}
    model["properties"]["verify"] = {"anyOf": [{"const": False}, model["properties"]["verify"]]}
    model["required"] = ["path"]
    rules = _schema(fields(Optimizing)["rules"])
    properties = {"rules": rules, "model": {"type": "array", "items": model, "minItems": 1}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "onnxfuse.toml",
        "type": "object",
        "properties": properties,
        "required": ["model"],
        "additionalProperties": False,
    }


def _table(options: "Sequence[Field] | Any") -> dict[str, Any]:
    properties = {one.name: _schema(one) for one in options}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def _schema(one: Field) -> dict[str, Any]:
    kind = one.kind
    if kind.values is None:
        schema = types.json_schema(kind.type)
    else:
        schema = {"type": "object", "additionalProperties": types.json_schema(kind.values.type)}
    if kind.aliases:
        schema = {**schema, "enum": [*schema["enum"], *kind.aliases]}
    described = {**schema, "description": _help(one)}
    return described if one.option.default in (None, ()) else {**described, "default": one.option.default}
