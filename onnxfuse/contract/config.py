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

`path` may be a pattern, such as "models/*.onnx": the table then holds for each file, and `output` is a folder. The same
tables may stand in pyproject.toml, as [[tool.onnxfuse.model]]. Its keys are declared in `onnxfuse.options.toml`.
"""

import glob
import itertools
import operator
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from onnxfuse.contract.toml_positions import Keys, Positions, position_of, positions
from onnxfuse.files.atomic_write import same_file
from onnxfuse.options import toml
from onnxfuse.options.groups import Optimizing
from onnxfuse.options.kinds import PATHS, Kind, Wrong
from onnxfuse.options.schema import check_together, fields
from onnxfuse.options.schema import read as read_options
from onnxfuse.support.bounded_text import read_text, read_toml
from onnxfuse.support.close_match import did_you_mean, no_such_file
from onnxfuse.support.errors import UsageError
from onnxfuse.support.shown import shown

RELATIONS = {"==": operator.eq, ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}
SEE = "See onnxfuse ci --help; onnxfuse config --schema prints the keys and their types."
NAME = "onnxfuse.toml"
PYPROJECT = "pyproject.toml"
"""Another file for the same tables, below [tool.onnxfuse]."""
TABLE = re.compile(r"^\s*\[+\s*tool\s*\.\s*onnxfuse\b", re.MULTILINE)
AT = re.compile(r" \(at line (\d+), column (\d+)\)$")
"""Where `tomllib` says that a mistake is."""
UNQUOTED = re.compile(r"[A-Za-z_./<>=*][^\s,\]}\"'#]*")
"""A value that is text, and lacks its quotes."""
PATTERN = re.compile(r"[*?\[]")
"""Characters of a pattern of files."""


@dataclass(frozen=True)
class Requirement:
    """Required number of applications of a rule."""

    rule: str
    relation: str
    count: int

    def met(self, count: int) -> bool:
        """Return whether `count` applications meet the requirement."""
        return bool(RELATIONS[self.relation](count, self.count))

    def exceeded_by(self, count: int) -> bool:
        """Return whether `count` applications miss the requirement because they are too many."""
        return not self.met(count) and self.relation in ("==", "<=", "<") and count >= self.count

    def __str__(self) -> str:
        return f"{self.rule}{self.relation}{self.count}"

    @classmethod
    def of(cls, rule: str, text: str) -> "Requirement | None":
        """Parse a relation and an integer, such as `>=3`; None for other text."""
        match = re.fullmatch(toml.RELATION, text)
        return None if match is None else cls(rule, match[1], int(match[2]))


@dataclass(frozen=True)
class ModelEntry:
    """One model."""

    name: str
    path: Path
    line: int
    """Line at which its table starts in the file."""
    where: Keys = ()
    """The way to its table in the file."""
    output: Path | None = None
    """Where the optimized model is written if all requirements are met."""
    require: tuple[Requirement, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    provider: str = "auto"
    verify: bool = True
    seeds: int = 1
    inputs: tuple[Path, ...] = ()
    nodes: int | None = None
    megabytes: float | None = None
    error: float | None = None
    min_speedup: float | None = None
    """Limits, as `onnxfuse.options.toml` describes them."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of `optimize`: the given ones, and `rules` with those of the whole file."""

    @property
    def checks(self) -> dict[str, Any]:
        """Return by what the model is judged, for the lock: each requirement and limit, and how it is run."""
        limits = {
            "budget.nodes": self.nodes,
            "budget.megabytes": self.megabytes,
            "budget.error": self.error,
            "bench.min_speedup": self.min_speedup,
        }
        return {
            "provider": self.provider,
            "verify": self.verify,
            "verify.seeds": self.seeds,
            **({"verify.inputs": self.inputs} if self.inputs else {}),
            **{f"require.{one.rule}": f"{one.relation}{one.count}" for one in self.require},
            **{f"shapes.{name}": sizes for name, sizes in self.shapes.items()},
            **{name: limit for name, limit in limits.items() if limit is not None},
        }


@dataclass(frozen=True)
class Contract:
    """A whole file."""

    path: Path
    models: tuple[ModelEntry, ...]
    positions: Mapping[Keys, Positions] = field(default_factory=dict)
    """Where its keys and values are."""

    def place(self, where: Keys) -> str:
        """Return file, line and column of a value; if the file does not have it, of what it would be in."""
        return f"{self.path}:{':'.join(map(str, position_of(self.positions, where).value))}"


def nearest() -> Path:
    """Return the configuration of the current folder, or of the nearest parent that has one.

    That is onnxfuse.toml, or a pyproject.toml with a table [tool.onnxfuse].
    """
    current = Path.cwd()
    for above in range(len(current.parents) + 1):
        folder = Path(*[".."] * above)
        if (folder / NAME).is_file():
            return folder / NAME
        project = folder / PYPROJECT
        if project.is_file() and TABLE.search(_text(project)):
            return project
    return Path(NAME)


