"""Tuning file: for each GPU, fused op and input shapes, the candidates and their times.

The choice is not stored: it follows from the times (`variant`, `verdict`), so the two cannot disagree.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

import onnx

from onnxfuse.cuda.dispatch import dispatch
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.files import io
from onnxfuse.model import metadata
from onnxfuse.support import json_fields as known_facts
from onnxfuse.support.bounded_text import read_text
from onnxfuse.support.errors import ModelError
from onnxfuse.support.json_fields import JsonObject, as_integer, as_list, as_number, as_text
from onnxfuse.support.plurals import plural
from onnxfuse.support.shown import shown
from onnxfuse.symbolic.strides import Shape

VERSION = 1
"""Version of the file format; incremented when a fact changes its name, location or meaning."""
WIDTH = 120
"""Line width of the file."""
METADATA = "onnxfuse.tuning"
"""Key in `metadata_props` under which a model carries its own measurements. Part of the file format: whatever this
package's modules are called."""

Kind = Literal["fused", "library", "split", "alone"]
"""`fused`: the op's kernel; `library`: ONNX Runtime's own op in its place, if the rule has that form; `split`: what the
other rules make of the body, the library's node followed by a kernel; `alone`: the nodes as ONNX Runtime runs them."""
Key = tuple[str, tuple[Shape, ...]]
"""The digest in a fused op's name, of its body and element types, and the shapes of its inputs."""


@dataclass(frozen=True)
class Machine:
    """The configuration for which times are valid."""

    gpu: str
    driver: str
    onnxruntime: str

    def __str__(self) -> str:
        return f"{self.gpu}, driver {self.driver}, onnxruntime {self.onnxruntime}"


@dataclass(frozen=True)
class Timed:
    """One candidate: its implementation, and its time."""

    kind: Kind
    tuning: Variant | None = None
    """The variant of the kernel, for `fused`."""
    microseconds: float | None = None
    """Median time; None if it failed."""
    spread: tuple[float, float] | None = None
    """The 10th and the 90th percentile."""
    failed: str = ""
    """Why there is no time: it does not compile, does not run, or computes something else."""

    @property
    def name(self) -> str:
        """Display name: `fused`, `fused tile 128x128x2`, `library`, `split`, `alone`."""
        return self.kind if self.tuning is None else f"{self.kind} {self.tuning}"


@dataclass(frozen=True)
class MeasuredVariants:
    """All candidates for one fused op on inputs of certain shapes."""

    op: str
    """The op's name."""
    rule: str
    nodes: tuple[str, ...]
    """The operators of its body."""
    types: tuple[str, ...]
    """Element types of its inputs."""
    shapes: tuple[Shape, ...]
    """Shapes of its inputs."""
    candidates: tuple[Timed, ...]

    @property
    def key(self) -> Key:
        """Lookup key."""
        return key(self.op, self.shapes)

    @property
    def ran(self) -> bool:
        """Whether there is any time; without one nothing follows."""
        return any(c.microseconds is not None for c in self.candidates)

    def best(self, kind: Kind) -> Timed | None:
        """Return the fastest candidate of a kind; None if none ran.

        A variant counts as faster than the plan's own choice only if the spreads of their times are disjoint: smaller
        differences are chance, and not reproducible.
        """
        ran = [c for c in self.candidates if c.kind == kind and c.microseconds is not None]
        fastest = min(ran, key=_time, default=None)
        own = next((c for c in ran if c.tuning is None), None)
        return own if own is not None and fastest is not None and _meet(own, fastest) else fastest


def key(op: str, shapes: tuple[Shape, ...]) -> Key:
    """Return the lookup key of a fused op's times: the digest at the end of its name, and the shapes.

    The rest of the name changes when a rule is renamed, without affecting measured times.
    """
    return op.rpartition("_")[2], shapes


Section = dict[Key, MeasuredVariants]
"""Measurements on one machine."""
Book = dict[Machine, Section]
"""A tuning file."""


