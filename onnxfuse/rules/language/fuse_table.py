"""The [fuse] table of a rule file: the anchor of a fusion, and the growth steps that may extend it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from onnxfuse import cuda, ops
from onnxfuse.cuda import Growth
from onnxfuse.rules.language import predicate as predicates
from onnxfuse.rules.language.predicate import Binding, Predicate
from onnxfuse.rules.pattern import pattern as patterns
from onnxfuse.rules.pattern.pattern import Alternative, Line, Parts, Pattern
from onnxfuse.support.close_match import did_you_mean
from onnxfuse.support.errors import RuleError

if TYPE_CHECKING:
    from onnxfuse.rules.language.rule_file import Reader, Rewrite

FUSE_KEYS = {
    "anchor",
    "split",
    "template",
    "prologue",
    "beside",
    "over",
    "least",
    "between",
    "transposes",
    "ending",
    "joined",
}
THROUGH_LIBRARY = "library"
"""The template without kernels: `realize` builds an ONNX Runtime op."""

NOWHERE_ELSE = 10**6
"""`least` of a rule that fuses only between onnxfuse kernels: more nodes than any fused op holds."""

ANY_POINTWISE = "pointwise"
"""Anchor keyword that replaces a pattern: any operator of the body language."""

OF_OTHERS = "others"
"""Anchor keyword of a template that merges other fused ops: those whose outputs a channel Concat combines, an op and
the one that computes its input, or two that share an input.
"""

MERGING = (Growth.CONCAT, Growth.PRODUCER, Growth.SHARED_INPUT)
"""Growth steps of such templates."""

ANY_MOVEMENT = "movement"
"""Anchor keyword for data movement: the region grows in both directions, where that saves a pass."""


EXACT_TOO, EXACT_ONLY = "too", "only"
"""Values of an anchor's `exact`, for models that do not allow TF32."""


@dataclass(frozen=True, eq=False)
class Anchor:
    """The starting pattern of a fusion."""

    pattern: Pattern
    where: tuple[Predicate, ...]
    let: tuple[Binding, ...] = ()
    """Numbers computed from the match, by label, for `realize`."""
    realize: Pattern | None = None
    """The anchor as an ONNX Runtime op, on CUDA; for a template with kernels, the fallback where no kernel runs."""
    cost: tuple[Predicate, ...] = ()
    """Estimated condition under which the kernel pays off; when tuning, measurements decide instead."""
    kernel: tuple[Predicate, ...] = ()
    """Condition under which the template's kernel runs an anchor that nothing grew onto, if `cost` holds too;
    otherwise, and where this is empty, `realize`.
    """
    realizable: tuple[Predicate, ...] = ()
    """Condition under which the library's op supports the anchor well; otherwise only a kernel, or the plain nodes."""
    about: tuple[Predicate, ...] = ()
    """Precondition checked before `where`: if false, the attempt is not reported."""
    exact: str = ""
    """EXACT_TOO: its kernel keeps float32 precision where TF32 is not allowed, though others of the template round.
    EXACT_ONLY: it applies only to models that do not allow TF32.
    """


@dataclass(frozen=True)
class GrowthStep:
    """A growth step that a rule enables, with its options."""

    kind: Growth
    input: str = ""
    """The anchor input to which it applies."""
    endings: tuple[Anchor, ...] = ()
    """What it absorbs, as patterns."""


@dataclass(frozen=True)
class Fuse:
    """An anchor and its growth steps; the matched nodes themselves become the body of the fused op."""

    template: str
    anchor: str
    """ANY_POINTWISE, ANY_MOVEMENT or OF_OTHERS; empty if there are patterns."""
    anchors: tuple[Anchor, ...]
    """Alternative spellings, as patterns."""
    steps: tuple[GrowthStep, ...]
    """Enabled growth steps; their order is that of `fusion.steps.growth`."""
    splits: tuple[Rewrite, ...]
    """Rewrite of one node as a library product and a remainder for a kernel; undone where no kernel absorbs the
    remainder.
    """
    least: int
    """Minimum number of absorbed nodes."""
    between: int
    """The same minimum where all producers of inputs and all readers of outputs are fused already; at most `least`."""

    @property
    def needs_others(self) -> bool:
        """Whether it merges the ops of other rules, or fuses only between them: on its own it does nothing."""
        return self.anchor == OF_OTHERS or self.least == NOWHERE_ELSE

    @cached_property
    def anchors_at(self) -> Mapping[str, Sequence[Anchor]]:
        """Anchors by the operator at their root."""
        return by_operator(self.anchors)

    @cached_property
    def roots(self) -> frozenset[str]:
        """Operators at the root of an anchor or a split."""
        return self.split_roots.union(self.anchors_at)

    @cached_property
    def split_roots(self) -> frozenset[str]:
        """Operators at the root of a split."""
        return frozenset[str]().union(*(s.source.root.operators for s in self.splits))

    def step(self, kind: Growth) -> GrowthStep | None:
        """Return the step of this kind, None if the rule does not enable it."""
        return next((s for s in self.steps if s.kind is kind), None)

    def wants(self, *kinds: Growth) -> bool:
        """Return whether the rule enables one of these steps."""
        return not self._kinds.isdisjoint(kinds)

    @cached_property
    def _kinds(self) -> frozenset[Growth]:
        return frozenset(s.kind for s in self.steps)


