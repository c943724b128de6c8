"""The tables of the pages, written from what was published: one run, which each names.

A table stands in its page between `<!-- figures: NAME -->` and `<!-- end of figures -->`.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from bench.apart import CACHED, EMPTY, ORIGINAL, PACKED
from bench.figures import chart
from bench.figures.data import ROOT, Row, Rows
from bench.figures.parts import PARTS
from models import vision
from onnxfuse.support.errors import UsageError

PAGES = (
    "README.md",
    "docs/SPEED.md",
    "docs/FIRST_RUN.md",
    "docs/TORCH_COMPILE.md",
    "models/PERFORMANCE.md",
)
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
FRONT = (
    "resnet50 float16, 32 images", "resnet50 float16, 1 image", "bert_base float16, 32x128 tokens",
    "bert_base float16, 1x128 tokens",
)  # fmt: skip
GRAPH = "CUDA graph"


def written(rows: Rows, pages: Sequence[str] = PAGES, root: Path = ROOT) -> Iterator[str]:
    """Write the tables into the pages, and yield those that changed."""
    for page in pages:
        text = (root / page).read_text(encoding="utf-8")
        made = BLOCK.sub(lambda found: found[1] + _block(found[2], rows) + found[3], text)
        if made != text:
            (root / page).write_text(made, encoding="utf-8")
            yield page


def chart_written(rows: Rows, root: Path = ROOT) -> Iterator[str]:
    """Write the chart of the front page, and yield its path if it changed."""
    if chart_fault(rows, root):
        (root / chart.FILE).write_text(speedups(rows), encoding="utf-8")
        yield chart.FILE


def chart_fault(rows: Rows, root: Path = ROOT) -> str:
    """Return the command that mends the chart, if it is not what was measured; else an empty text."""
    file = root / chart.FILE
    same = file.is_file() and file.read_text(encoding="utf-8") == speedups(rows)
    return "" if same else f"{chart.FILE} is not what is published: python -m bench.figures write"


def speedups(rows: Rows) -> str:
    """Return the chart of how many times as fast each sample model is than ONNX Runtime's best."""
    found = _of(rows, "models")
    compiled = _beside(rows, "compiled", found)
    models = [
        chart.Bars(
            name.replace(" float16", ""),
            _over(row),
            _best(row)[1] / min(compiled[name].values.values()) if name in compiled else None,
        )
        for name, row in found.items()
    ]
    last = max((row.stamp for row in found.values()), key=lambda stamp: stamp.measured, default=None)
    return chart.svg(
        models, "" if last is None else f"float16 where nothing else is said; {last.card}, {last.measured[:10]}"
    )


def faults(rows: Rows, pages: Sequence[str] = PAGES, root: Path = ROOT) -> list[str]:
    """Return the tables that are not what was measured, with the command that mends them."""
    found = []
    for page in pages:
        for block in BLOCK.finditer((root / page).read_text(encoding="utf-8")):
            if block[0] != block[1] + _block(block[2], rows) + block[3]:
                found.append(f"{page}: {block[2]} is not what is published: python -m bench.figures write")
    return found


def _block(name: str, rows: Rows) -> str:
    if name not in TABLES:
        raise UsageError(f"figures: {name}: there is no such table", f"There are: {', '.join(TABLES)}.")
    return f"\n{TABLES[name](rows)}\n\n"


def _none(*parts: str) -> str:
    return f"Not measured yet for this version. For these figures on your GPU, run `{_command(parts)}`."


def _command(parts: Sequence[str]) -> str:
    return f"python -m bench.figures measure{''.join(f' --only {part}' for part in parts)}"


def _table(
    found: Mapping[str, Row], head: Sequence[str], cells: Callable[[str, Row], Sequence[str]], *parts: str
) -> str:
    """Return a table of one run, and under it when, where, at which commit and by which command it was measured."""
    if not found:
        return _none(*parts)
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    lines += [f"| {' | '.join(cells(name, row))} |" for name, row in found.items()]
    last = max((row.stamp for row in found.values()), key=lambda stamp: stamp.measured)
    return "\n".join([*lines, "", f"Measured {last.told}; `{_command(parts)}`."])


def _of(rows: Rows, part: str, names: Sequence[str] = ()) -> dict[str, Row]:
    """Return the rows of a part in its own order, or those named."""
    return {name: rows[part][name] for name in names or PARTS[part].rows if name in rows.get(part, {})}


