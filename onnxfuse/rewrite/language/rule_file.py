"""Rules are data: one TOML file, one fusion. This module reads them and refuses what is wrong, by file and line."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from onnx import TensorProto

from onnxfuse import kernels
from onnxfuse.model.errors import RuleError
from onnxfuse.model.text import read_toml
from onnxfuse.rewrite.language import pattern as patterns
from onnxfuse.rewrite.language import predicate as predicates
from onnxfuse.rewrite.language.pattern import Alternative, Line, Parts, Pattern, did_you_mean
from onnxfuse.rewrite.language.predicate import Binding, Predicate

FUSE_KEYS = {
    "anchor", "define", "split", "template", "library", "prologue", "epilogue", "beside", "over", "broadcast", "least",
    "terms_last", "transposes", "ending",
}  # fmt: skip
TABLES = frozenset({"rewrite", "example", "anchor", "define", "split", "ending"})
"""Keys whose lists are of tables; all other lists are of texts."""

TEMPLATES = ("depthwise", "attention", "row", "gemm", "direct", "library", "pointwise", "concat")
"""The kernel templates, strongest first: in this order fuse rules take their nodes."""

THROUGH_LIBRARY = "library"
"""The template without kernels: `realize` does the work."""

ANY_POINTWISE = "pointwise"
"""An anchor that is this word instead of a pattern: any operator of the body language."""

ANY_CONCAT = "concat"
"""An anchor that is this word: a Concat of channels, all of which other fused ops compute for it alone."""

ANY_MOVEMENT = "movement"
"""The same for data movement: the region grows through both, where that saves a pass."""


@dataclass(frozen=True)
class Rewrite:
    """A pattern and what stands in its place. What depends on constants alone is computed at optimize time."""

    source: Pattern
    target: Pattern
    where: tuple[Predicate, ...]
    optional: Mapping[str, float]
    """Optional inputs of the pattern, and the number that an absent one counts as."""
    let: tuple[Binding, ...] = ()
    """Numbers that the match gives, by label, for the target."""


@dataclass(frozen=True)
class Anchor:
    """What a fusion starts from."""

    pattern: Pattern
    where: tuple[Predicate, ...]
    let: tuple[Binding, ...] = ()
    """Numbers that the match gives, by label, for `realize`."""
    realize: Pattern | None = None
    """The anchor through an op of ONNX Runtime's own, on CUDA: of a template with kernels where no kernel runs."""
    cost: tuple[Predicate, ...] = ()
    """Where the kernel is worth it, as far as is known without measuring; when tuning, measuring decides instead."""
    kernel: tuple[Predicate, ...] = ()
    """Where the template's kernel takes what nothing grows onto, if `cost` holds too; elsewhere, and where this is
    empty, `realize`."""


@dataclass(frozen=True)
class Fuse:
    """An anchor and what may grow onto it; the matched nodes themselves become the body of the fused op."""

    anchors: tuple[Anchor, ...]
    """Alternative spellings; empty for ANY_POINTWISE and ANY_MOVEMENT."""
    splits: tuple[Rewrite, ...]
    """One node written as the library's product and what a kernel can do after it; undone where no kernel does."""
    template: str
    library: bool
    """The anchor stays a plain node that the library runs; the kernel is what grew after it."""
    prologue: bool
    epilogue: bool
    beside: str
    """An input of the anchors: those that read the same value there become one fused op; empty = each for itself."""
    over: str
    """An input of the anchors whose shape the kernel runs over, where they end in a smaller one; empty = their end."""
    broadcast: str
    """An input of the anchors that is broadcast to their end: what computes it joins, once for each place."""
    moving: bool
    """The anchor is ANY_MOVEMENT."""
    least: int
    """With fewer grown nodes than this, nothing is fused."""
    terms_last: tuple[int, ...] = ()
    """Element types whose products get their constant weights [n, k], a column's terms side by side."""
    transposes: bool = False
    """The Transpose of an output, and the Reshape before it, join: the kernel writes it so; rows are read so, too."""
    joining: bool = False
    """The anchor is ANY_CONCAT."""
    factor: str = ""
    """An input of the anchors that the kernel computes: the prologue grows before it alone; empty = before all."""
    endings: tuple[Anchor, ...] = ()
    """What reads an output of the kernel and, where the template can, becomes an output of it, too."""


@dataclass(frozen=True)
class Layout:
    """Regions of convolutions run channels last."""

    types: tuple[int, ...]
    """Element types (`onnx.TensorProto.DataType`) of the convolutions that may be turned."""


@dataclass(frozen=True)
class Example:
    """A small model with what the rule makes of it; read by the tests, the docs and `onnxfuse rules NAME`."""

    text: str
    """The model, in ONNX text."""
    after: tuple[str, ...]
    """Operators that are left, in order, fused ones as their node list `{Add Relu}`; empty for a refusal."""
    refusal: str
    """What `explain` says where the rule does not apply."""


