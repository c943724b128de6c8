"""The [fuse] table of a rule file: what a fusion starts from, and what may grow onto it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnxfuse import kernels
from onnxfuse.model.errors import RuleError
from onnxfuse.rewrite.language import pattern as patterns
from onnxfuse.rewrite.language import predicate as predicates
from onnxfuse.rewrite.language.pattern import Alternative, Line, Parts, Pattern, did_you_mean
from onnxfuse.rewrite.language.predicate import Binding, Predicate

if TYPE_CHECKING:
    from onnxfuse.rewrite.language.rule_file import Reader, Rewrite

FUSE_KEYS = {
    "anchor", "define", "split", "template", "library", "prologue", "epilogue", "beside", "over", "broadcast", "least",
    "terms_last", "transposes", "ending",
}  # fmt: skip
THROUGH_LIBRARY = "library"
"""The template without kernels: `realize` does the work."""

ANY_POINTWISE = "pointwise"
"""An anchor that is this word instead of a pattern: any operator of the body language."""

ANY_CONCAT = "concat"
"""An anchor that is this word: a Concat of channels, all of which other fused ops compute for it alone."""

ANY_MOVEMENT = "movement"
"""The same for data movement: the region grows through both, where that saves a pass."""


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


def read_fuse(reader: Reader, table: dict[str, Any]) -> Fuse:
    reader.keys(table, FUSE_KEYS, "[fuse]")
    template = reader.want(table, "template", str, "[fuse]")
    if template not in kernels.TEMPLATES:
        near = did_you_mean(template, set(kernels.TEMPLATES)) or f" There are: {', '.join(kernels.TEMPLATES)}."
        raise RuleError(f"{reader.place(template)}: '{template}' is not a template.{near}")
    anchor = table.get("anchor")
    if anchor in (ANY_POINTWISE, ANY_MOVEMENT, ANY_CONCAT):
        anchors: tuple[Anchor, ...] = ()
    elif isinstance(anchor, list) and anchor:
        parts = _parts(reader, reader.optional(table, "define", list, []))
        anchors = tuple(a for t in reader.want(table, "anchor", list, "[fuse]") for a in _anchors(reader, t, parts))
    else:
        words = f'"{ANY_POINTWISE}", "{ANY_MOVEMENT}", "{ANY_CONCAT}"'
        raise RuleError(f"{reader.place('anchor')}: `anchor` must be {words} or tables [[fuse.anchor]]")
    grow = {k: reader.optional(table, k, str, "") for k in ("prologue", "epilogue")}
    extra = next((k for k in ("library", *grow) if table.get(k) and any(a.realize for a in anchors)), None)
    if extra is not None and not kernels.is_template(template):
        raise RuleError(f"{reader.place(extra)}: `{extra}` and `realize` exclude each other: it is the whole anchor")
    factor = "" if grow["prologue"] in ("", "pointwise") else _common_input(reader, table, "prologue", anchors)
    for key, value in grow.items():
        if value not in ("", "pointwise", factor):
            raise RuleError(f'{reader.place(value)}: `{key}` can only be "pointwise", got "{value}"')
    splits = tuple(reader.rewrite(t, "[[fuse.split]]") for t in reader.optional(table, "split", list, []))
    return Fuse(
        anchors,
        splits, template, reader.optional(table, "library", bool, False),
        grow["prologue"] == "pointwise", bool(grow["epilogue"]), _common_input(reader, table, "beside", anchors),
        _common_input(reader, table, "over", anchors), _common_input(reader, table, "broadcast", anchors),
        anchor == ANY_MOVEMENT, reader.optional(table, "least", int, 0),
        terms_last=tuple(reader.element_type(t) for t in reader.optional(table, "terms_last", list, [])),
        transposes=reader.optional(table, "transposes", bool, False),
        joining=anchor == ANY_CONCAT,
        factor=factor,
        endings=tuple(_ending(reader, t) for t in reader.optional(table, "ending", list, [])),
    )  # fmt: skip


def _parts(reader: Reader, tables: list[dict[str, Any]]) -> Parts:
    """Return the named parts; one may use those that were defined before it."""
    found: dict[str, tuple[Alternative, ...]] = {}
    for table in tables:
        reader.keys(table, {"name", "pattern", "where", "let", "realize"}, "[[fuse.define]]")
        name, text = (reader.want(table, key, str, "[[fuse.define]]") for key in ("name", "pattern"))
        if any(n.op_type == name for n in patterns.parse_function(text, reader.place(text)).node):
            raise RuleError(f"{reader.place(text)}: the part '{name}' uses itself", "Write it out.")
        pattern = patterns.parse(text, reader.place(text), found, part=True)
        where = tuple(Line(line, reader.place(line)) for line in reader.lines(table, "where"))
        let = {k: Line(str(v), reader.place(str(v))) for k, v in reader.optional(table, "let", dict, {}).items()}
        realize = reader.pattern(reader.want(table, "realize", str, "[[fuse]]")).nodes if "realize" in table else ()
        found[name] = (*found.get(name, ()), Alternative(pattern, where, let, realize))
    return found


def _anchors(reader: Reader, table: dict[str, Any], parts: Parts) -> Iterator[Anchor]:
    """Yield one anchor for each operator that the table's pattern may end in."""
    reader.keys(table, {"pattern", "where", "cost", "let", "realize", "kernel"}, "[[fuse.anchor]]")
    text = reader.want(table, "pattern", str, "[[fuse.anchor]]")
    realize = reader.pattern(reader.want(table, "realize", str, "[[fuse]]")) if "realize" in table else None
    where, let = reader.lines(table, "where"), reader.optional(table, "let", dict, {})
    cost, kernel = reader.lines(table, "cost"), reader.lines(table, "kernel")
    if kernel and realize is None:
        raise RuleError(f"{reader.place('kernel')}: `kernel` says where `realize` does not, which is missing here")
    whole = patterns.parse(text, reader.place(text), parts)
    if reader.spellings:
        for spelling in patterns.every_spelling(whole):
            _anchor(reader, spelling, where, cost, let, realize, kernel)
    for pattern in patterns.roots(whole):
        yield _anchor(reader, pattern, where, cost, let, realize, kernel)


def _anchor(
    reader: Reader,
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
        reader.fits(form, pattern, frozenset(pattern.inputs), labels, "`realize`", "its anchor")
    predicates.bound(pattern)
    return Anchor(
        pattern, reader.where(where, pattern), reader.let(let, pattern), realize, reader.where(cost, pattern),
        reader.where(kernel, pattern),
    )  # fmt: skip


def _ending(reader: Reader, table: dict[str, Any]) -> Anchor:
    reader.keys(table, {"pattern", "where"}, "[[fuse.ending]]")
    pattern = reader.pattern(reader.want(table, "pattern", str, "[[fuse.ending]]"))
    return Anchor(pattern, reader.where(reader.lines(table, "where"), pattern))


def _common_input(reader: Reader, table: dict[str, Any], key: str, anchors: tuple[Anchor, ...]) -> str:
    name: str = reader.optional(table, key, str, "")
    if name and any(name not in a.pattern.inputs for a in anchors):
        raise RuleError(f"{reader.place(key)}: `{key}` is '{name}', which is not an input of every anchor")
    return name