def by_operator(anchors: Iterable[Anchor]) -> dict[str, list[Anchor]]:
    """Return the anchors by the operators at their roots, in order."""
    by_op: dict[str, list[Anchor]] = {}
    for anchor in anchors:
        for op in anchor.pattern.root.operators:
            by_op.setdefault(op, []).append(anchor)
    return by_op


def read_fuse(reader: Reader, table: dict[str, Any]) -> Fuse:
    reader.keys(table, FUSE_KEYS, "[fuse]")
    template = reader.want(table, "template", str, "[fuse]")
    if template not in cuda.TEMPLATES:
        near = did_you_mean(template, set(cuda.TEMPLATES)) or f" There are: {', '.join(cuda.TEMPLATES)}."
        raise RuleError(
            f"{reader.place(template)}: '{template}' is not a template.{near}", "See onnxfuse docs rule-language."
        )
    allowed = cuda.TEMPLATES[template].growth
    anchor = OF_OTHERS if allowed.intersection(MERGING) and "anchor" not in table else table.get("anchor")
    if anchor in (ANY_POINTWISE, ANY_MOVEMENT) or anchor is OF_OTHERS:
        anchors: tuple[Anchor, ...] = ()
    elif isinstance(anchor, list) and anchor:
        anchors = tuple(a for t in reader.want(table, "anchor", list, "[fuse]") for a in _anchors(reader, t))
    else:
        words = f'"{ANY_POINTWISE}" or "{ANY_MOVEMENT}"'
        raise RuleError(f"{reader.place('anchor')}: `anchor` must be {words} or tables [[fuse.anchor]]")
    if any(a.realizable for a in anchors) and not cuda.is_template(template):
        raise RuleError(
            f"{reader.place('fuse.anchor.realize')}: without a kernel, the `where` of the anchor says where the "
            "library's op does it"
        )
    steps = _steps(reader, table, str(anchor), anchors)
    for key, step in steps:
        if step.kind not in allowed:
            raise RuleError(
                f"{reader.place(key)}: `{key}` grows by {step.kind}, which template '{template}' does not allow",
                f"It allows {', '.join(sorted(allowed)) or 'no growth'}.",
            )
    tables = reader.optional(table, "split", list, [])
    splits = tuple(one for t in tables for one in reader.rewrites(t, "[[fuse.split]]"))
    least = reader.optional(table, "least", int, NOWHERE_ELSE if "between" in table else 0)
    between = reader.optional(table, "between", int, least)
    return Fuse(
        template, "" if anchors else str(anchor), anchors, tuple(step for _, step in steps), splits, least, between
    )


OF_INPUTS = {"over": Growth.WHOLE_INPUT, "beside": Growth.SIBLINGS, "joined": Growth.JOINED_INPUT}
"""Keys whose value is an anchor input."""


