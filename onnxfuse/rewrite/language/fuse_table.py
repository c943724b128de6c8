"""The [fuse] table of a rule file: what a fusion starts from, and what may grow onto it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from onnxfuse import kernels
from onnxfuse.kernels import Growth
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
    realizable: tuple[Predicate, ...] = ()
    """Where the library's op can do it; elsewhere the anchor has its kernel alone."""


@dataclass(frozen=True)
class Step:
    """A step of growth that a rule wants, with what its table says of it."""

    kind: Growth
    input: str = ""
    """The input of the anchors that it is about."""
    types: tuple[int, ...] = ()
    """Element types (`onnx.TensorProto.DataType`) that it holds for."""
    endings: tuple[Anchor, ...] = ()
    """What it takes in, as patterns."""


@dataclass(frozen=True)
class Fuse:
    """An anchor and what may grow onto it; the matched nodes themselves become the body of the fused op."""

    template: str
    anchor: str
    """ANY_POINTWISE, ANY_MOVEMENT or ANY_CONCAT; empty where there are patterns."""
    anchors: tuple[Anchor, ...]
    """Alternative spellings, as patterns."""
    steps: tuple[Step, ...]
    """How it may grow; their order is that of `rewrite.fuse.growth`."""
    splits: tuple[Rewrite, ...]
    """One node written as the library's product and what a kernel can do after it; undone where no kernel does."""
    least: int
    """With fewer grown nodes than this, nothing is fused."""

    def step(self, kind: Growth) -> Step | None:
        """Return the step of this kind, None where the rule does not want it."""
        return next((s for s in self.steps if s.kind is kind), None)

    def wants(self, *kinds: Growth) -> bool:
        """Return whether the rule wants one of these steps."""
        return any(s.kind in kinds for s in self.steps)


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
        parts = read_parts(reader, reader.optional(table, "define", list, []), reader.shared)
        anchors = tuple(a for t in reader.want(table, "anchor", list, "[fuse]") for a in _anchors(reader, t, parts))
    else:
        words = f'"{ANY_POINTWISE}", "{ANY_MOVEMENT}", "{ANY_CONCAT}"'
        raise RuleError(f"{reader.place('anchor')}: `anchor` must be {words} or tables [[fuse.anchor]]")
    extra = next((k for k in ("library", *DIRECTIONS) if table.get(k) and any(a.realize for a in anchors)), None)
    if extra is not None and not kernels.is_template(template):
        raise RuleError(f"{reader.place(extra)}: `{extra}` and `realize` exclude each other: it is the whole anchor")
    if any(a.realizable for a in anchors) and not kernels.is_template(template):
        raise RuleError(
            f"{reader.place('realize_where')}: without a kernel, `where` says where the library's op does it"
        )
    steps = _steps(reader, table, anchors)
    allowed = kernels.TEMPLATES[template].growth
    for key, step in steps:
        if step.kind not in allowed:
            raise RuleError(
                f"{reader.place(key)}: `{key}` grows by {step.kind}, which template '{template}' does not allow",
                f"It allows {', '.join(sorted(allowed)) or 'no growth'}.",
            )
    splits = tuple(reader.rewrite(t, "[[fuse.split]]") for t in reader.optional(table, "split", list, []))
    least = reader.optional(table, "least", int, 0)
    return Fuse(template, "" if anchors else str(anchor), anchors, tuple(step for _, step in steps), splits, least)


DIRECTIONS = {"prologue": Growth.PROLOGUE, "epilogue": Growth.EPILOGUE}
OF_INPUTS = {"over": Growth.WHOLE_INPUT, "broadcast": Growth.BROADCAST_INPUT, "beside": Growth.SIBLINGS}
"""Keys whose value is an input of every anchor."""


