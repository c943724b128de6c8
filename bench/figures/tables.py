"""The tables of the pages, written from what was measured; rows of another commit or day than the rest are marked.

A table stands in its page between `<!-- figures: NAME -->` and `<!-- end of figures -->`.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.apart import CACHED, EMPTY, ORIGINAL, PACKED
from bench.figures.data import ROOT, Row, Rows, Stamp, newest
from bench.figures.parts import PARTS
from models import vision
from onnxfuse.support.errors import UsageError

PAGES = ("README.md", "docs/SPEED.md", "docs/FIRST_RUN.md", "docs/MEASURING.md", "models/PERFORMANCE.md")
BLOCK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
MARKS = "¹²³⁴⁵⁶⁷⁸⁹"
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


def faults(rows: Rows, pages: Sequence[str] = PAGES, root: Path = ROOT) -> list[str]:
    """Return the tables that are not what was measured, with the command that mends them."""
    found = []
    for page in pages:
        for block in BLOCK.finditer((root / page).read_text(encoding="utf-8")):
            if block[0] != block[1] + _block(block[2], rows) + block[3]:
                found.append(f"{page}: {block[2]} is not what docs/figures.json has: python -m bench.figures write")
    return found


def older(rows: Rows) -> Iterator[str]:
    """Yield what is of another commit than the newest rows."""
    last = newest(rows)
    for part, found in rows.items():
        names = [name for name, row in found.items() if last is not None and row.stamp.commit != last.commit]
        if names:
            yield f"{part}: of an older commit: {'; '.join(names)}"


def _block(name: str, rows: Rows) -> str:
    if name not in TABLES:
        raise UsageError(f"figures: {name}: there is no such table", f"There are: {', '.join(TABLES)}.")
    return f"\n{TABLES[name](rows)}\n\n"


def _key(stamp: Stamp) -> tuple[str, ...]:
    return (stamp.commit, stamp.measured[:10], stamp.card, stamp.driver, stamp.onnxruntime)


def _table(
    rows: Rows,
    found: Mapping[str, Row],
    head: Sequence[str],
    cells: Callable[[str, Row], Sequence[str]],
    beside: Mapping[str, Mapping[str, Row]] | None = None,
) -> str:
    """Return a table, and under it when, where and at which commit its rows were measured.

    `beside` has the rows that are one column of the table, by its head: they were measured by themselves.
    """
    if not found:
        return "Not measured yet: `make figures`."
    columns = {head.index(column): others for column, others in (beside or {}).items()}
    all_of = [*found.values(), *(others[name] for others in columns.values() for name in found if name in others)]
    groups = sorted({_key(row.stamp): row.stamp for row in all_of}.values(), key=lambda s: s.measured)[::-1]
    marks = {_key(stamp): MARKS[i - 1] if i else "" for i, stamp in enumerate(groups)}
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row in found.items():
        line = list(cells(name, row))
        line[0] += marks[_key(row.stamp)]
        for column, others in columns.items():
            if name in others and _key(others[name].stamp) != _key(row.stamp):
                line[column] += marks[_key(others[name].stamp)]
        lines.append(f"| {' | '.join(line)} |")
    last = newest(rows)
    notes = dict.fromkeys(row.values["note"] for row in found.values() if "note" in row.values)
    told = [f"Measured {groups[0].told}."]
    told += [f"{marks[_key(stamp)]} {stamp.told}; not measured again since." for stamp in groups[1:]]
    told += [f"{note}." for note in notes]
    if last is not None and groups[0].commit != last.commit:
        told.append(f"The newest figures of these pages are of commit {last.commit}.")
    return "\n".join([*lines, "", "  \n".join(told)])


def _of(rows: Rows, part: str, names: Sequence[str] = ()) -> dict[str, Row]:
    """Return the rows of a part in its own order, or those named."""
    return {name: rows[part][name] for name in names or PARTS[part].rows if name in rows.get(part, {})}


def _best(row: Row) -> tuple[str, float]:
    settings: Mapping[str, float] = row.values["settings"]
    name = min(settings, key=lambda one: settings[one])
    return name, settings[name]


def _over(row: Row) -> float:
    """Return how many times as fast the fused model is; of rows that were kept rounded, as it was published then."""
    return float(row.values.get("over") or _best(row)[1] / row.values["fused"])


def _times(row: Row, *, name: bool = True) -> tuple[str, str, str]:
    """Return ONNX Runtime's best, fused, and how many times as fast that is."""
    setting, best = _best(row)
    shown = f" ({setting})" if name and setting != GRAPH else ""
    return f"{best:.0f}{shown}", f"**{row.values['fused']:.0f}**", f"**{_over(row):.2f}x**"


def _compiled(rows: Rows, name: str, part: str = "compiled") -> str:
    row = rows.get(part, {}).get(name)
    return f"{min(row.values.values()):.0f}" if row is not None else ""


COMPILED = "torch.compile"


def _front(rows: Rows) -> str:
    def cells(name: str, row: Row) -> Sequence[str]:
        model, _, size = name.partition(" float16, ")
        best, fused, over = _times(row, name=False)
        return (model, size, best, _compiled(rows, name), fused, over)

    head = ("model", "input", "ORT best", COMPILED, "fused", "over ORT best")
    return _table(rows, _of(rows, "models", FRONT), head, cells, {COMPILED: _of(rows, "compiled", FRONT)})


