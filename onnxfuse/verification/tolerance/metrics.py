"""Difference metrics of two arrays: magnitude, location, frequency, and agreement of the best classes.

Everything is computed in chunks of `CHUNK` elements, so that an output of any size needs only a few more megabytes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

CHUNK = 1 << 18
"""Elements processed at once: 2 MB in float64."""

QUANTILES = (0.5, 0.9, 0.99, 0.999)
"""Quantiles reported of the absolute error."""

CUSTOMARY_RTOL = {"float16": 1e-3, "bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-9}
"""Relative tolerances for which the smallest passing absolute tolerance is reported."""

ULP_EDGES = (0, 1, 2, 3, 5, 9, 17, 65, 257, 1025, 65537)
"""Lower edges of the ULP histogram: same, 1, 2, 3-4, 5-8, 9-16, 17-64, 65-256, 257-1024, 1025-65536, more."""


@dataclass(frozen=True)
class Difference:
    """Difference of fused and original, over the elements that are finite in both unless noted otherwise."""

    elements: int = 0
    """Elements of the output."""
    finite: int = 0
    """Elements that are finite in both."""
    max_abs: float = 0.0
    max_abs_at: tuple[int, ...] = ()
    mean_abs: float = 0.0
    max_rel: float = 0.0
    """Relative to the original; infinite where that is zero."""
    max_rel_at: tuple[int, ...] = ()
    mean_rel: float = 0.0
    """Over the elements whose original is not zero."""
    quantiles: Mapping[str, float] = field(default_factory=dict)
    """Quantiles of the absolute error by share: "0.5", "0.9", ... Accurate to 1 % beyond `CHUNK` elements, exact up to
    there."""
    cosine: float = 1.0
    snr: float = math.inf
    """Signal-to-noise ratio in dB: the original's energy over that of the difference; infinite for equal outputs."""
    rtol: float = 0.0
    """Customary relative tolerance of the type."""
    atol: float = 0.0
    """With `rtol`, the smallest absolute tolerance with which numpy.testing.assert_allclose(fused, original) passes."""
    ulps: Mapping[str, int] = field(default_factory=dict)
    """Histogram of elements by ulp distance: "0", "1", "2", "3-4", ...; floats only."""
    nan: tuple[int, int] = (0, 0)
    """Number of NaNs in the fused output, and in the original's."""
    inf: tuple[int, int] = (0, 0)
    """Number of infinities in the fused output, and in the original's."""
    agreement: Mapping[str, float] = field(default_factory=dict)
    """Share of rows whose best column is the same ("1"), or whose k best columns are, in any order ("5"): for class
    scores, and as requested."""


def difference(fused: Array, original: Array, top_k: Sequence[int] = ()) -> Difference:
    """Return the difference of two arrays of one shape and type. Numbers only; strings differ by 0.

    `top_k` requests the agreement of the k best of the last axis. Raises nothing.
    """
    if not original.size or original.dtype.kind in "SUO":
        return Difference(elements=original.size)
    sums = _Sums(original.dtype, original.size)
    for start, f, o in chunks(fused, original):
        sums.add(start, f, o)
    return sums.result(original.shape, agreements(fused, original, top_k))


def chunks(*arrays: Array) -> Iterator[tuple[Any, ...]]:
    """Yield the offset and a flat chunk of each array; the arrays are of one shape."""
    flat = [np.ascontiguousarray(x).reshape(-1) for x in arrays]
    for start in range(0, flat[0].size, CHUNK):
        yield (start, *(x[start : start + CHUNK] for x in flat))