def _steps(reader: Reader, table: dict[str, Any], anchors: tuple[Anchor, ...]) -> list[tuple[str, Step]]:
    """Return the steps that a table wants, each with the key that says so."""
    allowed = kernels.TEMPLATES[table["template"]].growth
    found: list[tuple[str, Step]] = []
    for word, kind in ((ANY_MOVEMENT, Growth.MOVEMENT), (ANY_CONCAT, Growth.CONCAT)):
        found += [("anchor", Step(kind))] if table["anchor"] == word else []
    for key, kind in OF_INPUTS.items():
        name = _common_input(reader, table, key, anchors)
        found += [(key, Step(kind, name))] if name else []
    if any(key == "over" for key, _ in found) and Growth.REDUCTIONS in allowed:
        found.append(("over", Step(Growth.REDUCTIONS)))
    if reader.optional(table, "library", bool, False):
        found.append(("library", Step(Growth.LIBRARY_ANCHOR)))
    for key, kind in DIRECTIONS.items():
        word = reader.optional(table, key, str, "")
        if key == "prologue" and word not in ("", "pointwise"):
            found.append((key, Step(Growth.LEFT_OPERAND, _common_input(reader, table, key, anchors))))
        elif word not in ("", "pointwise"):
            raise RuleError(f'{reader.place(word)}: `{key}` can only be "pointwise", got "{word}"')
        elif word:
            found.append((key, Step(kind)))
    if reader.optional(table, "transposes", bool, False):
        both = (Growth.TRANSPOSED_INPUT, Growth.TRANSPOSED_OUTPUT)
        found += [("transposes", Step(kind)) for kind in both if kind in allowed] or [("transposes", Step(both[1]))]
    if types := tuple(reader.element_type(t) for t in reader.optional(table, "terms_last", list, [])):
        found.append(("terms_last", Step(Growth.K_MAJOR_WEIGHTS, types=types)))
    if endings := tuple(_ending(reader, t) for t in reader.optional(table, "ending", list, [])):
        found.append(("ending", Step(Growth.EXTRA_OUTPUTS, endings=endings)))
    return found


def read_parts(reader: Reader, tables: list[dict[str, Any]], shared: Parts) -> Parts:
    """Return the named parts with those that are shared; one may use those that were defined before it."""
    found = dict(shared)
    for name in {str(table.get("name")) for table in tables} & set(shared):
        del found[name]
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
    reader.keys(table, {"pattern", "where", "cost", "let", "realize", "realize_where", "kernel"}, "[[fuse.anchor]]")
    text = reader.want(table, "pattern", str, "[[fuse.anchor]]")
    realize = reader.pattern(reader.want(table, "realize", str, "[[fuse]]")) if "realize" in table else None
    where, let = reader.lines(table, "where"), reader.optional(table, "let", dict, {})
    cost, kernel = reader.lines(table, "cost"), reader.lines(table, "kernel")
    if kernel and realize is None:
        raise RuleError(f"{reader.place('kernel')}: `kernel` says where `realize` does not, which is missing here")
    realizable = reader.lines(table, "realize_where")
    if realizable and (realize is None or kernel):
        raise RuleError(
            f"{reader.place('realize_where')}: `realize_where` stands beside `realize`, and without `kernel`"
        )
    whole = patterns.parse(text, reader.place(text), parts)
    if reader.spellings:
        for spelling in patterns.every_spelling(whole):
            _anchor(reader, spelling, where, cost, let, realize, kernel, realizable)
    for pattern in patterns.roots(whole):
        yield _anchor(reader, pattern, where, cost, let, realize, kernel, realizable)


def _anchor(
    reader: Reader,
    pattern: Pattern,
    where: list[str],
    cost: list[str],
    let: dict[str, Any],
    realize: Pattern | None,
    kernel: list[str],
    realizable: list[str],
) -> Anchor:
    predicates.asked(pattern)
    if realize is not None and not pattern.calls:
        labels = pattern.labels | set(let) | set(pattern.let)
        form = patterns.realized(realize, pattern)
        reader.fits(form, pattern, frozenset(pattern.inputs), labels, "`realize`", "its anchor")
    predicates.bound(pattern)
    return Anchor(
        pattern, reader.where(where, pattern), reader.let(let, pattern), realize, reader.where(cost, pattern),
        reader.where(kernel, pattern), reader.where(realizable, pattern),
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