def _models(rows: Rows) -> str:
    def cells(name: str, row: Row) -> Sequence[str]:
        model, _, size = name.partition(", ")
        launches = [("?" if n is None else str(n)) for n in row.values["launches"]]
        graph = "" if GRAPH not in row.values["settings"] else f"{row.values['settings'][GRAPH]:.0f}"
        best, fused, over = _times(row)
        return (model, size, graph, best, _compiled(rows, name), fused, over, " -> ".join(launches))

    head = ("model", "input", "ORT + CUDA graph", "ORT best", COMPILED, "fused", "over ORT best", "launches")
    return _table(rows, _of(rows, "models"), head, cells, {COMPILED: _of(rows, "compiled")})


def _cnns(rows: Rows) -> str:
    def cells(name: str, row: Row) -> Sequence[str]:
        called = "U-Net (32 to 512 channels, 256x256)" if name == vision.UNET else name.partition(":")[2]
        return (called, f"{row.values['settings'][GRAPH]:.0f}", *_times(row, name=False))

    found = _of(rows, "cnns")
    ordered = dict(sorted(found.items(), key=lambda item: -_over(item[1])))
    return _table(rows, ordered, ("model", "ORT + CUDA graph", "ORT best", "fused", "over ORT best"), cells)


def _of_others(part: str) -> Callable[[Rows], str]:
    """Return what shows models of other kinds, with torch.compile's times of a part of their own."""
    compiled = f"{part}_compiled"

    def shown(rows: Rows) -> str:
        def cells(name: str, row: Row) -> Sequence[str]:
            model, _, size = name.partition(", ")
            best, fused, over = _times(row)
            return (model.partition(":")[2], size, best, _compiled(rows, name, compiled), fused, over)

        head = ("model", "input", "ORT best", COMPILED, "fused", "over ORT best")
        return _table(rows, _of(rows, part), head, cells, {COMPILED: _of(rows, compiled)})

    return shown


def _precision(rows: Rows) -> str:
    def cells(name: str, row: Row) -> Sequence[str]:
        v = row.values
        (best,), (kept, nodes) = v["settings"].values(), v["kept"]
        slower = f"{100 * (v['fused'] / v['native'] - 1):+.1f}%"
        return (name, f"{best:.0f}", f"{v['native']:.0f}", f"**{v['fused']:.0f}**", slower, f"**{_over(row):.2f}x**",
                f"{kept} of {nodes}")  # fmt: skip

    head = ("float32 file", "ORT best", "native float16", "converted", "to native", "over ORT best", "nodes kept")
    return _table(rows, _of(rows, "precision"), head, cells)


def _strict(rows: Rows) -> str:
    def cells(name: str, row: Row) -> Sequence[str]:
        before, after = row.values["original"], row.values["fused"]
        return (name, f"{before:.0f}", f"{after:.0f}", f"{before / after:.2f}x")

    return _table(rows, _of(rows, "strict"), ("float32, TF32 off on both sides", "ORT best", "fused", "over it"), cells)


def _start(rows: Rows) -> str:
    kinds = {ORIGINAL: "ONNX Runtime", PACKED: "with a kernel pack", EMPTY: "nothing on disk", CACHED: "caches on disk"}

    def cells(name: str, row: Row) -> Sequence[str]:
        return (name, *(f"{row.values[kind]:.2f}" for kind in kinds))

    return _table(rows, _of(rows, "start"), ("model", *kinds.values()), cells)


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

    return _table(rows, lines, ("", "median", "99%", "99.9%", "most", "sum", "second runs"), cells)


def _three(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"


def _printed(part: str, names: Sequence[str] = ()) -> Callable[[Rows], str]:
    """Return what shows the outputs of a part's commands, as they were printed."""

    def shown(rows: Rows) -> str:
        last = newest(rows)
        blocks = []
        for row in _of(rows, part, names).values():
            old = last is not None and row.stamp.commit != last.commit
            also = f" The newest figures of these pages are of commit {last.commit}." if last and old else ""
            blocks.append(
                f"```\n$ {row.values['command']}\n{row.values['text']}\n```\n\nMeasured {row.stamp.told}.{also}"
            )
        return "\n\n".join(blocks) or "Not measured yet: `make figures`."

    return shown


TABLES: Mapping[str, Callable[[Rows], str]] = {
    "front": _front, "models": _models, "cnns": _cnns, "others": _of_others("others"), "floats": _of_others("floats"),
    "strict": _strict,
    "precision": _precision,
    "start": _start, "shapes": _shapes,
    "profile": _printed("outputs", ["profile"]), "bench": _printed("outputs", ["bench"]),
    "tune": _printed("outputs", ["tune"]), "kernels": _printed("kernels"),
}  # fmt: skip


def of_rule(rows: Rows, rule: str) -> str | None:
    """Return the times of sample models with a rule and without it, None where none was measured."""
    found = {name: row for name, row in _of(rows, "rules").items() if rule in row.values["without"]}

    def cells(name: str, row: Row) -> Sequence[str]:
        fused, without = row.values["fused"], row.values["without"][rule]
        return (name, f"{fused:.0f}", f"{without:.0f}", f"{without / fused:.2f}x")

    return (
        _table(rows, found, ("model, float16", "fused, us", "without this rule", "faster by it"), cells)
        if found
        else None
    )