def lock_of(config: Path) -> Path:
    """Return the lock file of a configuration, beside it."""
    return config.with_name("onnxfuse.lock") if config.name == PYPROJECT else config.with_suffix(".lock")


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except FileNotFoundError:
        raise UsageError(
            no_such_file(path), "onnxfuse init writes one; onnxfuse ci --help explains every key."
        ) from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: {error}", SEE) from None


def _tables(path: Path, text: str) -> dict[str, Any]:
    """Return the tables of a file; those of pyproject.toml are below [tool.onnxfuse]."""
    try:
        data = read_toml(text)
    except ValueError as error:
        at = AT.search(f"{error}")
        place = "" if at is None else f":{at[1]}:{at[2]}"
        unquoted = "" if at is None else _unquoted(text.splitlines()[int(at[1]) - 1 :], int(at[2]))
        raise UsageError(f"{path}{place}: {AT.sub('', f'{error}')}{unquoted}", SEE) from None
    if path.name != PYPROJECT:
        return data
    tool = data.get("tool", {})
    tables = tool.get("onnxfuse") if isinstance(tool, dict) else None
    if not isinstance(tables, dict):
        raise UsageError(f"{path}: has no table [tool.onnxfuse]", "Add [[tool.onnxfuse.model]] with the key path.")
    return tables


def _unquoted(lines: Sequence[str], column: int) -> str:
    """Return that a value needs quotes, if it is a word or a relation; `lines` from that of the value on."""
    word = UNQUOTED.match(lines[0], column - 1) if lines else None
    return f': {word[0]} needs quotes: "{word[0]}"' if word else ""


def read(path: Path) -> Contract:
    """Parse `path`; paths in it are relative to its folder. Raises UsageError with file, line and column."""
    text = _text(path)
    data = _tables(path, text)
    top: Keys = ("tool", "onnxfuse") if path.name == PYPROJECT else ()
    try:
        reader = _ConfigReader(path, text)
    except RecursionError:
        raise UsageError(f"{path}: it nests too deeply", SEE) from None
    reader.keys(data, {"rules", "model"}, path.name, top)
    shared = reader.options({name: value for name, value in data.items() if name == "rules"}, top).get("rules", ())
    tables = data.get("model", [])
    if not isinstance(tables, list):
        raise reader.wrong(f"model is {shown(tables)}, expected a list", (*top, "model"))
    if not tables:
        raise UsageError(f"{path}: lists no models", "Add a table [[model]] with the key path.")
    numbered = enumerate(tables)
    models = tuple(m for n, table in numbered for m in reader.models(table, shared, (*top, "model", n)))
    twice = next((m for i, m in enumerate(models) if m.name in {o.name for o in models[:i]}), None)
    if twice is not None:
        raise reader.wrong(
            f"two models are called '{twice.name}'",
            (*twice.where, "name"),
            f'Give one of them another name: name = "{twice.path.parent.name or "other"}-{twice.name}"',
        )
    reader.outputs_apart(models)
    return Contract(path, models, reader.positions)


