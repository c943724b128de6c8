"""Every operator in the forms that matter, and what ONNX Runtime's CPU provider makes of each: the truth is held to it.

A `Row` is one node: inputs, attributes, and the opsets in which it is written so. `versions` are the opsets at which
the operator's schema changed, from 7 on; a row is run at each of them that it allows.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfuse.verification.reference.reference import float64_evaluator
from onnxfuse.verification.run import sessions

OLDEST, NEWEST = 7, 25
"""The opsets that are looked at: ONNX Runtime 1.31 opens no newer ones."""

LAST = 10**9


@dataclass(frozen=True)
class Row:
    """One node."""

    op: str
    inputs: tuple[np.ndarray | None, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    since: int = OLDEST
    """The first opset in which it is written so."""
    until: int = LAST
    outputs: int = 1
    """How many it has; those of `nameless` position are not asked for."""
    domain: str = ""

    @property
    def text(self) -> str:
        """What stands in the name of the test."""
        shapes = ",".join("-" if x is None else "x".join(map(str, x.shape)) or "()" for x in self.inputs)
        written = " ".join(f"{k}={v}" for k, v in self.attributes.items() if not isinstance(v, onnx.TensorProto))
        return f"{self.op}({shapes}) {written}".strip()

    def opsets(self) -> tuple[int, ...]:
        """Return the opsets to run it at."""
        changes = versions(self.op)
        starts = sorted({*changes, self.since} if changes and self.since > changes[0] else set(changes))
        return tuple(v for v in starts if self.since <= v <= self.until)


@cache
def _history() -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and not schema.deprecated:
            found.setdefault(schema.name, set()).add(schema.since_version)
    return found


def versions(op: str) -> tuple[int, ...]:
    """Return the opsets from `OLDEST` on at which the schema of `op` is another one."""
    history = sorted(_history()[op])
    oldest = max((v for v in history if v <= OLDEST), default=history[0])
    return tuple(max(v, OLDEST) for v in history if oldest <= v <= NEWEST)


@dataclass(frozen=True)
class Peer:
    """What ONNX Runtime gives, and the truth."""

    dtype: str
    """`float64` where ONNX Runtime has the operator in it, else `float32`."""
    theirs: list[Any]
    ours: list[Any]

    def differences(self) -> Iterator[str]:
        """Yield what differs by more than rounding."""
        for number, (theirs, ours) in enumerate(zip(self.theirs, self.ours, strict=True)):
            ours = np.asarray(ours)
            if theirs.shape != ours.shape:
                yield f"output {number}: shape {ours.shape}, ONNX Runtime {theirs.shape}"
            elif theirs.dtype.kind in "fV":
                digits = max(ROUNDING[self.dtype], ROUNDING[theirs.dtype.name])
                a, b = ours.astype(np.float64), theirs.astype(np.float64)
                scale = np.abs(b[np.isfinite(b)]).max(initial=0)
                if not np.allclose(a, b, rtol=digits, atol=digits * scale, equal_nan=True):
                    with np.errstate(invalid="ignore"):
                        most = np.nanmax(np.abs(a - b))
                    yield f"output {number}: differs by {most:.3g} of {scale:.3g} ({self.dtype})"
            elif not np.array_equal(ours, theirs):
                yield f"output {number}: {int((ours != theirs).sum())} of {theirs.size} whole values differ"


ROUNDING = {"float64": 1e-12, "float32": 2e-5}
"""As a share of the largest value: operators with a hundred terms at most."""


FLOAT32_INSIDE = frozenset({"Shrink", "GridSample", "Attention", "AffineGrid", "GroupNormalization"})
"""Operators whose kernels for float64 compute with float32 attributes, scales or weights (ONNX Runtime 1.31)."""


class NotHereError(Exception):
    """ONNX Runtime has no such operator on the CPU in any of the two types."""


def peer(row: Row, opset: int) -> Peer:
    """Return ONNX Runtime's outputs and ours. Raises NotHereError, and what the evaluator raises."""
    why = ""
    for dtype in ("float64", "float32"):
        made = model(row, opset, dtype)
        feed = {f"x{n}": _typed(x, dtype) for n, x in enumerate(row.inputs) if x is not None}
        try:
            session = sessions.unoptimized(made)
        except Exception as error:
            why = str(error)
            continue
        try:
            theirs = list(sessions.run(session, feed).values())
        except sessions.ORT_ERRORS as error:  # LSTM and GRU have kernels in float64 that refuse to run
            why = str(error)
            continue
        evaluator = float64_evaluator(model(row, opset, "float32"))
        with np.errstate(all="ignore"):
            ours = evaluator.run(None, {n: _typed(x, "float64") for n, x in feed.items()})
        return Peer("float32" if row.op in FLOAT32_INSIDE else dtype, theirs, ours)
    raise NotHereError(why)


def model(row: Row, opset: int, dtype: str) -> onnx.ModelProto:
    """Return the row's node as a model."""
    names = ["" if x is None else f"x{n}" for n, x in enumerate(row.inputs)]
    outputs = [f"y{n}" for n in range(row.outputs)]
    attributes = dict(row.attributes)
    if row.op in ("Cast",) and "to" not in attributes:
        attributes["to"] = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node(row.op, names, outputs, domain=row.domain, **attributes)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(_typed(x, dtype).dtype), x.shape)
            for n, x in zip(names, row.inputs, strict=True)
            if x is not None
        ],
        [onnx.ValueInfoProto(name=n) for n in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def _typed(x: np.ndarray, dtype: str) -> np.ndarray:
    return x.astype(dtype) if x.dtype.kind == "f" else x
