"""Small charts as SVG text: bars, histograms, and a roofline. Colors come from the page's classes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

BAR = 20
LABEL = 300
"""Width of the label column."""
NAME, LINE = 120.0, 13.0
"""Space for the labels of a point in a roofline; before and after often coincide."""
WIDTH = 860
LETTER = 7.0
"""Approximate width of a letter at the font size of all charts."""


@dataclass(frozen=True)
class Bar:
    """One bar."""

    label: str
    value: float
    text: str
    """Text after the bar."""
    kind: str = ""
    """`good`, `bad` or empty: the color."""


def bars(items: Sequence[Bar], limit: float | None = None) -> str:
    """Return horizontal bars; `limit` draws a line beyond which a value is wrong."""
    finite = [b.value for b in items if math.isfinite(b.value)]
    largest = max([*finite, limit or 0.0]) or 1.0
    bar_width = WIDTH - LABEL - max([150.0, *(len(b.text) * LETTER for b in items)])
    height = len(items) * BAR + 8
    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img">']
    if limit is not None:  # first, so that the texts stand before it
        x = LABEL + bar_width * limit / largest
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" class="limit"/>')
    for row, bar in enumerate(items):
        y = row * BAR + 4
        size = bar_width * min(bar.value / largest, 1.0) if math.isfinite(bar.value) else bar_width
        parts += [
            f'<text x="{LABEL - 8}" y="{y + 13}" class="end">{escape(_cut(bar.label))}</text>',
            f'<rect x="{LABEL}" y="{y + 2}" width="{max(size, 1):.1f}" height="{BAR - 6}" class="bar {bar.kind}"/>',
            f'<text x="{LABEL + max(size, 1) + 6:.1f}" y="{y + 13}">{escape(bar.text)}</text>',
        ]
    return "".join([*parts, "</svg>"])


def histogram(counts: Sequence[tuple[str, int]]) -> str:
    """Return vertical bars, one per class, with logarithmic heights, so that a single element is visible."""
    width, height = max([60, *(round(len(label) * LETTER) + 6 for label, _ in counts)]), 130
    largest = max((math.log10(1 + n) for _, n in counts), default=0.0) or 1.0
    total_width = len(counts) * width + 10
    parts = [f'<svg class="chart small" width="{total_width}" viewBox="0 0 {total_width} {height + 24}" role="img">']
    for column, (label, count) in enumerate(counts):
        size = height * math.log10(1 + count) / largest * 0.85
        x = column * width + 5
        parts += [
            f'<rect x="{x + 6}" y="{height - size:.1f}" width="{width - 12}" height="{size:.1f}" class="bar"/>',
            f'<text x="{x + width / 2}" y="{height - size - 5:.1f}" class="middle">{count}</text>',
            f'<text x="{x + width / 2}" y="{height + 16}" class="middle">{escape(label)}</text>',
        ]
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True)
class Spot:
    """One model at one shape in a roofline."""

    label: str
    intensity: float
    """FLOPs per byte of device memory."""
    rate: float
    """FLOPs per second."""
    kind: str


def roofline(spots: Sequence[Spot], bandwidth: float, peak: float) -> str:
    """Return the roofline on logarithmic axes: the attainable rate by intensity, and the rates reached.

    `bandwidth`: bytes per second; `peak`: FLOPs per second.
    """
    left, top, right, bottom = 96.0, 14.0, WIDTH - 20.0, 300.0
    knee = peak / bandwidth
    low = 10 ** math.floor(math.log10(min([knee / 10, *(s.intensity for s in spots)])))
    high = 10 ** math.ceil(math.log10(max([knee * 10, *(s.intensity for s in spots)])))
    ceiling = 10 ** math.ceil(math.log10(peak))
    floor = 10 ** math.floor(math.log10(min([low * bandwidth, *(s.rate for s in spots)])))

    def x(value: float) -> float:
        return left + (right - left) * math.log10(value / low) / math.log10(high / low)

    def y(value: float) -> float:
        return bottom - (bottom - top) * math.log10(value / floor) / math.log10(ceiling / floor)

    parts = [f'<svg class="chart" viewBox="0 0 {WIDTH} {bottom + 40:.0f}" role="img">']
    for power in range(round(math.log10(low)), round(math.log10(high)) + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}" class="grid"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 16}" class="middle">{10.0**power:g}</text>')
    for power in range(round(math.log10(floor)), round(math.log10(ceiling)) + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" class="end">{_flops(10.0**power)}</text>')
    roof = f"{x(low):.1f},{y(low * bandwidth):.1f} {x(knee):.1f},{y(peak):.1f} {x(high):.1f},{y(peak):.1f}"
    parts.append(f'<polyline points="{roof}" class="roof"/>')
    named: list[tuple[float, float]] = []
    for spot in sorted(spots, key=lambda spot: -spot.rate):
        at, height = x(spot.intensity), y(spot.rate)
        row = height + 4
        while any(abs(at - a) < NAME and abs(row - r) < LINE for a, r in named):
            row += LINE
        named.append((at, row))
        label = escape(f"{spot.label}: {_flops(spot.rate)} at {spot.intensity:.1f} FLOP/byte")
        parts.append(f'<circle cx="{at:.1f}" cy="{height:.1f}" r="5" class="bar {spot.kind}"><title>{label}</title>')
        parts.append(f'</circle><text x="{at + 8:.1f}" y="{row:.1f}">{escape(spot.label)}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 34}" class="middle">FLOP per byte</text></svg>')
    return "".join(parts)


def _flops(rate: float) -> str:
    for size, unit in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M")):
        if rate >= size:
            return f"{rate / size:.3g} {unit}FLOP/s"
    return f"{rate:.3g} FLOP/s"


def _cut(text: str, length: int = 40) -> str:
    return text if len(text) <= length else f"{text[: length // 2 - 1]}…{text[-length // 2 :]}"