class _ConfigReader:
    """Parses the tables; every error names the file, line and column of the value, and the nearest valid word.

    `where` is the way to a table or value in the file.
    """

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.positions = positions(text)

    def models(self, table: Any, shared: Sequence[Path], where: Keys) -> list[ModelEntry]:
        """Return the models of a table: one, or all that match the pattern `path`."""
        one = self.model(table, shared, where)
        pattern = one.path.relative_to(self.path.parent)
        if not PATTERN.search(str(pattern)) or one.path.exists():
            return [one]
        if "name" in table:
            raise self.wrong(f"name is for one model, but path is a pattern: {pattern}", (*where, "name"))
        fixed = Path(*itertools.takewhile(lambda part: not PATTERN.search(part), pattern.parts))
        found = sorted(map(Path, glob.glob(str(pattern), root_dir=self.path.parent, recursive=True)))
        written = None if one.output is None else Path(os.path.abspath(one.output))
        matching = [
            path
            for path in found
            if (self.path.parent / path).is_file()
            and not (written and Path(os.path.abspath(self.path.parent / path)).is_relative_to(written))
        ]
        if found and not matching:
            fact = f"path is {shown(str(pattern))}: every file that it matches is in the folder output"
            raise self.wrong(f"{fact}, {shown(table['output'])}", (*where, "output"), "Give output another folder.")
        if not matching:
            raise self.wrong(f"path is {shown(str(pattern))}, which matches no file", (*where, "path"))
        return [
            replace(
                one,
                name=path.relative_to(fixed).with_suffix("").as_posix(),
                path=self.path.parent / path,
                output=None
                if one.output is None
                else self.inside(Path(table["output"]) / path.relative_to(fixed), where),
            )
            for path in matching
        ]

    def model(self, table: Any, shared: Sequence[Path], where: Keys) -> ModelEntry:
        self.is_table("model holds", table, where)
        options = toml.model_options()
        own = {name: value for name, value in table.items() if name not in {*options, *toml.TABLES}}
        self.keys(table, {*fields(toml.Model), *options, *toml.TABLES}, "[[model]]", where)
        if "path" not in table:
            raise self.wrong("[[model]] needs the key path", where)
        model = self.read(toml.Model, own, where)
        given = self.options(table, where)
        try:
            check_together(Optimizing, given, lambda one: one.name)
        except UsageError as error:
            raise self.wrong(f"{error}", where) from None
        off = table.get("verify") is False
        limits: dict[str, Any] = {}
        for key, group in toml.TABLES.items():
            inner = {} if key == "verify" and off else table.get(key, {})
            self.is_table(f"{key} is", inner, (*where, key))
            self.keys(inner, set(fields(group)), key, (*where, key))
            limits |= self.read(group, inner, (*where, key))
        return ModelEntry(
            name=model["name"] or Path(model["path"]).stem,
            path=self.path.parent / model["path"],
            line=position_of(self.positions, where).value.line,
            where=where,
            output=None if model["output"] is None else self.inside(model["output"], where),
            require=tuple(self.requirement(rule, value) for rule, value in (model["require"] or {}).items()),
            shapes=model["shapes"] or {},
            provider=model["provider"],
            verify=not off,
            options={**given, "rules": (*shared, *given.get("rules", ()))},
            **{**limits, "inputs": self.beside(limits["inputs"])},
        )

    def read(self, group: type, table: Mapping[str, Any], where: Keys) -> dict[str, Any]:
        """Return the values of a table, absent ones at their defaults."""
        self.no_nul(table, where)
        return read_options(group, table, self.unexpected(where))

    def options(self, table: Mapping[str, Any], where: Keys) -> dict[str, Any]:
        """Return the options of `optimize` that a table has; paths are relative to the file."""
        self.no_nul(table, where)
        values = {
            name: (one.kind, one.kind.read(name, table[name], self.unexpected(where)))
            for name, one in toml.model_options().items()
            if name in table
        }
        return {name: self.beside(value) if kind is PATHS else value for name, (kind, value) in values.items()}

    def unexpected(self, where: Keys) -> Wrong:
        """Return what makes errors of wrong values in a table."""

        def wrong(name: str, value: Any, kind: Kind) -> UsageError:
            at = (*where, *name.split(": ", 1))  # `shapes: batch` is a key of a table
            if isinstance(value, list) and kind.many and kind.values is None:
                other = next(one for one in value if not isinstance(one, str))
                return self.wrong(f"{name} holds {shown(other)}, expected a string", at)
            return self.wrong(f"{name} is {shown(value)}, expected {toml.expected(kind)}", at)

        return wrong

    def beside(self, paths: Sequence[Path]) -> tuple[Path, ...]:
        """Return paths relative to the file's folder."""
        return tuple(self.path.parent / path for path in paths)

    def inside(self, output: Path, where: Keys) -> Path:
        """Return the path of an output; links and `..` may not lead out of the folder of the file that names it."""
        folder = Path(os.path.realpath(self.path.parent))
        if not Path(os.path.realpath(folder / output)).is_relative_to(folder):
            fact = f"output is {shown(str(output))}, which is outside {self.path.parent or Path()}"
            raise self.wrong(fact, (*where, "output"))
        return self.path.parent / output

    def outputs_apart(self, models: Sequence[ModelEntry]) -> None:
        """Raise UsageError for an output that would replace a model, another output, or our own files."""
        used_files = [self.path, lock_of(self.path), *(m.path for m in models)]
        for model in models:
            if model.output is None:
                continue
            if any(same_file(model.output, other) for other in used_files):
                own = same_file(model.output, model.path)
                used = "the model itself" if own else "already the path of another file"
                raise self.wrong(
                    f"output is {shown(str(model.output))}, which is {used}",
                    (*model.where, "output"),
                    "Give output another name: the original is needed for every run." if own else SEE,
                )
            used_files.append(model.output)

    def requirement(self, rule: str, value: int | str) -> Requirement:
        parsed = Requirement(rule, ">=", value) if isinstance(value, int) else Requirement.of(rule, value)
        assert parsed is not None, value  # the kind has checked it
        return parsed

    def is_table(self, subject: str, value: Any, where: Keys) -> None:
        if not isinstance(value, dict):
            raise self.wrong(f"{subject} {shown(value)}, expected a table", where)

    def no_nul(self, table: Mapping[str, Any], where: Keys) -> None:
        """Raise UsageError for a string with a NUL character, which no file name has."""
        for key, value in table.items():
            for one in value if isinstance(value, list | tuple) else (value,):
                if isinstance(one, str | Path) and "\0" in str(one):
                    raise self.wrong(f"{key} is {shown(str(one))}, which holds a NUL character", (*where, key))

    def keys(self, table: Mapping[str, Any], valid_keys: set[str], subject: str, where: Keys) -> None:
        for key in table:
            if key not in valid_keys:
                suggestion = did_you_mean(key, valid_keys) or f" It may have: {', '.join(sorted(valid_keys))}."
                raise self.wrong(f"'{key}' is not a key of {subject}.{suggestion}", (*where, key), of_key=True)

    def wrong(self, fact: str, where: Keys, hint: str = SEE, *, of_key: bool = False) -> UsageError:
        at = position_of(self.positions, where)
        line, column = at.key if of_key else at.value
        return UsageError(f"{self.path}:{line}:{column}: {fact}", hint)