def _steps(
    reader: Reader, table: dict[str, Any], anchor: str, anchors: tuple[Anchor, ...]
) -> list[tuple[str, GrowthStep]]:
    """Return the steps that a table enables, each with its key; steps without a key follow from the template."""
    allowed = cuda.TEMPLATES[table["template"]].growth
    by_itself = [Growth.PROLOGUE] if table.get("prologue") is not False else []
    by_itself += [Growth.EPILOGUE, Growth.K_MAJOR_WEIGHTS, Growth.PADDED_ROWS, Growth.CACHES, *MERGING]
    steps: list[tuple[str, GrowthStep]] = [("template", GrowthStep(kind)) for kind in by_itself if kind in allowed]
    steps += [("anchor", GrowthStep(k)) for k in (Growth.MOVEMENT, Growth.TWINS)] if anchor == ANY_MOVEMENT else []
    steps += [("anchor", GrowthStep(Growth.LIBRARY_ANCHOR))] if _is_library_anchor(reader, allowed, anchors) else []
    for key, kind in OF_INPUTS.items():
        name = _common_input(reader, table, key, anchors)
        steps += [(key, GrowthStep(kind, name))] if name else []
    if any(key == "over" for key, _ in steps) and Growth.REDUCTIONS in allowed:
        steps.append(("over", GrowthStep(Growth.REDUCTIONS)))
    if table.get("prologue") is not False and (name := _common_input(reader, table, "prologue", anchors)):
        of_input = (Growth.BROADCAST_INPUT, Growth.LEFT_OPERAND)
        steps.append(("prologue", GrowthStep(next((kind for kind in of_input if kind in allowed), of_input[1]), name)))
    if reader.optional(table, "transposes", bool, False):
        both = (Growth.TRANSPOSED_INPUT, Growth.TRANSPOSED_OUTPUT)
        steps += [("transposes", GrowthStep(kind)) for kind in both if kind in allowed] or [
            ("transposes", GrowthStep(both[1]))
        ]
    if endings := tuple(_ending(reader, t) for t in reader.optional(table, "ending", list, [])):
        steps.append(("ending", GrowthStep(Growth.EXTRA_OUTPUTS, endings=endings)))
    return steps


def _is_library_anchor(reader: Reader, allowed: frozenset[Growth], anchors: tuple[Anchor, ...]) -> bool:
    """Return whether the anchors stay library nodes around which a kernel grows."""
    if Growth.LIBRARY_ANCHOR not in allowed:
        return False
    nodes = [[n for n in a.pattern.nodes if n.op != ops.Constant and not n.alternatives] for a in anchors]
    library = [
        not all(cuda.is_pointwise(op, n.domain) or cuda.is_movement(op, n.domain) for n in of_one for op in n.operators)
        for of_one in nodes
    ]
    if len(set(library)) > 1:
        location = anchors[library.index(not library[0])].pattern.place
        raise RuleError(f"{location}: this anchor and the first one: the kernel computes one of them, not the other")
    return any(library)


def read_parts(reader: Reader, tables: dict[str, Any], shared: Parts) -> Parts:
    """Return a file's named parts merged with the shared ones; parts may use others in any order, not recursively."""
    parts = {name: spellings for name, spellings in shared.items() if name not in tables}
    read: dict[str, list[tuple[dict[str, Any], str]]] = {}
    for name, spellings in tables.items():
        if not isinstance(spellings, list) or not all(isinstance(s, dict) for s in spellings):
            raise RuleError(f"{reader.place(f'part.{name}')}: a part is written [[part.{name}]]")
        what = f"[[part.{name}]]"
        for table in spellings:
            reader.keys(table, {"pattern", "optional", "shapes", "where", "let", "realize"}, what)
        read[name] = [(table, reader.want(table, "pattern", str, what)) for table in spellings]

    def complete(name: str, above: tuple[str, ...]) -> None:
        """Parse a part after those that it uses."""
        for _, text in read[name] if name not in parts else ():
            for used in (n.op_type for n in patterns.parse_function(text, reader.place(text)).node):
                if used not in read:
                    continue
                if used in (*above, name):
                    raise RuleError(f"{reader.place(text)}: the part '{used}' uses itself", "Write it out.")
                complete(used, (*above, name))
        if name not in parts:
            parts[name] = tuple(_spelling(reader, table, text, parts) for table, text in read[name])

    for name in read:
        complete(name, ())
    return parts


def _spelling(reader: Reader, table: dict[str, Any], text: str, parts: Parts) -> Alternative:
    pattern = _with_optional(reader, table, patterns.parse(text, reader.place(text), parts, part=True))
    shapes = reader.shapes(table)
    where = tuple(Line(line, reader.place(line), shapes) for line in reader.lines(table, "where"))
    let = {k: Line(str(v), reader.place(str(v)), shapes) for k, v in reader.optional(table, "let", dict, {}).items()}
    realize = reader.pattern(reader.want(table, "realize", str, "[[fuse]]")).nodes if "realize" in table else ()
    return Alternative(pattern, shapes, where, let, realize)


