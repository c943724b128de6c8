"""The chart of the front page: how much faster than ONNX Runtime's best each model runs, from what was published."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from onnxfuse.measure.benchmark.plot import COLORS

FILE = "docs/data/speedup.svg"
WIDTH, LABEL, ROW, BAR = 560, 206, 36, 12
"""Pixels: of the chart, of the names, from row to row, of a bar's height. Narrow, so that a phone shows all of it."""
HEAD = 34


@dataclass(frozen=True)
class Bars:
    """One model: factors over ONNX Runtime's best."""

    name: str
    fused: float
    compiled: float | None = None
    """torch.compile; None where it was not measured."""


def svg(models: Sequence[Bars], measured: str) -> str:
    """Return the chart, in both color schemes; `measured` says where and when."""
    most = max([1.0, *(m.fused for m in models), *(m.compiled or 0 for m in models)])
    scale, height = (WIDTH - LABEL - 60) / most, HEAD + len(models) * ROW + 28
    at_one = LABEL + scale
    parts = [
        f'<svg class="speedup" xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        'aria-label="Speed of fused models and of torch.compile over ONNX Runtime\'s best">',
        f"<style>{_style()}</style>",
        *_key(),
    ]
    bars, texts = [], []
    for row, model in enumerate(models):
        y = HEAD + row * ROW
        texts.append(f'<text class="end" x="{LABEL - 10}" y="{y + 19}">{escape(model.name)}</text>')
        for place, (kind, factor) in enumerate((("fused", model.fused), ("compiled", model.compiled))):
            if factor is not None:
                top = y + 3 + place * (BAR + 2)
                bars.append(f'<rect class="{kind}" x="{LABEL}" y="{top}" width="{factor * scale:.1f}" height="{BAR}"/>')
                x = LABEL + factor * scale + 6
                texts.append(f'<text class="number" x="{x:.1f}" y="{top + 10}">{factor:.2f}x</text>')
    bottom = height - 26
    # The line over the bars, and the numbers over the line.
    line = f'<line class="one" x1="{at_one:.1f}" x2="{at_one:.1f}" y1="{HEAD - 4}" y2="{bottom}"/>'
    parts += [*bars, line, *texts]
    parts.append(f'<text class="note" x="0" y="{height - 8}">{escape(measured)}</text></svg>\n')
    return "".join(parts)


def _key() -> list[str]:
    parts, x = [], 0.0
    for kind, text in (("fused", "fused"), ("compiled", "torch.compile"), ("one", "1x: ONNX Runtime's best setting")):
        mark = f'<rect class="{kind}" x="{x}" y="8" width="12" height="12"/>'
        parts += [mark, f'<text x="{x + 18}" y="18">{escape(text)}</text>']
        x += 42 + 7 * len(text)
    return parts


def _style() -> str:
    return (
        "svg.speedup text{font:13px system-ui,sans-serif;fill:#1b1f24}svg.speedup .end{text-anchor:end}"
        "svg.speedup .number{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:4px}"
        "svg.speedup .note{font-size:11px;fill:#5b6572}"
        f"svg.speedup .fused{{fill:{COLORS['fused']}}}svg.speedup .compiled{{fill:{COLORS['compiled']}}}"
        f"svg.speedup rect.one{{fill:{COLORS['original']}}}"
        f"svg.speedup line.one{{stroke:{COLORS['original']};stroke-width:1.5;stroke-dasharray:4 3}}"
        "@media(prefers-color-scheme:dark){svg.speedup text{fill:#e6eaef}"
        "svg.speedup .number{stroke:#0d1117}svg.speedup .note{fill:#98a2ad}}"
    )