def agreements(fused: Array, original: Array, top_k: Sequence[int]) -> dict[str, float]:
    """Return the share of rows whose k best columns are the same, by k; k larger than the columns are omitted.

    A tie is no disagreement: a row agrees if the classes chosen by the fused model have the original's best scores.
    """
    if original.ndim == 0 or original.dtype.kind not in "fV" or not original.size:
        return {}
    columns = original.shape[-1]
    ranks = [k for k in top_k if 1 <= k < columns]
    f, o = (x.reshape(-1, columns) for x in (fused, original))
    per_chunk, agreed = max(1, CHUNK // columns), dict.fromkeys(ranks, 0)
    for start in range(0, len(o), per_chunk):
        scores, fused_scores = (x[start : start + per_chunk].astype(np.float64) for x in (o, f))
        for k in ranks:
            picked = np.take_along_axis(scores, np.argpartition(-fused_scores, k - 1, axis=1)[:, :k], axis=1)
            best = -np.partition(-scores, k - 1, axis=1)[:, :k]
            agreed[k] += int((np.sort(picked, axis=1) == np.sort(best, axis=1)).all(axis=1).sum())
    return {str(k): agreed[k] / len(o) for k in ranks}


class Quantiles:
    """Streaming quantiles of non-negative numbers: exact in one chunk, to 1 % over several.

    Several chunks are binned by the upper half of their float32 bits: sign, exponent, and seven fraction bits.
    """

    def __init__(self) -> None:
        self._only: Floats | None = None
        self._counts: npt.NDArray[np.int64] | None = None
        self.count = 0

    def add(self, values: Floats) -> None:
        """Add one chunk."""
        if self.count == 0:
            self._only = values
        else:
            if self._counts is None:
                assert self._only is not None
                self._counts, self._only = self._bins(self._only), None
            self._counts += self._bins(values)
        self.count += values.size

    def at(self, share: float) -> float:
        """Return the quantile for this share; 0 if there are no numbers."""
        if self.count == 0:
            return 0.0
        if self._only is not None:
            return float(np.percentile(self._only, 100 * share))
        assert self._counts is not None
        bin_ = int(np.searchsorted(np.cumsum(self._counts), share * (self.count - 1), side="right"))
        middle = np.array([(bin_ << 16) | 0x8000 if bin_ else 0], np.uint32)
        return float(middle.view(np.float32)[0])

    @staticmethod
    def _bins(values: Floats) -> npt.NDArray[np.int64]:
        with np.errstate(over="ignore"):
            bits = values.astype(np.float32).view(np.uint32) >> np.uint32(16)
        return np.bincount(bits, minlength=1 << 16).astype(np.int64)


def ulp_distances(a: Array, b: Array) -> npt.NDArray[np.float64]:
    """Return the ulp distance between the elements of `a` and `b`; 0 for equal ones."""
    ranks = _rank(a), _rank(b)
    far: npt.NDArray[np.float64] = np.abs(ranks[0].astype(np.float64) - ranks[1].astype(np.float64))
    if a.dtype.itemsize < 8:
        return far
    # Float64 cannot represent every rank of float64, and int64 cannot hold the distance of its two ends.
    return np.where(far < 2.0**60, np.abs(ranks[0] - ranks[1]).astype(np.float64), far)


class _Sums:
    """Sums accumulated over the chunks of an output."""

    def __init__(self, dtype: np.dtype[Any], elements: int) -> None:
        self.dtype, self.elements = dtype, elements
        self.floats = dtype.kind in "fV"
        self.rtol = CUSTOMARY_RTOL.get(dtype.name, 1e-2) if self.floats else 0.0
        self.finite = self.nonzero = 0
        self.nan, self.inf = np.zeros(2, np.int64), np.zeros(2, np.int64)
        self.worst_abs, self.worst_rel = (0.0, 0), (0.0, 0)
        self.sum_abs = self.sum_rel = self.atol = 0.0
        # Squares of the largest float64 overflow: products use values scaled by `unit`, which grows with them.
        self.unit, self.ff, self.oo, self.fo, self.dd = 0.0, 0.0, 0.0, 0.0, 0.0
        self.quantiles = Quantiles()
        self.ulps = np.zeros(len(ULP_EDGES), np.int64)

    def add(self, start: int, f: Array, o: Array) -> None:
        wide_f, wide_o = f.astype(np.float64), o.astype(np.float64)
        for count, test in ((self.nan, np.isnan), (self.inf, np.isinf)):
            count += [int(test(wide_f).sum()), int(test(wide_o).sum())]
        both = np.isfinite(wide_f) & np.isfinite(wide_o)
        where = np.flatnonzero(both)
        if not where.size:
            return
        if self.floats:
            distances = ulp_distances(f[both], o[both])
            bins = np.searchsorted(ULP_EDGES, distances, side="right") - 1
            self.ulps += np.bincount(bins, minlength=len(ULP_EDGES))
        a, b = wide_f[both], wide_o[both]
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            d = np.abs(a - b)
            share = np.where(d == 0, 0.0, d / np.abs(b))
        self.worst_abs = max(self.worst_abs, _worst(d, where, start), key=lambda w: w[0])
        self.worst_rel = max(self.worst_rel, _worst(share, where, start), key=lambda w: w[0])
        self.finite += where.size
        self.sum_abs += float(d.sum())
        self.sum_rel += float(share[b != 0].sum())
        self.nonzero += int((b != 0).sum())
        self.atol = max(self.atol, float(np.maximum(d - self.rtol * np.abs(b), 0.0).max()))
        self.quantiles.add(d)
        self._products(a, b)

    def result(self, shape: tuple[int, ...], agreement: Mapping[str, float]) -> Difference:
        norms = math.sqrt(self.ff) * math.sqrt(self.oo)
        zeros = self.ff == self.oo == 0
        return Difference(
            elements=self.elements,
            finite=self.finite,
            max_abs=self.worst_abs[0],
            max_abs_at=_index(self.worst_abs, shape),
            mean_abs=self.sum_abs / self.finite if self.finite else 0.0,
            max_rel=self.worst_rel[0],
            max_rel_at=_index(self.worst_rel, shape),
            mean_rel=self.sum_rel / self.nonzero if self.nonzero else 0.0,
            quantiles={str(q): self.quantiles.at(q) for q in QUANTILES} if self.finite else {},
            cosine=1.0 if zeros or self.dd == 0 else min(1.0, self.fo / norms) if norms else 0.0,
            snr=math.inf if self.dd == 0 else 10 * math.log10(self.oo / self.dd) if self.oo else -math.inf,
            rtol=self.rtol,
            atol=self.atol,
            ulps={_ulp_label(n): int(c) for n, c in enumerate(self.ulps) if c},
            nan=(int(self.nan[0]), int(self.nan[1])),
            inf=(int(self.inf[0]), int(self.inf[1])),
            agreement=agreement,
        )

    def _products(self, a: Floats, b: Floats) -> None:
        largest = max(float(np.abs(a).max()), float(np.abs(b).max()))
        if largest > self.unit:
            shrink = (self.unit / largest) ** 2
            self.ff, self.oo, self.fo, self.dd = (shrink * s for s in (self.ff, self.oo, self.fo, self.dd))
            self.unit = largest
        if self.unit:
            a, b = a / self.unit, b / self.unit
            self.ff, self.oo, self.fo = self.ff + float(a @ a), self.oo + float(b @ b), self.fo + float(a @ b)
            self.dd += float((a - b) @ (a - b))


def _rank(x: Array) -> npt.NDArray[np.int64]:
    """Return the rank of each element among the numbers of its type: adjacent ones differ by 1, both zeros are 0."""
    bits = np.ascontiguousarray(x).view(f"i{x.dtype.itemsize}").astype(np.int64)
    lowest = -(1 << (8 * x.dtype.itemsize - 1))
    return np.where(bits < 0, lowest - bits, bits)


def _ulp_label(n: int) -> str:
    low, last = ULP_EDGES[n], n + 1 == len(ULP_EDGES)
    if last:
        return f">={low}"
    return str(low) if ULP_EDGES[n + 1] == low + 1 else f"{low}-{ULP_EDGES[n + 1] - 1}"


def _worst(values: Floats, where: npt.NDArray[np.int64], start: int) -> tuple[float, int]:
    index = int(np.argmax(values))
    return float(values[index]), start + int(where[index])


def _index(worst: tuple[float, int], shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(worst[1], shape)) if worst[0] > 0 else ()