def _anchors(reader: Reader, table: dict[str, Any]) -> Iterator[Anchor]:
    """Yield one anchor per operator that can be at the root of the table's pattern."""
    keys = {"pattern", "optional", "shapes", "about", "where", "cost", "let", "realize", "kernel", "exact"}
    reader.keys(table, keys, "[[fuse.anchor]]")
    text = reader.want(table, "pattern", str, "[[fuse.anchor]]")
    realize, realizable = _realize(reader, table)
    where, let = reader.lines(table, "where"), reader.optional(table, "let", dict, {})
    cost, kernel, about = (reader.lines(table, key) for key in ("cost", "kernel", "about"))
    if kernel and realize is None:
        raise RuleError(f"{reader.place('kernel')}: `kernel` says where `realize` does not, which is missing here")
    exact = reader.optional(table, "exact", str, "")
    if exact not in ("", EXACT_TOO, EXACT_ONLY):
        raise RuleError(f'{reader.place("exact")}: `exact` is "{EXACT_TOO}" or "{EXACT_ONLY}", not \'{exact}\'')
    whole = reader.shaped(patterns.parse(text, reader.place(text), reader.parts), table)
    whole = _with_optional(reader, table, whole)
    if reader.spellings:
        for spelling in patterns.every_spelling(whole):
            _anchor(reader, spelling, where, cost, let, realize, kernel, realizable, about, exact)
    for pattern in patterns.roots(whole):
        yield _anchor(reader, pattern, where, cost, let, realize, kernel, realizable, about, exact)


def _with_optional(reader: Reader, table: dict[str, Any], pattern: Pattern) -> Pattern:
    """Return the pattern with its optional inputs and outputs marked."""
    names, values = reader.optional(table, "optional", list, []), {*pattern.inputs, *pattern.outputs[1:]}
    for name in names:
        if name not in values:
            raise RuleError(
                f"{reader.place(name)}: optional '{name}' is neither an input of the pattern nor a later output."
                f"{did_you_mean(name, values)}"
            )
    return replace(pattern, optional=frozenset(names))


def _realize(reader: Reader, table: dict[str, Any]) -> tuple[Pattern | None, list[str]]:
    """Return an anchor's library form, from a string or a table with its own conditions, and the conditions."""
    form = table.get("realize")
    if isinstance(form, dict):
        reader.keys(form, {"pattern", "where"}, "[fuse.anchor.realize]")
        text = reader.want(form, "pattern", str, "[fuse.anchor.realize]")
        return reader.pattern(text), reader.lines(form, "where")
    return (reader.pattern(reader.want(table, "realize", str, "[[fuse.anchor]]")) if form is not None else None), []


def _anchor(
    reader: Reader,
    pattern: Pattern,
    where: list[str],
    cost: list[str],
    let: dict[str, Any],
    realize: Pattern | None,
    kernel: list[str],
    realizable: list[str],
    about: list[str],
    exact: str,
) -> Anchor:
    predicates.spelling_conditions(pattern)
    if realize is not None and not pattern.calls:
        labels = pattern.labels | set(let) | set(pattern.let)
        form = patterns.realized(realize, pattern)
        reader.fits(form, pattern, frozenset(pattern.inputs), labels, "`realize`", "its anchor")
    predicates.bound(pattern)
    return Anchor(
        pattern, reader.where_shaped(where, pattern), reader.let(let, pattern), realize, reader.where(cost, pattern),
        reader.where(kernel, pattern), reader.where(realizable, pattern), reader.where(about, pattern),
        exact,
    )  # fmt: skip


def _ending(reader: Reader, table: dict[str, Any]) -> Anchor:
    reader.keys(table, {"pattern", "shapes", "where"}, "[[fuse.ending]]")
    pattern = reader.shaped(reader.pattern(reader.want(table, "pattern", str, "[[fuse.ending]]")), table)
    return Anchor(pattern, reader.where_shaped(reader.lines(table, "where"), pattern))


def _common_input(reader: Reader, table: dict[str, Any], key: str, anchors: tuple[Anchor, ...]) -> str:
    name: str = reader.optional(table, key, str, "")
    if name and not (anchors and all(name in a.pattern.inputs for a in anchors)):
        raise RuleError(f"{reader.place(key)}: `{key}` is '{name}', which is not an input of every anchor")
    return name
