"""Metadata about precision conversion in a model file: the requested type, nodes that stayed, and why."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from onnx import ModelProto, TensorProto

from onnxfuse.model.metadata import entry, set_entry
from onnxfuse.options.groups import Precision
from onnxfuse.support.bounded_text import read_json
from onnxfuse.support.errors import ModelError
from onnxfuse.support.plurals import agreeing, plural

METADATA = "onnxfuse.precision"
"""Key in `metadata_props`."""

TYPES: dict[str, int] = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16, "float32": TensorProto.FLOAT}
"""Element types by their names in options and files."""

NAMES: dict[int, str] = {number: name for name, number in TYPES.items()}

PRECISIONS: tuple[str, ...] = get_args(Precision)
"""Values of the precision option."""

ROUNDINGS = 20.0
"""Allowed relative RMS error of an output, in units of the type's unit roundoff: independent roundings add up as the
root of their number, so these are four hundred in a row, more than any of the sample models has on its deepest path.
"""

UNIT = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "mixed": 2.0**-11}
"""Unit roundoff: half the distance from 1 to the next number, the largest relative error of one rounding."""


@dataclass(frozen=True)
class HighPrecisionNode:
    """A node that does not compute in the requested type."""

    node: str
    """Its name, or its first output's."""
    op: str
    type: str
    """Its compute type: `float32`, or `bfloat16` in a mixed model."""
    reason: str


@dataclass(frozen=True)
class PrecisionRecord:
    """Facts about the conversion of a model."""

    precision: str
    """`float16`, `bfloat16` or `mixed`."""
    tolerance: float
    """Maximum relative RMS error of an output, unless the original's own is larger."""
    inputs: str
    """Inputs used for the measurement."""
    truth: str
    """`float64` or `float32`."""
    nodes: int
    """Number of floating-point nodes."""
    kept: tuple[HighPrecisionNode, ...] = ()
    fixed: tuple[HighPrecisionNode, ...] = ()
    """Nodes without a lower-precision form, or that decide on shapes and branches: they were never candidates."""
    clamped: tuple[str, ...] = ()
    """Mask constants clamped to the type's range, without effect on the result."""
    doubled: tuple[str, ...] = ()
    """Weights stored in two types."""
    error: float = 0.0
    """Largest relative RMS error of an output, with each value rounded after its node."""
    out_of_time: bool = False
    """Whether the search for the fewest high-precision nodes hit its time limit."""
    plain_error: float = 0.0
    """If nodes stay although none is particularly sensitive: the tolerance at which all could be converted; else 0."""

    @property
    def nothing(self) -> bool:
        """Whether no node was converted."""
        return len(self.kept) == self.nodes and all(k.type == "float32" for k in self.kept)

    @property
    def summary(self) -> str:
        """The conversion in one line."""
        if self.nothing:
            stay = agreeing(self.nodes, "the only one has", f"all {self.nodes} have")
            return (
                f"{self.precision}: no node was converted: {stay} to stay float32 for outputs with a relative RMS "
                f"error of at most {self.tolerance:.2g} against {self.truth} on {self.inputs}"
            )
        unconverted = f"; {len(self.kept)} of {plural(self.nodes, 'float node')} kept float32" if self.kept else ""
        return (
            f"{self.precision}: relative RMS error {self.error:.2g} (allowed {self.tolerance:.2g}) against "
            f"{self.truth} on {self.inputs}, each value rounded to its type after its node{unconverted}"
        )

    @property
    def hint(self) -> str:
        """A step that would convert more nodes, for readers of the command line; empty if none is known."""
        return self.advice({"tolerance": "--tolerance", "seconds": "--time"})

    def advice(self, named: Mapping[str, str]) -> str:
        """Return a step that would convert more nodes, its options by the names that the reader knows."""
        hints = []
        if self.kept and self.tolerance < UNIT[self.precision]:
            hints.append(
                f"the tolerance is less than one rounding of the type, {UNIT[self.precision]:.2g}: allow more with "
                f"{named['tolerance']}"
            )
        if self.plain_error:
            hints.append(
                f"many small roundings add up and no node stands out: with {named['tolerance']} "
                f"{self.plain_error:.2g} none of them would have to stay float32"
            )
        if self.out_of_time:
            hints.append(
                f"the time ran out before the smallest set of nodes was found: allow more with {named['seconds']}"
            )
        return "; ".join(hints)

    def as_dict(self) -> dict[str, Any]:
        """Return every fact for JSON."""
        return {"summary": self.summary, "hint": self.hint, **asdict(self)}


def tolerance_of(precision: str) -> float:
    """Return the default relative RMS tolerance."""
    return ROUNDINGS * UNIT[precision]


def write(model: ModelProto, lowered: PrecisionRecord) -> None:
    """Write the record into the metadata of `model`."""
    set_entry(model, METADATA, json.dumps(asdict(lowered), sort_keys=True))


def read(model: ModelProto) -> PrecisionRecord | None:
    """Return the record in `model`, None if it was not converted. Raises ModelError for invalid metadata."""
    text = entry(model, METADATA)
    if text is None:
        return None
    try:
        return _read(read_json(text))
    except (ValueError, TypeError, KeyError) as error:
        raise ModelError(
            f"the metadata {METADATA} is not as onnxfuse writes it: {error}",
            "A tool that rewrote the file changed it; convert the original model again.",
        ) from None


def _read(facts: Any) -> PrecisionRecord:
    if not isinstance(facts, Mapping):
        raise ValueError("no object")
    texts = {key: str(facts[key]) for key in ("precision", "inputs", "truth")}
    if texts["precision"] not in PRECISIONS:
        raise ValueError(f"precision is {texts['precision']!r}")
    return PrecisionRecord(
        **texts,
        tolerance=float(facts["tolerance"]),
        nodes=int(facts["nodes"]),
        error=float(facts["error"]),
        kept=_high_precision(facts["kept"]),
        fixed=_high_precision(facts["fixed"]),
        clamped=tuple(map(str, facts["clamped"])),
        doubled=tuple(map(str, facts["doubled"])),
        out_of_time=bool(facts.get("out_of_time", False)),
        plain_error=float(facts.get("plain_error", 0.0)),
    )


def _high_precision(rows: Any) -> tuple[HighPrecisionNode, ...]:
    return tuple(HighPrecisionNode(**{k: str(v) for k, v in row.items()}) for row in rows)
