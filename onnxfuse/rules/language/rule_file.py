"""Rule files: one TOML file per fusion, parsed and validated here, with errors by file and line."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from onnx import TensorProto

from onnxfuse import ops
from onnxfuse.rules.language import predicate as predicates
from onnxfuse.rules.language.fuse_table import Fuse, read_fuse, read_parts
from onnxfuse.rules.language.predicate import Binding, Predicate
from onnxfuse.rules.pattern import pattern as patterns
from onnxfuse.rules.pattern.pattern import Parts, Pattern
from onnxfuse.rules.pattern.shapes import Shapes, WrittenShape
from onnxfuse.rules.pattern.shapes import read as read_shapes
from onnxfuse.support.bounded_text import read_text, read_toml
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import RuleError
from onnxfuse.support.shown import shown

SEE = "See onnxfuse docs rule-language."
KINDS = {str: "a string", int: "an integer", bool: "true or false", list: "a list", dict: "a table"}
"""What TOML calls the types of values."""
TABLES = frozenset({"rewrite", "example", "anchor", "split", "ending"})
"""Keys whose lists contain tables; all other lists contain strings."""

SHORTEST_REFUSAL = 6
"""Characters of an example's `refusal`, which is found anywhere in the printed reasons."""

FORMS = "forms"
"""Category of the normal forms, which are passes of the pipeline."""


@dataclass(frozen=True)
class Rewrite:
    """A pattern and its replacement. Parts that depend on constants alone are evaluated at optimize time."""

    source: Pattern
    target: Pattern
    where: tuple[Predicate, ...]
    optional: Mapping[str, float]
    """Optional inputs of the pattern, and the number that stands for an absent one."""
    let: tuple[Binding, ...] = ()
    """Numbers computed from the match, by label, for the replacement."""
    about: tuple[Predicate, ...] = ()
    """Precondition checked before `where`: if false, the attempt is not reported."""


@dataclass(frozen=True)
class LayoutOptions:
    """Options of the channels-last layout phase."""

    types: tuple[int, ...]
    """Element types (`onnx.TensorProto.DataType`) of convolutions that may be converted."""


@dataclass(frozen=True)
class Example:
    """A small model and the rule's result on it; used by the tests, the docs and `onnxfuse rules NAME`."""

    text: str
    """The model, in ONNX text."""
    after: tuple[str, ...]
    """Operators after the rule, in order, fused ones as their node list `{Add Relu}`; empty for a refusal."""
    refusal: str
    """Text of `explain` if the rule does not apply."""


@dataclass(frozen=True)
class Rule:
    """One rule file."""

    name: str
    summary: str
    path: Path
    rewrites: tuple[Rewrite, ...]
    fuse: Fuse | None
    layout: LayoutOptions | None
    examples: tuple[Example, ...]
    priority: int = 0
    """Of two rules that match the same nodes the one with higher priority goes first; see `order`."""
    pack: str = ""
    """The package that provides it, with version: "acme-rules 1.2"; empty for others."""
    files: tuple[Path, ...] = ()
    """Files that define it: its own, and that of the shared parts if it uses one."""
    optional: str = ""
    """For a rule that applies only on request: when that is worthwhile; empty for all others."""


def shipped_folder() -> Path:
    """Return the folder of the shipped rules: inside the package, or next to it in a source tree."""
    package = Path(__file__).parents[1]
    return next(p for p in (package / "shipped", package.parents[1] / "rules") if p.is_dir())


@cache
def shipped_files() -> Mapping[str, Path]:
    """Return the files of the shipped rules, by rule name; their folders are categories."""
    files = (file for file in shipped_folder().glob("*/*.toml") if file.parent.name != FORMS)
    return {file.stem: file for file in sorted(files, key=lambda file: file.stem)}


@cache
def forms() -> Mapping[str, Rule]:
    """Return the normal forms by name: rewrites that the pipeline applies as passes, whichever rules are chosen."""
    return {file.stem: read(file, spellings=False) for file in sorted((shipped_folder() / FORMS).glob("*.toml"))}