def _beside(rows: Rows, part: str, found: Mapping[str, Row]) -> dict[str, Row]:
    """Return the rows of another part with the names of these."""
    others = rows.get(part, {})
    return {name: others[name] for name in found if name in others}


def _best(row: Row) -> tuple[str, float]:
    settings: Mapping[str, float] = row.values["settings"]
    name = min(settings, key=lambda one: settings[one])
    return name, settings[name]


def _over(row: Row) -> float:
    """Return how many times as fast the fused model is."""
    return float(_best(row)[1] / row.values["fused"])


def _times(row: Row, *, name: bool = True) -> tuple[str, str, str]:
    """Return ONNX Runtime's best, fused, and how many times as fast that is."""
    setting, best = _best(row)
    shown = f" ({setting})" if name and setting != GRAPH else ""
    return f"{best:.0f}{shown}", f"**{row.values['fused']:.0f}**", f"**{_over(row):.2f}x**"


def _compiled(beside: Mapping[str, Row], name: str) -> str:
    return f"{min(beside[name].values.values()):.0f}" if name in beside else ""


COMPILED = "torch.compile"


def _medians(found: Mapping[str, Row], compiled: Mapping[str, Row]) -> str:
    """Return the middle and the least of what a table says; "" of no rows."""
    overs = {"ONNX Runtime's best": [_over(row) for row in found.values()]}
    overs[COMPILED] = [min(row.values.values()) / found[name].values["fused"] for name, row in compiled.items()]
    told = [f"{median(o):.1f}x {what} over {len(o)} rows, least {min(o):.2f}x" for what, o in overs.items() if o]
    return f"In the median {'; '.join(told)}." if told else ""


def _front(rows: Rows) -> str:
    found = _of(rows, "models", FRONT)
    compiled = _beside(rows, "compiled", found)

    def cells(name: str, row: Row) -> Sequence[str]:
        model, _, size = name.partition(" float16, ")
        best, fused, over = _times(row, name=False)
        return (model, size, best, _compiled(compiled, name), fused, over)

    head = ("model", "input", "ORT best", COMPILED, "fused", "over ORT best")
    return _table(found, head, cells, "models", "compiled")


def _beside_compile(rows: Rows) -> str:
    """Return a sentence on the cases of the table of models that have both times."""
    found = _of(rows, "models")
    compiled = _beside(rows, "compiled", found)
    overs = {name: min(row.values.values()) / found[name].values["fused"] for name, row in compiled.items()}
    if not overs:
        return _none("models", "compiled")
    least, most = min(overs, key=lambda name: overs[name]), max(overs, key=lambda name: overs[name])
    mean = math.exp(sum(map(math.log, overs.values())) / len(overs))
    last = max((row.stamp for row in compiled.values()), key=lambda stamp: stamp.measured)
    return (
        f"In {sum(over > 1 for over in overs.values())} of {len(overs)} the fused model is faster: {mean:.2f}x in the "
        f"geometric mean, from {overs[least]:.2f}x ({least}) to {overs[most]:.2f}x ({most}).\n\n"
        f"Measured {last.told}."
    )


def _models(rows: Rows) -> str:
    found = _of(rows, "models")
    compiled = _beside(rows, "compiled", found)

    def cells(name: str, row: Row) -> Sequence[str]:
        model, _, size = name.partition(", ")
        launches = [("?" if n is None else str(n)) for n in row.values["launches"]]
        graph = "" if GRAPH not in row.values["settings"] else f"{row.values['settings'][GRAPH]:.0f}"
        best, fused, over = _times(row)
        return (model, size, graph, best, _compiled(compiled, name), fused, over, " -> ".join(launches))

    head = ("model", "input", "ORT + CUDA graph", "ORT best", COMPILED, "fused", "over ORT best", "launches")
    return _table(found, head, cells, "models", "compiled")


def _cnns(rows: Rows) -> str:
    def cells(name: str, row: Row) -> Sequence[str]:
        called = "U-Net (32 to 512 channels, 256x256)" if name == vision.UNET else name.partition(":")[2]
        return (called, f"{row.values['settings'][GRAPH]:.0f}", *_times(row, name=False))

    found = _of(rows, "cnns")
    ordered = dict(sorted(found.items(), key=lambda item: -_over(item[1])))
    return _table(ordered, ("model", "ORT + CUDA graph", "ORT best", "fused", "over ORT best"), cells, "cnns")


