"""Markdown for a step summary or a pull request: the verdict, then the checks."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnxfuse.reporting.checks import KEPT, checks, judged_by_parts, notes, precision_rows, word, worst_case
from onnxfuse.reporting.profiled import TIME_TITLES, time_rows, traffic_rows
from onnxfuse.support.plurals import plural
from onnxfuse.support.printable import controls_written_out

ROWS = 200
"""Maximum rows of a table. GitHub accepts 1 MiB for a step summary; a row stays below 1 kB."""
CELL = 300
"""Maximum characters of a cell."""


def markdown(command: str, facts: Mapping[str, Any]) -> str:
    """Return the report of a command as Markdown, below 1 MiB."""
    results = checks(command, facts)
    ok = bool(facts.get("ok", True))
    title = f"onnxfuse {command}: {word(facts)}"
    lines = [f"## {'✅' if ok else '❌'} {title}", ""]
    if facts.get("summary"):
        lines += [_cell(str(facts["summary"])), ""]
    lines += [line for note in notes(command, facts) for line in (_cell(note), "")]
    broken = [
        (c.group, c.name, c.text, "; ".join(c.next_steps if c.name == "error" else c.why)) for c in results if not c.ok
    ]
    if broken:
        lines += ["### What failed", "", *_table(("where", "what", "found", "why"), broken), ""]
    skipped = [(c.group, c.name, c.text) for c in results if c.skipped]
    if skipped:
        lines += ["### Not checked", "", *_table(("where", "what", "why"), skipped), ""]
    for step in dict.fromkeys(step for c in results for step in c.next_steps):
        text, _, call = step.partition(": onnxfuse ")
        shown = f"{_cell(text)}: `onnxfuse {controls_written_out(call)}`" if call else _cell(step)
        lines += [shown[:1].upper() + shown[1:], ""]
    for command_line in dict.fromkeys(c.accept for c in results if c.accept):
        lines += [f"If this is intended, accept it: `{controls_written_out(command_line)}`", ""]
    for heading, columns, rows in _sections(command, facts):
        if rows:
            lines += [f"### {_cell(heading)}", "", *_table(columns, rows), ""]
    return "\n".join(lines) + "\n"


_Section = tuple[str, tuple[str, ...], list[tuple[object, ...]]]


def _sections(command: str, facts: Mapping[str, Any], prefix: str = "") -> Iterator[_Section]:
    if "error" in facts:
        return
    if command == "optimize":
        if "undone" in facts:
            yield from _undone(facts, prefix)
            return
        yield f"{prefix}Rules", ("rule", "applied"), list(facts["rules"].items())
        nodes = facts["nodes"]
        counts: list[tuple[object, ...]] = [(nodes["before"], nodes["after"], facts["fused_nodes"])]
        yield f"{prefix}Nodes", ("before", "after", "fused ops"), counts
        if "precision" in facts:
            summary, pinned = precision_rows(facts["precision"])
            yield f"{prefix}Lower precision", ("",), [(line,) for line in summary]
            yield f"{prefix}Not converted", KEPT, list(pinned)
        reverted = (facts.get("guard") or {}).get("undone", [])
        reverted_rows: list[tuple[object, ...]] = [
            (u["rule"], u["node"], u["op"] or "left out", u["fault"]) for u in reverted
        ]
        yield f"{prefix}Taken back by --guard", ("rule", "at", "fused op", "what was wrong"), reverted_rows
    elif command == "verify":
        rows = [_output_row(facts, row) for row in facts["outputs"]]
        titles = ("output", "type", "error", "allowed", "values to", "max abs", "max rel", "worst case", "verdict")
        yield f"{prefix}Errors", titles, rows
    elif command == "bench":
        timed: list[tuple[object, ...]] = [
            (" ".join(f"{k}={v}" for k, v in b["dimensions"].items()) or "fixed", r["model"], r["setting"],
             f"{r['p50']:.1f}", f"{r['low']:.1f}..{r['high']:.1f}" if "low" in r else "", f"{r['p90']:.1f}",
             b["verdict"] if r["model"] == "fused" and r["setting"] == b.get("fused_setting", r["setting"]) else "")
            for b in facts["blocks"] for r in b["rows"]
        ]  # fmt: skip
        yield f"{prefix}Times", ("shapes", "model", "setting", "p50 us", "95% of it", "p90 us", "speed-up"), timed
    elif command == "profile":
        yield f"{prefix}Device memory", *traffic_rows(facts)
        for side in ("before", "after"):
            if facts[side] is not None:
                yield f"{prefix}Times {side}", TIME_TITLES, time_rows(facts[side])
    elif command == "ci":
        yield (
            f"{prefix}Models",
            ("model", "nodes", "fused ops", "verify", "speed-up", "result"),
            [_model_row(model) for model in facts["models"]],
        )
        for model in facts["models"]:
            changed: list[tuple[object, ...]] = [("regressed", line) for line in model.get("regressed", [])]
            changed += [("changed", line) for line in model.get("changed", [])]
            yield f"{model['name']}: against {facts['lock']}", ("", "difference"), changed
            for key in ("optimize", "verify", "bench"):
                if model.get(key):
                    yield from _sections(key, model[key], f"{model['name']}: ")
        yield f"Changed since {facts['lock']}", ("",), [(line,) for line in facts["changed"]]


def _undone(facts: Mapping[str, Any], prefix: str) -> Iterator[_Section]:
    """Yield what `--undo` expanded, and the operators with other counts than in the original."""
    nodes, operators = facts["nodes"], facts["back"]["operators"]
    counts: list[tuple[object, ...]] = [(nodes["before"], nodes["after"], facts["undone"])]
    yield f"{prefix}Nodes", ("before", "after", "fused ops undone"), counts
    changed: list[tuple[object, ...]] = [(op, n["original"], n["after"]) for op, n in operators.items()]
    yield f"{prefix}Operators", ("operator", "original", "now"), changed


def _output_row(facts: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[object, ...]:
    """Return an output of `verify`; the error of one that is judged by the model's parts is not compared."""
    judged, verdict = (_number(row["error"]), _number(row["budget"])), row["verdict"]
    if judged_by_parts(row):
        judged, verdict = ("-", "by parts"), f"{verdict}{' by parts' * (verdict == 'ok')}"
    distances = (_number(row.get(key, "")) for key in ("scale", "max_abs", "max_rel"))
    return (row["output"], row["dtype"], *judged, *distances, worst_case(facts, row), verdict)