@dataclass(frozen=True)
class Rule:
    """One rule file."""

    name: str
    summary: str
    path: Path
    rewrites: tuple[Rewrite, ...]
    fuse: Fuse | None
    layout: Layout | None
    examples: tuple[Example, ...]


def shipped_folder() -> Path:
    """Return the folder of the rules that come with onnxfuse: in the package, or beside it in a source tree."""
    package = Path(__file__).parents[2]
    return next(p for p in (package / "rules", package.parent / "rules") if p.is_dir())


@cache
def shipped_files() -> Mapping[str, Path]:
    """Return the files of the rules that come with onnxfuse, by the rules' names; their folders say what they fuse."""
    return {file.stem: file for file in sorted(shipped_folder().glob("*/*.toml"), key=lambda file: file.stem)}


@cache
def shipped() -> tuple[Rule, ...]:
    """Return the rules that come with onnxfuse, by name. Tests check their spellings, not each start."""
    return tuple(read(file, spellings=False) for file in shipped_files().values())


def load(folder: Path) -> tuple[Rule, ...]:
    """Return the rules in `folder`, one per .toml file, by name. Raises RuleError."""
    if not folder.is_dir():
        raise RuleError(f"{folder}: no such folder of rules", "Give a folder that holds .toml rule files.")
    files = sorted(folder.glob("*.toml"))
    if not files:
        raise RuleError(f"{folder}: holds no .toml rule file", "Give a folder that holds .toml rule files.")
    return tuple(read(f) for f in files)


def select(folders: Iterable[Path] = ()) -> tuple[Rule, ...]:
    """Return the shipped rules and those of the user's folders; a user's rule of the same name takes its place."""
    found = {r.name: r for r in shipped()}
    for folder in folders:
        found.update({r.name: r for r in load(folder)})
    return tuple(found.values())


