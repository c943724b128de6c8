"""The contract file `onnxfuse.toml`: the models of a repository, and the requirements on each.

[[model]]
path = "export.onnx"
output = "serve.onnx"
shapes = { batch = [1, 8], sequence = 128 }
require = { layer_norm = 25, linear = "==74" }
budget = { nodes = 200, megabytes = 450, error = 0.8 }
verify = { seeds = 2 }
bench = { min_speedup = 1.2 }
precision = "float16"
"""

import operator
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnxfuse.files.atomic_write import same_file
from onnxfuse.model.precision_record import PRECISIONS, TYPES
from onnxfuse.support.bounded_text import read_text, read_toml
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import UsageError
from onnxfuse.support.json_fields import MOST_NUMBER, as_integer, shown

RELATIONS = {"==": operator.eq, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
SEE = "See onnxfuse ci --help."
NAME = "onnxfuse.toml"
LOCK = ".lock"
"""Replaces the suffix of the configuration's name."""
KINDS: dict[type, str] = {str: "a string", list: "a list", dict: "a table", bool: "true or false"}
MOST_COUNT = 2**31
MOST_SEEDS = 10_000
"""Each seed is five cases, which are planned before the first is run; verify stops after five minutes of them."""


@dataclass(frozen=True)
class Requirement:
    """Required number of applications of a rule."""

    rule: str
    relation: str
    count: int

    def met(self, count: int) -> bool:
        """Return whether `count` applications meet the requirement."""
        return bool(RELATIONS[self.relation](count, self.count))

    def __str__(self) -> str:
        return f"{self.rule}{self.relation}{self.count}"

    @classmethod
    def of(cls, rule: str, text: str) -> "Requirement | None":
        """Parse a relation and an integer, such as `>=3`; None for other text."""
        match = re.fullmatch(r"\s*(==|>=|<=|>|<)\s*([0-9]{1,18})\s*", text)
        return None if match is None else cls(rule, match[1], int(match[2]))


@dataclass(frozen=True)
class ModelEntry:
    """One model."""

    name: str
    path: Path
    line: int
    """Line at which its table starts in the file."""
    output: Path | None = None
    """Where the optimized model is written if everything is met."""
    rules: tuple[Path, ...] = ()
    skip: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """Optional rules to apply."""
    require: tuple[Requirement, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    freeze_initializers: bool = False
    """Whether weights that are also graph inputs become constants."""
    precision: str | None = None
    """Target type for float32: float16, bfloat16 or mixed."""
    io_precision: str | None = None
    """The type of float32 inputs and outputs; None if unchanged."""
    tolerance: float | None = None
    """The largest relative RMS error of outputs in lower precision; None for the contract's default."""
    keep_fp32: tuple[str, ...] = ()
    """Nodes that stay float32 in lower precision."""
    provider: str = "auto"
    inputs: tuple[Path, ...] = ()
    seeds: int = 1
    verify: bool = True
    nodes: int | None = None
    """The maximum number of nodes in the optimized model."""
    megabytes: float | None = None
    error: float | None = None
    """The largest share of verify's error budget that an output may use; 1 is what verify itself allows."""
    min_speedup: float | None = None


@dataclass(frozen=True)
class Contract:
    """A whole file."""

    path: Path
    models: tuple[ModelEntry, ...]


def nearest() -> Path:
    """Return the onnxfuse.toml of the current folder, or of the nearest parent that has one."""
    current = Path.cwd()
    above = next((n for n, folder in enumerate((current, *current.parents)) if (folder / NAME).is_file()), 0)
    return Path(*[".."] * above, NAME)


def read(path: Path) -> Contract:
    """Parse `path`; paths in it are relative to its folder. Raises UsageError with file and line."""
    try:
        text = read_text(path)
        data = read_toml(text)
    except FileNotFoundError:
        raise UsageError(
            f"{path}: no such file", "Write one with [[model]] and a path; onnxfuse ci --help tells every key."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", SEE) from None
    reader = _ConfigReader(path, text)
    reader.keys(data, {"rules", "model"}, path.name, 1)
    shared = reader.paths(data, "rules", 1)
    tables = reader.list(data, "model", dict, 1)
    if not tables:
        raise UsageError(f"{path}: names no model", "Add a table [[model]] with the key path.")
    lines = [n for n, line in enumerate(text.splitlines(), 1) if re.match(r"\s*\[\[\s*model\s*\]\]", line)]
    models = tuple(reader.model(t, shared, line) for t, line in zip(tables, [*lines, *[1] * len(tables)], strict=False))
    twice = next((m for i, m in enumerate(models) if m.name in {o.name for o in models[:i]}), None)
    if twice is not None:
        raise UsageError(f"{path}:{twice.line}: two models are called '{twice.name}'", "Give one of them another name.")
    reader.outputs_apart(models)
    return Contract(path, models)


class _ConfigReader:
    """Parses the tables; every error names the file, the line of the model's table, and the nearest valid word."""

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.lines = text.splitlines()

    def model(self, table: Mapping[str, Any], shared: tuple[Path, ...], line: int) -> ModelEntry:
        valid_keys = {
            "name",
            "path",
            "output",
            "rules",
            "skip",
            "also",
            "freeze_initializers",
            "require",
            "shapes",
            "provider",
            "budget",
            "verify",
            "bench",
            "precision",
            "io_precision",
            "tolerance",
            "keep_fp32",
        }
        self.keys(table, valid_keys, "[[model]]", line)
        if "path" not in table:
            raise self.wrong("[[model]] wants the key path", line)
        source = self.get(table, "path", str, "", line)
        budget = self.table(table, "budget", {"nodes", "megabytes", "error"}, line)
        off = table.get("verify") is False
        checks = {} if off else self.table(table, "verify", {"seeds", "inputs"}, line)
        bench = self.table(table, "bench", {"min_speedup"}, line)
        provider = self.get(table, "provider", str, "auto", line)
        if provider not in ("auto", "cpu", "cuda"):
            raise self.wrong(f"provider is {shown(provider)}, expected auto, cpu or cuda", line)
        for key in ("io_precision", "tolerance", "keep_fp32"):
            if key in table and "precision" not in table:
                raise self.wrong(f"{key} goes with precision", line)
        output = self.get(table, "output", str, None, line)
        return ModelEntry(
            name=self.get(table, "name", str, Path(source).stem, line),
            path=self.path.parent / source,
            line=line,
            output=None if output is None else self.inside(output, line),
            rules=(*shared, *self.paths(table, "rules", line)),
            skip=tuple(self.list(table, "skip", str, line)),
            also=tuple(self.list(table, "also", str, line)),
            freeze_initializers=self.get(table, "freeze_initializers", bool, False, line),
            require=tuple(
                self.requirement(rule, value, line)
                for rule, value in self.get(table, "require", dict, {}, line).items()
            ),
            shapes={name: self.sizes(name, value, line) for name, value in
                    self.get(table, "shapes", dict, {}, line).items()},
            precision=self.one_of(table, "precision", PRECISIONS, line),
            io_precision=self.one_of(table, "io_precision", tuple(TYPES), line),
            tolerance=self.number(table, "tolerance", line),
            keep_fp32=tuple(self.list(table, "keep_fp32", str, line)),
            provider=provider,
            inputs=self.paths(checks, "inputs", line),
            seeds=self.integer(checks, "seeds", line, low=1, high=MOST_SEEDS) or 1,
            verify=not off,
            nodes=self.integer(budget, "nodes", line),
            megabytes=self.number(budget, "megabytes", line),
            error=self.number(budget, "error", line),
            min_speedup=self.number(bench, "min_speedup", line),
        )  # fmt: skip

    def one_of(self, table: Mapping[str, Any], key: str, words: Sequence[str], line: int) -> str | None:
        """Return the word under a key; None if there is none."""
        word: str | None = self.get(table, key, str, None, line)
        if word is not None and word not in words:
            raise self.wrong(f"{key} is {shown(word)}, expected {', '.join(words)}", line)
        return word

    def inside(self, output: str, line: int) -> Path:
        """Return the path of an output; links and `..` may not lead out of the folder of the file that names it."""
        folder = Path(os.path.realpath(self.path.parent))
        if not Path(os.path.realpath(folder / output)).is_relative_to(folder):
            raise self.wrong(f"output is {shown(output)}, which is outside {self.path.parent or Path()}", line)
        return self.path.parent / output

    def outputs_apart(self, models: Sequence[ModelEntry]) -> None:
        """Raise UsageError for an output that would replace a model, another output, or our own files."""
        used_files = [self.path, self.path.with_suffix(LOCK), *(m.path for m in models)]
        for model in models:
            if model.output is None:
                continue
            if any(same_file(model.output, other) for other in used_files):
                raise self.wrong(f"output is {shown(str(model.output))}, which is another file's place", model.line)
            used_files.append(model.output)

    def requirement(self, rule: str, value: object, line: int) -> Requirement:
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return Requirement(rule, ">=", value)
        parsed = Requirement.of(rule, value) if isinstance(value, str) else None
        if parsed is None:
            raise self.wrong(f'require: {rule} is {shown(value)}, expected a number or a string such as "==24"', line)
        return parsed

    def sizes(self, name: str, value: object, line: int) -> tuple[int, ...]:
        sizes = value if isinstance(value, list) else [value]
        if not sizes or not all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in sizes):
            raise self.wrong(f"shapes: {name} is {shown(value)}, expected a number or a list of numbers", line)
        return tuple(sizes)

    def number(self, table: Mapping[str, Any], key: str, line: int) -> float | None:
        value = table.get(key)
        # Compared, not converted: an integer of TOML may be larger than any float, and nan is no bound.
        if value is None or (isinstance(value, int | float) and value is not True and 0 <= value <= MOST_NUMBER):
            return None if value is None else float(value)
        raise self.wrong(f"{key} is {shown(value)}, expected a number of at least 0", line)

    def integer(
        self, table: Mapping[str, Any], key: str, line: int, low: int = 0, high: int = MOST_COUNT
    ) -> int | None:
        try:
            return None if key not in table else as_integer(table[key], key, low, high)
        except ValueError as error:
            raise self.wrong(f"{error}", line) from None

    def table(self, table: Mapping[str, Any], key: str, valid_keys: set[str], line: int) -> dict[str, Any]:
        inner: dict[str, Any] = self.get(table, key, dict, {}, line)
        self.keys(inner, valid_keys, key, line)
        return inner

    def paths(self, table: Mapping[str, Any], key: str, line: int) -> tuple[Path, ...]:
        return tuple(self.path.parent / p for p in self.list(table, key, str, line))

    def list(self, table: Mapping[str, Any], key: str, kind: type, line: int) -> list[Any]:
        """Return a list whose elements are all of one kind."""
        values: list[Any] = self.get(table, key, list, [], line)
        for value in values:
            self.kind(f"{key} holds", value, kind, line)
        return values

    def get(self, table: Mapping[str, Any], key: str, kind: type, default: Any, line: int) -> Any:
        value = table.get(key, default)
        if key in table:
            self.kind(f"{key} is", value, kind, line)
        return value

    def kind(self, subject: str, value: object, kind: type, line: int) -> None:
        if not isinstance(value, kind):
            raise self.wrong(f"{subject} {shown(value)}, expected {KINDS[kind]}", line)
        if isinstance(value, str) and "\0" in value:
            raise self.wrong(f"{subject} {shown(value)}, which holds a NUL character", line)

    def keys(self, table: Mapping[str, Any], valid_keys: set[str], subject: str, line: int) -> None:
        for key in table:
            if key not in valid_keys:
                suggestion = did_you_mean(key, valid_keys) or f" It may have: {', '.join(sorted(valid_keys))}."
                at = next((n for n, text in enumerate(self.lines[line - 1 :], line) if key in text), line)
                raise self.wrong(f"'{key}' is not a key of {subject}.{suggestion}", at)

    def wrong(self, fact: str, line: int) -> UsageError:
        return UsageError(f"{self.path}:{line}: {fact}", SEE)