def _model_row(model: Mapping[str, Any]) -> tuple[object, ...]:
    optimized, verified, benched = (model.get(key) or {} for key in ("optimize", "verify", "bench"))
    nodes = optimized.get("nodes")
    blocks: list[dict[str, Any]] = benched.get("blocks", [])
    slowest: dict[str, Any] = min(blocks, key=lambda block: float(block["speedup"]), default={})
    return (
        model["name"],
        f"{nodes['before']} -> {nodes['after']}" if nodes else "",
        optimized.get("fused_nodes", ""),
        verified.get("verdict", "not run") + (f" ({verified['ran_as']})" if verified.get("ran_as") else ""),
        slowest.get("verdict", "not run"),
        "ok" if model["ok"] else "failed",
    )


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Iterator[str]:
    yield f"| {' | '.join(columns)} |"
    yield f"|{'|'.join('---' for _ in columns)}|"
    for row in rows[:ROWS]:
        yield f"| {' | '.join(_cell(str(cell)) for cell in row)} |"
    if len(rows) > ROWS:
        yield f"\n... and {plural(len(rows) - ROWS, 'more row')}: --json has all"


def _cell(text: str) -> str:
    """Escape `text` for a table cell: one line, without Markdown or HTML syntax."""
    text = controls_written_out(" ".join(text.split()))
    text = text if len(text) <= CELL else f"{text[: CELL - 3]}..."
    return re.sub(r"([\\`*_{}\[\]<>|#~$])", r"\\\1", text)


def _number(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2g}"