def _of_others(part: str) -> Callable[[Rows], str]:
    """Return what shows models of other kinds, with torch.compile's times of a part of their own."""

    def shown(rows: Rows) -> str:
        found = _of(rows, part)
        compiled = _beside(rows, f"{part}_compiled", found)

        def cells(name: str, row: Row) -> Sequence[str]:
            model, _, size = name.partition(", ")
            best, fused, over = _times(row)
            return (model.partition(":")[2], size, best, _compiled(compiled, name), fused, over)

        head = ("model", "input", "ORT best", COMPILED, "fused", "over ORT best")
        table = _table(found, head, cells, part, f"{part}_compiled")
        return "\n\n".join(filter(None, [_medians(found, compiled), table]))

    return shown


def _precision(rows: Rows) -> str:
    def cells(name: str, row: Row) -> Sequence[str]:
        v = row.values
        (best,), (kept, nodes) = v["settings"].values(), v["kept"]
        slower = f"{100 * (v['fused'] / v['native'] - 1):+.1f}%"
        return (name, f"{best:.0f}", f"{v['native']:.0f}", f"**{v['fused']:.0f}**", slower, f"**{_over(row):.2f}x**",
                f"{kept} of {nodes}")  # fmt: skip

    head = ("float32 file", "ORT best", "native float16", "converted", "to native", "over ORT best", "nodes kept")
    return _table(_of(rows, "precision"), head, cells, "precision")


def _strict(rows: Rows) -> str:
    def cells(name: str, row: Row) -> Sequence[str]:
        before, after = row.values["original"], row.values["fused"]
        return (name, f"{before:.0f}", f"{after:.0f}", f"{before / after:.2f}x")

    head = ("float32, TF32 off on both sides", "ORT best", "fused", "over it")
    return _table(_of(rows, "strict"), head, cells, "strict")


def _start(rows: Rows) -> str:
    kinds = {ORIGINAL: "ONNX Runtime", PACKED: "with a kernel pack", EMPTY: "nothing on disk", CACHED: "caches on disk"}

    def cells(name: str, row: Row) -> Sequence[str]:
        return (name, *(f"{row.values[kind]:.2f}" for kind in kinds))

    return _table(_of(rows, "start"), ("model", *kinds.values()), cells, "start")


def _shapes(rows: Rows) -> str:
    """Return a line for each kind of stream, measured together."""
    kinds = {ORIGINAL: "ONNX Runtime", PACKED: PACKED, EMPTY: EMPTY, CACHED: CACHED}
    lines = {
        shown: Row(row.stamp, 0, row.values[kind])
        for row in _of(rows, "shapes").values()
        for kind, shown in kinds.items()
    }

    def cells(name: str, row: Row) -> Sequence[str]:
        v: Mapping[str, Any] = row.values
        extra = f": {v['compiled']} kernels compiled" if v["compiled"] else ""
        return (
            f"{name}{extra}", f"{v['median']:.2f}", _three(v["99%"]), _three(v["99.9%"]) if "99.9%" in v else "",
            f"{v['most']:.0f}", f"{v['sum']:,.0f}", f"{v['again']:,.0f}",
        )  # fmt: skip

    return _table(lines, ("", "median", "99%", "99.9%", "most", "sum", "second runs"), cells, "shapes")


def _three(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"


def _kernels(rows: Rows) -> str:
    """Return what the scripts that time kernels printed."""
    blocks = [
        f"```\n$ {row.values['command']}\n{row.values['text']}\n```\n\nMeasured {row.stamp.told}."
        for row in _of(rows, "kernels").values()
    ]
    return "\n\n".join(blocks) or _none("kernels")


TABLES: Mapping[str, Callable[[Rows], str]] = {
    "front": _front, "models": _models, "cnns": _cnns, "others": _of_others("others"), "floats": _of_others("floats"),
    "strict": _strict, "beside_compile": _beside_compile,
    "precision": _precision,
    "start": _start, "shapes": _shapes,
    "kernels": _kernels,
}  # fmt: skip


def of_rule(rows: Rows, rule: str) -> str | None:
    """Return the times of sample models with a rule and without it, None where none was measured."""
    found = {name: row for name, row in _of(rows, "rules").items() if rule in row.values["without"]}

    def cells(name: str, row: Row) -> Sequence[str]:
        fused, without = row.values["fused"], row.values["without"][rule]
        return (name, f"{fused:.0f}", f"{without:.0f}", f"{without / fused:.2f}x")

    return (
        _table(found, ("model, float16", "fused, us", "without this rule", "faster by it"), cells, "rules")
        if found
        else None
    )