def replacing(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules that override a shipped one."""
    ours = shipped_files()
    # Equal paths need no file system call: two for each rule took a tenth of the time to optimize a small model.
    return [r for r in rules if (own := ours.get(r.name, r.path)) != r.path and own.resolve() != r.path.resolve()]


def parts_file() -> Path:
    """Return the file of the shared parts that all rule files may use by name."""
    return shipped_folder() / "parts.toml"


@cache
def _shared() -> tuple[Parts, Mapping[str, list[str]]]:
    text, data = _read(parts_file())
    reader = Reader(parts_file(), text, spellings=True, parts={})
    reader.keys(data, {"part", "conditions"}, "the file of parts")
    reader.name_conditions(data)
    return read_parts(reader, reader.want(data, "part", dict, "the file of parts"), {}), reader.conditions


def shared_parts() -> Parts:
    """Return the shared parts that all rule files may use by name."""
    return _shared()[0]


def shared_conditions() -> Mapping[str, list[str]]:
    """Return the shared conditions that all rule files may use by name."""
    return _shared()[1]


@cache
def shipped() -> tuple[Rule, ...]:
    """Return the shipped rules, by name. Their spellings are checked by tests, not at each start."""
    return tuple(read(file, spellings=False) for file in shipped_files().values())


def by_default(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return the rules that are enabled by default."""
    return tuple(r for r in rules if not r.optional)


def load(folder: Path) -> tuple[Rule, ...]:
    """Return the rules in `folder`, one per .toml file, by name. Raises RuleError."""
    if not folder.is_dir():
        raise RuleError(f"{folder}: no such folder of rules", "Give a folder that holds .toml rule files.")
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise RuleError(f"{folder}: holds no .toml rule file", "Give a folder that holds .toml rule files.")
    return tuple(read(f) for f in files)


def select(folders: Iterable[Path] = ()) -> tuple[Rule, ...]:
    """Return the shipped rules and those of the user's folders; a user's rule overrides one of the same name."""
    rules = {r.name: r for r in shipped()}
    for folder in folders:
        rules.update({r.name: r for r in load(folder)})
    return tuple(rules.values())


def read(path: Path, *, spellings: bool = True) -> Rule:
    """Return the rule in one file. Raises RuleError with file, line, the expectation and the nearest valid word.

    With `spellings`, the conditions of every spelling of an anchor's parts are checked too: attention has hundreds, and
    matching instantiates only those that it needs.
    """
    text, data = _read(path)
    shared = shared_parts()
    reader = Reader(path, text, spellings=spellings, parts=shared)
    reader.conditions.update(shared_conditions())
    keys = {"summary", "optional", "priority", "conditions", "part", "rewrite", "fuse", "channels_last", "example"}
    reader.keys(data, keys, "a rule file")
    reader.name_conditions(data)
    reader.parts = read_parts(reader, reader.optional(data, "part", dict, {}), shared)
    summary = reader.want(data, "summary", str, "a rule file")
    tables = reader.optional(data, "rewrite", list, [])
    rewrites = tuple(one for table in tables for one in reader.rewrites(table, "[[rewrite]]"))
    fuse = read_fuse(reader, reader.want(data, "fuse", dict, "a rule file")) if "fuse" in data else None
    layout = reader.layout(data) if "channels_last" in data else None
    if not rewrites and fuse is None and layout is None:
        raise RuleError(f"{path}: has neither [[rewrite]] nor [fuse] nor channels_last", SEE)
    examples = tuple(reader.example(e) for e in reader.optional(data, "example", list, []))
    uses = [rf"= {name} ?[<(]" for name in shared] + [rf"\b{name}\b" for name in shared_conditions()]
    files = (path, parts_file()) if any(re.search(use, text) for use in uses) else (path,)
    priority = reader.optional(data, "priority", int, 0)
    optional = reader.optional(data, "optional", str, "")
    if "optional" in data and (not optional.strip() or "\n" in optional):
        raise RuleError(f"{reader.place('optional')}: `optional` says in one line when the rule is worth asking for")
    return Rule(path.stem, summary, path, rewrites, fuse, layout, examples, priority, files=files, optional=optional)


def _read(path: Path) -> tuple[str, dict[str, Any]]:
    try:
        text = read_text(path)
        return text, read_toml(text)
    except (OSError, ValueError) as error:
        raise RuleError(f"{path}: {error}", SEE) from None


WORD = re.compile(r"\b[A-Za-z_]\w*\b")
"""A name in a condition."""


class Reader:
    """Parser of one file's tables; every error names the file and the line."""

    def __init__(self, path: Path, text: str, *, spellings: bool, parts: Parts) -> None:
        self.path = path
        self.text = text
        self.spellings = spellings
        self.parts = parts
        """The parts that patterns may use by name."""
        self.conditions: dict[str, list[str]] = {}
        """The conditions that have a name."""
        self.places: dict[str, str] = {}
        """Memoized text searches: each anchor looks up each of its conditions again."""

    def rewrites(self, table: dict[str, Any], what: str) -> Iterator[Rewrite]:
        """Yield the rewrites of a table: one per operator that can be at the root of its pattern."""
        self.keys(table, {"from", "to", "keep", "shapes", "about", "where", "let", "optional"}, what)
        text = self.want(table, "from", str, what)
        source = self.keeping(self.shaped(patterns.parse(text, self.place(text), self.parts), table), table)
        library = next((c for c in patterns.calls_inside(source) if any(a.realize for a in c.alternatives)), None)
        if library is not None:
            raise RuleError(
                f"{source.place}: the rewrite uses the part '{library.op}', whose `realize` it ignores",
                "Give `realize` to a part that only anchors use; a rewrite writes what `to` says.",
            )
        target = self.pattern(self.want(table, "to", str, what))
        let = self.let(self.optional(table, "let", dict, {}), source)
        labels = source.labels | {binding.label for binding in let}
        if not target.labels <= labels:  # a label may be bound by whatever spelling of a part is there
            labels |= frozenset.intersection(*(frozenset(s.let) for s in patterns.every_spelling(source)))
        self.fits(target, source, source.values, labels, "`to`", "`from`")
        optional = self.optional(table, "optional", dict, {})
        for name in optional:
            if name not in source.inputs:
                raise RuleError(
                    f"{self.place(name)}: optional '{name}' is not an input of the pattern."
                    f"{did_you_mean(name, set(source.inputs))}"
                )
        source = replace(source, optional=frozenset(optional))
        if self.spellings:
            for spelling in patterns.every_spelling(source):
                predicates.spelling_conditions(spelling)
        for one in patterns.roots(source):
            about = self.where(self.lines(table, "about"), one)
            yield Rewrite(one, target, self.where_shaped(self.lines(table, "where"), one), optional, let, about)

    def layout(self, table: dict[str, Any]) -> LayoutOptions:
        return LayoutOptions(
            tuple(self.element_type(t) for t in self.want(table, "channels_last", list, "a rule file"))
        )

    def element_type(self, word: Any) -> int:
        types = {name.lower(): number for name, number in TensorProto.DataType.items()}
        types["float32"] = types["float"]
        if word not in types:
            raise RuleError(
                f"{self.place(str(word))}: '{word}' is not an element type.{did_you_mean(str(word), set(types))}"
            )
        return int(types[word])

    def fits(
        self, target: Pattern, source: Pattern, values: frozenset[str], labels: frozenset[str], what: str, of: str
    ) -> None:
        """Reject a replacement whose outputs differ from those of `source`, or that uses names that are not given."""
        if target.outputs != source.outputs:
            raise RuleError(f"{self.place(target.text)}: {what} yields {target.outputs}, {of} yields {source.outputs}")
        classes = {(n.op, n.rest) for n in source.nodes if n.is_class and n.rest} if what == "`to`" else set()
        for node in target.nodes:
            if node.is_class and (node.op, node.rest) not in classes:
                raise RuleError(
                    f"{self.place(target.text)}: {what} has a {node.op}, but {of} does not say which",
                    f"Where both have <_: string = @label> of one label, {what} has the operator that was there.",
                )
        single = {label for n in target.nodes for label in n.open.values()}
        for word in sorted((target.rests - source.rests | single & source.rests) & labels):
            stands, use = ("all other attributes", "one") if word in source.rests else ("one attribute", "all others")
            raise RuleError(
                f"{self.place(target.text)}: {what} uses '{word}' for {use}, in {of} it stands for {stands}"
            )
        gone = {o for n in source.nodes if n.op != ops.Constant and n not in source.staying for o in n.outputs}
        if what == "`to`" and (read := sorted(gone.intersection(target.inputs))):
            raise RuleError(
                f"{self.place(target.text)}: {what} reads '{read[0]}', which {of} computes: that node is replaced",
                f"Compute it in {what}, too; its inputs may be what {of} reads.",
            )
        for kind, used, names in (("value", set(target.inputs), values), ("label", set(target.labels), labels)):
            unknown = used - names
            if unknown:
                word = min(unknown)
                raise RuleError(
                    f"{self.place(target.text)}: {what} uses the {kind} '{word}', which {of} does not have."
                    f"{did_you_mean(word, names)}"
                )

    def example(self, table: dict[str, Any]) -> Example:
        self.keys(table, {"model", "after", "refusal"}, "[[example]]")
        text = self.want(table, "model", str, "[[example]]")
        after = tuple(self.optional(table, "after", list, []))
        refusal = self.optional(table, "refusal", str, "")
        if bool(after) == bool(refusal):
            raise RuleError(f"{self.place(text)}: an example has either `after` or `refusal`")
        if refusal and len(refusal) < SHORTEST_REFUSAL:
            raise RuleError(
                f"{self.place(text)}: `refusal` is {shown(refusal)}, too short to tell one reason from another",
                "Copy a part of the reason that `onnxfuse rules NAME --test` prints.",
            )
        return Example(text, after, refusal)

    def pattern(self, text: str) -> Pattern:
        return patterns.parse(text, self.place(text))

    def where(self, lines: list[str], pattern: Pattern) -> tuple[Predicate, ...]:
        return tuple(predicates.parse(line, pattern, f"{self.place(line)}: where") for line in lines)

    def where_shaped(self, lines: list[str], pattern: Pattern) -> tuple[Predicate, ...]:
        """Return the conditions that the table's shapes are, then those in `lines`."""
        return (*predicates.parse_shapes(pattern.shapes, pattern), *self.where(lines, pattern))

    def keeping(self, pattern: Pattern, table: dict[str, Any]) -> Pattern:
        """Return the pattern of a rewrite with the values that it keeps."""
        names, values = self.optional(table, "keep", list, []), pattern.values - {*pattern.inputs, *pattern.outputs}
        for name in names:
            if name not in values:
                raise RuleError(
                    f"{self.place('keep')}: keep: '{name}' is not a value inside the "
                    f"pattern.{did_you_mean(name, values)}",
                    "`keep` lists values that other nodes may read, too; inputs and outputs need no mention.",
                )
        result = replace(pattern, keep=frozenset(names))
        if any(pattern.producer(output) in result.staying for output in pattern.outputs):
            raise RuleError(
                f"{self.place('keep')}: keep: {names} are computed from the output, which `to` computes anew",
                "`keep` lists values that the output depends on.",
            )
        return result

    def shaped(self, pattern: Pattern, table: dict[str, Any]) -> Pattern:
        """Return the pattern of a table with the shapes that the table gives."""
        return replace(pattern, shapes=self.shapes(table))

    def shapes(self, table: dict[str, Any]) -> Shapes:
        """Return the shapes that a table gives its values."""
        lines = self.optional(table, "shapes", dict, {})
        odd = next((v for v in lines.values() if not isinstance(v, str)), "")
        if odd != "":
            raise RuleError(f'{self.place("shapes")}: a shape is a line of axes, as "B S D", got {shown(odd)}')
        each = ((value, text) for key, text in lines.items() for value in key.split())
        return read_shapes(tuple(WrittenShape(value, text, self.place(f'"{text}"')) for value, text in each))

    def let(self, lines: dict[str, Any], pattern: Pattern) -> tuple[Binding, ...]:
        return tuple(
            predicates.parse_let(k, str(text), pattern, f"{self.place(str(text))}: let") for k, text in lines.items()
        )

    def keys(self, table: dict[str, Any], allowed: set[str], what: str) -> None:
        for key in table:
            if key not in allowed:
                near = did_you_mean(key, allowed) or f" It may have: {', '.join(sorted(allowed))}."
                raise RuleError(f"{self.place(key)}: '{key}' is not a key of {what}.{near}", SEE)

    def want(self, table: dict[str, Any], key: str, kind: type, what: str) -> Any:
        if key not in table:
            raise RuleError(f"{self.path}: {what} needs the key '{key}'", SEE)
        return self.optional(table, key, kind, None)

    def lines(self, table: dict[str, Any], key: str) -> list[str]:
        """Return the conditions under `key`: one expression, or a list whose conjunction must hold; names opened."""
        one = table.get(key)
        lines: list[str] = [one] if isinstance(one, str) else self.optional(table, key, list, [])
        unknown = next((line for line in lines if line.isidentifier() and line not in self.conditions), None)
        if unknown is not None:
            near = did_you_mean(unknown, set(self.conditions))
            raise RuleError(
                f"{self.place(unknown)}: '{unknown}' is not a condition, and [conditions] does not name it.{near}",
                SEE,
            )
        return [each for line in lines for each in self._opened(line)]

    def _opened(self, line: str) -> list[str]:
        """Return the conditions of a name, or the condition that the line is, with those of the names in it."""
        if line in self.conditions:
            return self.conditions[line]
        for name in WORD.findall(line):
            if name in self.conditions:
                whole = " and ".join(f"({one})" for one in self.conditions[name])
                line = re.sub(rf"\b{name}\b", f"({whole})", line)
        return [line]

    def name_conditions(self, data: dict[str, Any]) -> None:
        """Read [conditions]: names under which several tables of the file share conditions."""
        for name in (table := self.optional(data, "conditions", dict, {})):
            if not name.isidentifier():
                raise RuleError(
                    f"{self.place(name)}: '{name}' is not a valid name for conditions",
                    SEE,
                )
            self.conditions[name] = self.lines(table, name)

    def optional(self, table: dict[str, Any], key: str, kind: type, default: Any) -> Any:
        value = table.get(key, default)
        if key in table and not isinstance(value, kind):
            raise RuleError(f"{self.place(key)}: '{key}' must be {KINDS[kind]}, got {shown(value)}", SEE)
        entry, entries = (dict, "tables") if key in TABLES else (str, "strings")
        odd = next((v for v in value if not isinstance(v, entry)), None) if isinstance(value, list) else None
        if odd is not None:
            raise RuleError(f"{self.place(key)}: '{key}' must be a list of {entries}, got {shown(odd)} in it", SEE)
        return value

    def place(self, fragment: str) -> str:
        """Return "file:line" of the first line where `fragment` begins."""
        if fragment not in self.places:
            self.places[fragment] = self._line_of(fragment)
        return self.places[fragment]

    def _line_of(self, fragment: str) -> str:
        first = next((line for line in fragment.splitlines() if line.strip()), fragment)
        position = self.text.find(first)
        return f"{self.path}:{self.text.count(chr(10), 0, position) + 1}" if position >= 0 else str(self.path)
