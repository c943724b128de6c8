"""Test a conversion on the whole model: each value rounded after its node, the outputs compared with the reference."""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from onnxfuse.files.io import without_weights
from onnxfuse.precision import rounding
from onnxfuse.precision.plan import FLOAT, converted, float_nodes, opsets_of
from onnxfuse.precision.scopes import scopes_of
from onnxfuse.precision.write import PrecisionWriter
from onnxfuse.shapes.inference import infer
from onnxfuse.support.plurals import plural
from onnxfuse.verification.compare.lower_precision_check import lower_run
from onnxfuse.verification.reference.float64_reference import as_half, in_float32
from onnxfuse.verification.run import sessions
from onnxfuse.verification.run.tensors import MISSING
from onnxfuse.verification.tolerance.class_outputs import class_outputs
from onnxfuse.verification.tolerance.lower_precision import Judged, judge

T = TypeVar("T")
Array = npt.NDArray[Any]
Arrays = Mapping[str, Array]
Kinds = dict[str, int]
"""Types of the nodes that do not have the low one, by first output."""

LESS = 0.8
"""Safety factor on the share of the tolerance with which the result would have passed: rounding errors vary by
chance."""
BROKEN = 8.0
"""Severity assigned to a non-finite output."""


@dataclass(frozen=True)
class Tried:
    """Result of one selection."""

    output: str
    """The worst output."""
    judged: Judged

    @property
    def ok(self) -> bool:
        """Whether every output meets the contract."""
        return not self.judged.fault


@dataclass
class Trial:
    """A model, the cases on which it was measured, and their reference outputs."""

    model: ModelProto
    low: int
    tolerance: float
    feeds: Sequence[Arrays]
    truth: Sequence[Arrays]
    until: float
    """Deadline for trials, by `time.perf_counter`."""
    progress: Callable[[str], None]
    own: list[dict[str, Array]] = field(default_factory=list)
    """The original's float32 outputs."""
    count: int = 0
    known: dict[frozenset[tuple[str, int]], Tried] = field(default_factory=dict)
    """Results of the selections tried so far."""
    cut: bool = False
    """Whether a selection was not tried because of the deadline."""
    scores: frozenset[str] = frozenset()
    inferred: ModelProto = field(default_factory=ModelProto)
    """Types of the model's values."""
    share: float = 1.0
    """Share of the tolerance that selections must meet: less if a final model failed."""

    def __post_init__(self) -> None:
        """Run the original once on each case."""
        run = in_float32(self.model)
        self.own = [run(dict(feed)) for feed in self.feeds[: len(self.truth)]]
        self.scores = frozenset(class_outputs(self.model))
        self.inferred = infer(self.model)

    @property
    def over(self) -> bool:
        """Whether the deadline has passed, checked before a trial."""
        self.cut = self.cut or time.perf_counter() > self.until
        return self.cut

    def converted(self, pinned: Kinds, io_type: int = FLOAT) -> tuple[ModelProto, list[str]]:
        """Return the model converted except for these nodes, and the weights that it then holds in two types."""
        converted_model = without_weights(self.model, lambda weight: weight)
        main = scopes_of(converted_model, self.inferred)
        every = float_nodes(main, opsets_of(converted_model))
        writer = PrecisionWriter(converted_model, main, every, converted(every, pinned, self.low))
        writer.run(io_type)
        return converted_model, writer.doubled

    def run(self, pinned: Kinds) -> Tried:
        """Return the worst output over all cases with these nodes in float32."""
        key = frozenset(pinned.items())
        if key in self.known:
            return self.known[key]
        self.count += 1
        self.progress(f"try {self.count}: {plural(pinned, 'node')} kept")
        self.known[key] = self._worst(as_half(self.converted(pinned)[0]), self.share * self.tolerance)
        return self.known[key]

    def whole(self, converted_model: ModelProto) -> Tried:
        """Return the worst output of the finished model, as ONNX Runtime runs it on the CPU."""
        self.progress("the whole")
        with tempfile.TemporaryDirectory(prefix="onnxfuse-") as folder:
            run, _ = lower_run(converted_model, [sessions.CPU], folder)
            return self._worst(run, self.tolerance)

    def stricter(self, result: Tried) -> None:
        """Tighten the tolerance of later selections by the factor by which this one exceeded it."""
        self.share *= LESS / result.judged.severity if math.isfinite(result.judged.severity) else LESS / BROKEN
        self.known.clear()

    def _worst(self, run: Callable[[dict[str, Array]], Arrays], tolerance: float) -> Tried:
        tiny = rounding.facts(self.low).tiny
        worst: Tried | None = None
        for feed, reference, original_outputs in zip(self.feeds, self.truth, self.own, strict=False):
            with np.errstate(all="ignore"):
                outputs = run(dict(feed))
            for name, true in reference.items():
                got_one, own_one = outputs.get(name, MISSING), original_outputs.get(name, MISSING)
                judged = judge(got_one, own_one, true, tolerance, tiny=tiny, scores=name in self.scores)
                if worst is None or judged.severity > worst.judged.severity:
                    worst = Tried(name, judged)
        assert worst is not None
        return worst


def fewest(every: list[T], holds: Callable[[Sequence[T]], bool], over: Callable[[], bool]) -> list[T]:
    """Return a minimal subset with which the contract is met, by bisection: halves are dropped first, starting at the
    end.

    After the deadline, the current subset.
    """
    needed, size = every, -(-len(every) // 2)
    while size:
        start = len(needed) - size
        while start > -size and needed and not over():
            without = needed[: max(start, 0)] + needed[start + size :]
            if holds(without):
                needed = without
            start -= size
        size = size // 2 if size > 1 else 0
    return needed