def _meet(slower: Timed, faster: Timed) -> bool:
    """Return whether two times agree within their spreads."""
    low = slower.microseconds if slower.spread is None else slower.spread[0]
    high = faster.microseconds if faster.spread is None else faster.spread[1]
    return low is not None and high is not None and low <= high


def _time(candidate: Timed) -> float:
    return math.inf if candidate.microseconds is None else candidate.microseconds


# ---- decisions from the times


def verdict(measured: Sequence[MeasuredVariants]) -> Kind:
    """Return the best kind of candidate, given the times at each relevant set of shapes (one or more).

    The kernel is used unless it was slower at one of them. Otherwise the best in the geometric mean; if none ran
    everywhere, the plain nodes.
    """
    times = {
        kind: [_time(best) if (best := m.best(kind)) is not None else math.inf for m in measured]
        for kind in get_args(Kind)
    }
    least = [min(column) for column in zip(*times.values(), strict=True)]
    if all(t <= best < math.inf for t, best in zip(times["fused"], least, strict=True)):
        return "fused"
    others: dict[Kind, float] = {k: math.prod(times[k]) for k in ("alone", "library", "split")}
    return min(others, key=lambda k: others[k])


def best_times_line(measured: Sequence[MeasuredVariants]) -> str:
    """Return the best times of each kind in one line, to explain why a kernel is not used."""
    return "measured " + "; ".join(
        f"{extents(m.shapes)}: "
        + ", ".join(f"{b.name} {b.microseconds:.1f} us" for k in get_args(Kind) if (b := m.best(k)))
        for m in measured
    )


def extents(shapes: Sequence[Shape]) -> str:
    """Format shapes: `4096x768, 768x3072`."""
    return ", ".join("x".join(map(str, s)) or "scalar" for s in shapes)


def variant(measured: MeasuredVariants) -> Variant | None:
    """Return the fastest variant of the kernel; the plan's own choice if none ran."""
    best = measured.best("fused")
    return None if best is None else best.tuning


def variants(section: Mapping[Key, MeasuredVariants]) -> dict[Key, Variant | None]:
    """Return the variant for each op and shapes."""
    return {key: variant(measured) for key, measured in section.items()}


def about(book: Book, keys: Collection[Key]) -> Book:
    """Return the measurements of these fused ops and shapes."""
    sections = {machine: {k: m for k, m in section.items() if k in keys} for machine, section in book.items()}
    return {machine: section for machine, section in sections.items() if section}


def pooled(book: Book) -> dict[Key, tuple[MeasuredVariants, ...]]:
    """Return the measurements by op and shapes, over all machines."""
    keys = dict.fromkeys(key for section in book.values() for key in section)
    return {key: tuple(section[key] for section in book.values() if key in section) for key in keys}


def variant_name(tuning: Variant | None) -> str:
    """Return the name of a variant, empty for the plan's own choice."""
    return "" if tuning is None else tuning.name


# ---- the file

MOST_EXTENT = 2**62


def read(path: Path) -> Book:
    """Return the contents of the file; raises ModelError if it is missing or invalid."""
    try:
        text = read_text(path)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{path}: cannot be read as a tuning file: {error}", "Make one with optimize --tune."
        ) from None
    return parse(text, str(path))


def write(path: Path, book: Book) -> None:
    """Write the file atomically, so that measurements are never lost. Raises ModelError."""
    io.write_text(path, _lines(as_dict(book)) + "\n", at_once=True)


def _lines(facts: Any, indent: str = "") -> str:
    """Format as JSON with one line for each small fact (a candidate, the shapes), so that diffs are readable."""
    text = json.dumps(facts)
    if len(indent) + len(text) <= WIDTH or not isinstance(facts, dict | list):
        return text
    deeper = indent + " "
    if isinstance(facts, list):
        inner, ends = [_lines(v, deeper) for v in facts], "[]"
    else:
        inner, ends = [f"{json.dumps(k)}: {_lines(v, deeper)}" for k, v in facts.items()], "{}"
    return ends[0] + "".join(f"\n{deeper}{line}," for line in inner)[:-1] + f"\n{indent}{ends[1]}"