def read(path: Path, *, spellings: bool = True) -> Rule:
    """Return the rule in one file. Raises RuleError with file, line, what was expected and the nearest valid word.

    With `spellings`, what every spelling of the parts of an anchor asks is checked too: attention has hundreds, and
    matching makes those that it needs.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = read_toml(text)
    except (OSError, ValueError) as error:
        raise RuleError(f"{path}: {error}", "See rules/README.md.") from None
    reader = _Reader(path, text, spellings=spellings)
    reader.keys(data, {"summary", "rewrite", "fuse", "layout", "example"}, "a rule file")
    summary = reader.want(data, "summary", str, "a rule file")
    rewrites = tuple(reader.rewrite(r, "[[rewrite]]") for r in reader.optional(data, "rewrite", list, []))
    fuse = reader.fuse(reader.want(data, "fuse", dict, "a rule file")) if "fuse" in data else None
    layout = reader.layout(reader.want(data, "layout", dict, "a rule file")) if "layout" in data else None
    if not rewrites and fuse is None and layout is None:
        raise RuleError(f"{path}: has neither [[rewrite]] nor [fuse] nor [layout]", "See rules/README.md.")
    examples = tuple(reader.example(e) for e in reader.optional(data, "example", list, []))
    return Rule(path.stem, summary, path, rewrites, fuse, layout, examples)


class _Reader:
    """Reads the tables of one file; every complaint names the file and the line where its words stand."""

    def __init__(self, path: Path, text: str, *, spellings: bool) -> None:
        self.path = path
        self.text = text
        self.spellings = spellings

    def rewrite(self, table: dict[str, Any], what: str) -> Rewrite:
        self.keys(table, {"from", "to", "where", "let", "optional"}, what)
        source = self.pattern(self.want(table, "from", str, what))
        target = self.pattern(self.want(table, "to", str, what))
        let = self.let(self.optional(table, "let", dict, {}), source)
        labels = source.labels | {binding.label for binding in let}
        self.fits(target, source, source.values, labels, "`to`", "`from`")
        optional = self.optional(table, "optional", dict, {})
        for name in optional:
            if name not in source.inputs:
                raise RuleError(
                    f"{self.place(name)}: optional '{name}' is not an input of the pattern."
                    f"{did_you_mean(name, set(source.inputs))}"
                )
        source = replace(source, optional=frozenset(optional))
        return Rewrite(source, target, self.where(self.optional(table, "where", list, []), source), optional, let)

    def fuse(self, table: dict[str, Any]) -> Fuse:
        self.keys(table, FUSE_KEYS, "[fuse]")
        template = self.want(table, "template", str, "[fuse]")
        if template not in TEMPLATES:
            near = did_you_mean(template, set(TEMPLATES)) or f" There are: {', '.join(TEMPLATES)}."
            raise RuleError(f"{self.place(template)}: '{template}' is not a template.{near}")
        anchor = table.get("anchor")
        if anchor in (ANY_POINTWISE, ANY_MOVEMENT, ANY_CONCAT):
            anchors: tuple[Anchor, ...] = ()
        elif isinstance(anchor, list) and anchor:
            parts = self.parts(self.optional(table, "define", list, []))
            anchors = tuple(a for t in self.want(table, "anchor", list, "[fuse]") for a in self.anchors(t, parts))
        else:
            words = f'"{ANY_POINTWISE}", "{ANY_MOVEMENT}", "{ANY_CONCAT}"'
            raise RuleError(f"{self.place('anchor')}: `anchor` must be {words} or tables [[fuse.anchor]]")
        grow = {k: self.optional(table, k, str, "") for k in ("prologue", "epilogue")}
        extra = next((k for k in ("library", *grow) if table.get(k) and any(a.realize for a in anchors)), None)
        if extra is not None and not kernels.is_template(template):
            raise RuleError(f"{self.place(extra)}: `{extra}` and `realize` exclude each other: it is the whole anchor")
        factor = "" if grow["prologue"] in ("", "pointwise") else self.common_input(table, "prologue", anchors)
        for key, value in grow.items():
            if value not in ("", "pointwise", factor):
                raise RuleError(f'{self.place(value)}: `{key}` can only be "pointwise", got "{value}"')
        splits = tuple(self.rewrite(t, "[[fuse.split]]") for t in self.optional(table, "split", list, []))
        return Fuse(
            anchors,
            splits, template, self.optional(table, "library", bool, False),
            grow["prologue"] == "pointwise", bool(grow["epilogue"]), self.common_input(table, "beside", anchors),
            self.common_input(table, "over", anchors), self.common_input(table, "broadcast", anchors),
            anchor == ANY_MOVEMENT, self.optional(table, "least", int, 0),
            terms_last=tuple(self.element_type(t) for t in self.optional(table, "terms_last", list, [])),
            transposes=self.optional(table, "transposes", bool, False),
            joining=anchor == ANY_CONCAT,
            factor=factor,
            endings=tuple(self.ending(t) for t in self.optional(table, "ending", list, [])),
        )  # fmt: skip

    def layout(self, table: dict[str, Any]) -> Layout:
        self.keys(table, {"channels", "types"}, "[layout]")
        if self.want(table, "channels", str, "[layout]") != "last":
            raise RuleError(f'{self.place("channels")}: `channels` can only be "last", got "{table["channels"]}"')
        return Layout(tuple(self.element_type(t) for t in self.want(table, "types", list, "[layout]")))

    def element_type(self, word: Any) -> int:
        known = {name.lower(): number for name, number in TensorProto.DataType.items()}
        known["float32"] = known["float"]
        if word not in known:
            raise RuleError(
                f"{self.place(str(word))}: '{word}' is not an element type.{did_you_mean(str(word), set(known))}"
            )
        return int(known[word])

    def common_input(self, table: dict[str, Any], key: str, anchors: tuple[Anchor, ...]) -> str:
        name: str = self.optional(table, key, str, "")
        if name and any(name not in a.pattern.inputs for a in anchors):
            raise RuleError(f"{self.place(key)}: `{key}` is '{name}', which is not an input of every anchor")
        return name

    def parts(self, tables: list[dict[str, Any]]) -> Parts:
        """Return the named parts; one may use those that were defined before it."""
        found: dict[str, tuple[Alternative, ...]] = {}
        for table in tables:
            self.keys(table, {"name", "pattern", "where", "let", "realize"}, "[[fuse.define]]")
            name, text = (self.want(table, key, str, "[[fuse.define]]") for key in ("name", "pattern"))
            if any(n.op_type == name for n in patterns.parse_function(text, self.place(text)).node):
                raise RuleError(f"{self.place(text)}: the part '{name}' uses itself", "Write it out.")
            pattern = patterns.parse(text, self.place(text), found, part=True)
            where = tuple(Line(line, self.place(line)) for line in self.optional(table, "where", list, []))
            let = {k: Line(str(v), self.place(str(v))) for k, v in self.optional(table, "let", dict, {}).items()}
            realize = self.pattern(self.want(table, "realize", str, "[[fuse]]")).nodes if "realize" in table else ()
            found[name] = (*found.get(name, ()), Alternative(pattern, where, let, realize))
        return found

    def anchors(self, table: dict[str, Any], parts: Parts) -> Iterator[Anchor]:
        """Yield one anchor for each operator that the table's pattern may end in."""
        self.keys(table, {"pattern", "where", "cost", "let", "realize", "kernel"}, "[[fuse.anchor]]")
        text = self.want(table, "pattern", str, "[[fuse.anchor]]")
        realize = self.pattern(self.want(table, "realize", str, "[[fuse]]")) if "realize" in table else None
        where, let = self.optional(table, "where", list, []), self.optional(table, "let", dict, {})
        cost, kernel = self.optional(table, "cost", list, []), self.optional(table, "kernel", list, [])
        if kernel and realize is None:
            raise RuleError(f"{self.place('kernel')}: `kernel` says where `realize` does not, which is missing here")
        whole = patterns.parse(text, self.place(text), parts)
        if self.spellings:
            for spelling in patterns.every_spelling(whole):
                self.anchor(spelling, where, cost, let, realize, kernel)
        for pattern in patterns.roots(whole):
            yield self.anchor(pattern, where, cost, let, realize, kernel)

    def anchor(
        self,
        pattern: Pattern,
        where: list[str],
        cost: list[str],
        let: dict[str, Any],
        realize: Pattern | None,
        kernel: list[str],
    ) -> Anchor:
        predicates.asked(pattern)
        if realize is not None and not pattern.calls:
            labels = pattern.labels | set(let) | set(pattern.let)
            form = patterns.realized(realize, pattern)
            self.fits(form, pattern, frozenset(pattern.inputs), labels, "`realize`", "its anchor")
        predicates.bound(pattern)
        return Anchor(
            pattern, self.where(where, pattern), self.let(let, pattern), realize, self.where(cost, pattern),
            self.where(kernel, pattern),
        )  # fmt: skip

    def ending(self, table: dict[str, Any]) -> Anchor:
        self.keys(table, {"pattern", "where"}, "[[fuse.ending]]")
        pattern = self.pattern(self.want(table, "pattern", str, "[[fuse.ending]]"))
        return Anchor(pattern, self.where(self.optional(table, "where", list, []), pattern))

    def fits(
        self, target: Pattern, source: Pattern, values: frozenset[str], labels: frozenset[str], what: str, of: str
    ) -> None:
        """Refuse a replacement that yields something else than `source`, or uses what is not among the names given."""
        if target.outputs != source.outputs:
            raise RuleError(f"{self.place(target.text)}: {what} yields {target.outputs}, {of} yields {source.outputs}")
        for kind, used, known in (("value", set(target.inputs), values), ("label", set(target.labels), labels)):
            unknown = used - known
            if unknown:
                word = min(unknown)
                raise RuleError(
                    f"{self.place(target.text)}: {what} uses the {kind} '{word}', which {of} does not have."
                    f"{did_you_mean(word, known)}"
                )

    def example(self, table: dict[str, Any]) -> Example:
        self.keys(table, {"model", "after", "refusal"}, "[[example]]")
        text = self.want(table, "model", str, "[[example]]")
        after = tuple(self.optional(table, "after", list, []))
        refusal = self.optional(table, "refusal", str, "")
        if bool(after) == bool(refusal):
            raise RuleError(f"{self.place(text)}: an example has either `after` or `refusal`")
        return Example(text, after, refusal)

    def pattern(self, text: str) -> Pattern:
        return patterns.parse(text, self.place(text))

    def where(self, lines: list[str], pattern: Pattern) -> tuple[Predicate, ...]:
        return tuple(predicates.parse(line, pattern, f"{self.place(line)}: where") for line in lines)

    def let(self, lines: dict[str, Any], pattern: Pattern) -> tuple[Binding, ...]:
        return tuple(
            predicates.parse_let(k, str(text), pattern, f"{self.place(str(text))}: let") for k, text in lines.items()
        )

    def keys(self, table: dict[str, Any], known: set[str], what: str) -> None:
        for key in table:
            if key not in known:
                near = did_you_mean(key, known) or f" It may have: {', '.join(sorted(known))}."
                raise RuleError(f"{self.place(key)}: '{key}' is not a key of {what}.{near}", "See rules/README.md.")

    def want(self, table: dict[str, Any], key: str, kind: type, what: str) -> Any:
        if key not in table:
            raise RuleError(f"{self.path}: {what} wants the key '{key}'", "See rules/README.md.")
        return self.optional(table, key, kind, None)

    def optional(self, table: dict[str, Any], key: str, kind: type, default: Any) -> Any:
        value = table.get(key, default)
        if key in table and not isinstance(value, kind):
            raise RuleError(f"{self.place(key)}: '{key}' must be a {kind.__name__}, got {value!r}")
        one = dict if key in TABLES else str
        odd = next((v for v in value if not isinstance(v, one)), None) if isinstance(value, list) else None
        if odd is not None:
            raise RuleError(f"{self.place(key)}: '{key}' must be a list of {one.__name__}, got {odd!r} in it")
        return value

    def place(self, fragment: str) -> str:
        """Return "file:line" of the first line where `fragment` begins."""
        first = next((line for line in fragment.splitlines() if line.strip()), fragment)
        position = self.text.find(first)
        return f"{self.path}:{self.text.count(chr(10), 0, position) + 1}" if position >= 0 else str(self.path)
