"""Write what the survey found, as Markdown."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from models.survey.racing import ENOUGH

WHERE = re.compile(r"\S*/onnxfuse-survey-\w+/(\S+/)?")
"""The folder of a worker, and the export's own in it, which say nothing of the model there."""

WRITTEN = (
    "Written by `python -m models.survey --report models/SURVEY.md`. How the ways to export are chosen: "
    "[Sample models](README.md)."
)

Row = Mapping[str, Any]


def written(rows: Sequence[Row]) -> str:
    """Return the page: what was surveyed, what failed, what ONNX Runtime refuses, what is slower, family by family.

    Each run of a stage has a section, which says its command, date, commit and cards.
    """
    parts = ["# The survey of exports", "", WRITTEN, ""]
    runs = dict.fromkeys((r["stage"], r.get("run", "")) for r in rows)
    for stage, run in sorted(runs, key=lambda one: one[0]):
        parts += _stage(stage, run, [r for r in rows if (r["stage"], r.get("run", "")) == (stage, run)])
    return "\n".join(parts) + "\n"


DEFAULTS = ", as exporters write them by default"


def _stage(stage: str, run: str, rows: Sequence[Row]) -> list[str]:
    counts = Counter(r["verdict"] for r in rows)
    ran = [r for r in rows if r["verdict"] not in ("no export", "refused")]
    timed = [r for r in ran if "over" in r]
    alone = [r | r["alone"] | {"way": f"{r['way']}, batch 1"} for r in timed if "alone" in r]
    slower = sorted(_slower([*timed, *alone]), key=lambda r: r["over"])
    subjects = {r["subject"] for r in rows}
    plain = all(r["way"].split()[1] == "default" for r in rows)  # the opset, which users choose last
    parts = [f"## Stage {stage}{DEFAULTS * plain}", "", *([f"{run}.", ""] if run else [])]
    parts += [f"{len(rows)} exports of {len(subjects)} models: "
              + ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common()) + ".", ""]  # fmt: skip
    if timed:
        mean = geometric_mean([r["over"] for r in timed])
        parts += [f"{len(timed)} were timed: {mean:.2f}x ONNX Runtime's best in the geometric mean, "
                  f"{len(_slower(timed))} slower than it.", ""]  # fmt: skip
    if alone:
        parts += [f"{len(alone)} of them at batch 1, too: {geometric_mean([r['over'] for r in alone]):.2f}x, "
                  f"{len(_slower(alone))} slower.", ""]  # fmt: skip
    against = [min(r["compiled_us"].values()) / r["fused_us"] for r in timed if r.get("compiled_us")]
    if against:
        behind = sum(o < ENOUGH for o in against)
        parts += [f"{len(against)} of them were timed under torch.compile, too (reduce-overhead, the better layout): "
                  f"{geometric_mean(against):.2f}x it in the geometric mean, {behind} slower than it.", ""]  # fmt: skip
    if stage == "cpu":
        parts += [f"{sum(r.get('compiled', 0) for r in rows)} kernels were compiled; planned they are for each of the "
                  "architectures, whether they were compiled or not.", ""]  # fmt: skip
    parts += _table("who exports", ["source", "exporter, opset, type", "exported", "right"], _exporters(rows))
    failed = [r for r in rows if r["verdict"] == "failed"]
    parts += _grouped("failed", failed)
    parts += _table("slower", ["model", "export", "ONNX Runtime's best, us", "fused, us", "over best"], [
        [r["subject"], r["way"], f"{r['best_us']} ({r['best']})", str(r["fused_us"]), f"{r['over']:.2f}x"]
        for r in slower])  # fmt: skip
    parts += _grouped("refused by ONNX Runtime itself", [r for r in rows if r["verdict"] == "refused"])
    parts += _grouped("not exported", [r for r in rows if r["verdict"] == "no export"])
    return parts + _table("families", ["family", "exports", "right", "fused ops", "over best"], _families(rows))


def _slower(timed: Sequence[Row]) -> list[Row]:
    return [r for r in timed if r["over"] < ENOUGH]


def _exporters(rows: Sequence[Row]) -> list[list[str]]:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        exporter, opset, dtype, _, *weights = row["way"].split()  # whether dimensions are open is of no matter here
        groups.setdefault((row["subject"].partition(":")[0], " ".join((exporter, opset, dtype, *weights))), []).append(
            row
        )
    return [
        [source, way, f"{sum(r['verdict'] != 'no export' for r in found)} of {len(found)}",
         str(sum(r["verdict"] == "right" for r in found))]
        for (source, way), found in sorted(groups.items())
    ]  # fmt: skip


def _grouped(title: str, rows: Sequence[Row]) -> list[str]:
    """Return one line for each step and message, with how often and where first."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["step"], kind(row["error"])), []).append(row)
    ordered = sorted(groups.items(), key=lambda item: -len(item[1]))
    return _table(title, ["exports", "step", "first", "message"], [
        [str(len(found)), step, f"{found[0]['subject']}, {found[0]['way']}", WHERE.sub("", found[0]["error"])[:200]]
        for (step, _), found in ordered])  # fmt: skip


def kind(error: str) -> str:
    """Return what messages of one cause have in common: their words without names and numbers."""
    words = [w for w in error.split() if w.isalpha()]
    return " ".join(words[:8])


def _families(rows: Sequence[Row]) -> list[list[str]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["family"], []).append(row)
    lines = []
    for family, found in sorted(groups.items()):
        exported = [r for r in found if r["verdict"] != "no export"]
        over = [r["over"] for r in found if "over" in r]
        fused = [r["fused"] for r in found if "fused" in r]
        speed = f"{min(over):.2f}x-{max(over):.2f}x" if over else ""
        ops = f"{min(fused)}-{max(fused)}" if fused else ""
        lines.append([family, str(len(exported)), str(sum(r["verdict"] == "right" for r in found)), ops, speed])
    return lines


def _table(title: str, columns: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    if not lines:
        return []
    rows = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in line) for line in lines]
    return [f"### {title[0].upper()}{title[1:]}", "", f"| {' | '.join(columns)} |", "|" + "---|" * len(columns),
            *(f"| {row} |" for row in rows), ""]  # fmt: skip