def parse(text: str, origin: str) -> Book:
    """Parse the book in `text`; raises ModelError prefixed by `origin`."""
    try:
        facts = known_facts.parse(text)
        if facts.at("version")[0] != VERSION:
            raise ModelError(
                f"{origin}: is a tuning file of version {shown(facts.all['version'])}, expected {VERSION}",
                "Tune again: optimize --tune.",
            )
        return dict(_section(JsonObject(*machine)) for machine in facts.list("machines"))
    except ValueError as error:
        raise ModelError(f"{origin}: is not a tuning file: {error}", "Make one with optimize --tune.") from None


def _section(facts: JsonObject) -> tuple[Machine, Section]:
    machine = Machine(facts.text("gpu"), facts.text("driver"), facts.text("onnxruntime"))
    return machine, {entry.key: entry for entry in (_measured(JsonObject(*one)) for one in facts.list("measured"))}


def as_dict(book: Book) -> dict[str, Any]:
    """Return the book as plain data: machines, and for each the measurements by rule, op and shapes, in order."""
    machines = sorted(book, key=str)
    return {
        "version": VERSION,
        "machines": [
            {**asdict(m), "measured": [entry(one) for one in sorted(book[m].values(), key=_order)]} for m in machines
        ],
    }


def _order(measured: MeasuredVariants) -> tuple[str, str, tuple[Shape, ...]]:
    return measured.rule, measured.op, measured.shapes


def of_model(model: onnx.ModelProto) -> Book:
    """Return the measurements that a model carries; an empty book if none."""
    text = metadata.entry(model, METADATA)
    return {} if text is None else parse(text, f"the model's metadata {METADATA}")


def attach(model: onnx.ModelProto, book: Book) -> None:
    """Attach `book` to `model`, replacing previous measurements."""
    metadata.set_entry(model, METADATA, json.dumps(as_dict(book), separators=(",", ":")) if book else None)


def entry(measured: MeasuredVariants) -> dict[str, Any]:
    """Return the measurements of an op as plain data, in the file's format."""
    return {
        "op": measured.op,
        "rule": measured.rule,
        "nodes": list(measured.nodes),
        "types": list(measured.types),
        "shapes": [list(s) for s in measured.shapes],
        "candidates": [_candidate_facts(c) for c in measured.candidates],
    }


def _candidate_facts(candidate: Timed) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": candidate.kind}
    if candidate.tuning is not None:
        facts["tuning"] = candidate.tuning.as_json()
    if candidate.microseconds is None:
        return {**facts, "failed": candidate.failed}
    facts["microseconds"] = round(float(candidate.microseconds), 3)
    if candidate.spread is not None:
        facts["spread"] = [round(float(t), 3) for t in candidate.spread]
    return facts


def _measured(facts: JsonObject) -> MeasuredVariants:
    shapes = (as_list(*shape) for shape in facts.list("shapes"))
    return MeasuredVariants(
        facts.text("op"),
        facts.text("rule"),
        tuple(as_text(*n) for n in facts.list("nodes")),
        tuple(as_text(*t) for t in facts.list("types")),
        tuple(tuple(as_integer(*extent, 0, MOST_EXTENT) for extent in shape) for shape in shapes),
        tuple(_candidate(JsonObject(*c)) for c in facts.list("candidates")),
    )


def _candidate(facts: JsonObject) -> Timed:
    kind = facts.text("kind")
    if kind not in get_args(Kind):
        raise ValueError(f"candidate of kind {kind!r}, expected one of {', '.join(get_args(Kind))}")
    bounds = [as_number(*t) for t in facts.list("spread")] if "spread" in facts else None
    if bounds is not None and len(bounds) != 2:
        raise ValueError(f"{facts.place}.spread has {plural(bounds, 'number')}, expected 2")
    return Timed(
        cast(Kind, kind),
        dispatch.variant_of(facts.object("tuning")) if "tuning" in facts else None,
        facts.number("microseconds") if "microseconds" in facts else None,
        None if bounds is None else (bounds[0], bounds[1]),
        facts.text("failed") if "failed" in facts else "",
    )
