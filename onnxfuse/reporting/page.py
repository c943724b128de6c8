"""Self-contained HTML page: verdict, graphs before and after, fusions, errors, times, environment. No network
access."""

import hashlib
import json
import math
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import Any

from onnxfuse.reporting.charts import Bar, Spot, bars, histogram, roofline
from onnxfuse.reporting.checks import KEPT, checks, judged_by_parts, notes, precision_rows, word
from onnxfuse.reporting.graph_html import graph_html
from onnxfuse.reporting.profiled import parts as profiled_parts
from onnxfuse.reporting.tables import number, table
from onnxfuse.support.plurals import agreeing, fused_ops_text, plural
from onnxfuse.support.printable import controls_written_out

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class _PageSection:
    """One section of the page."""

    name: str
    html: str


def page(
    command: str, facts: Facts, graphs: Mapping[str, Mapping[str, Any]], command_line: str, environment: Facts
) -> str:
    """Return the page for a command's facts.

    `graphs`: for each model (for commands on one model: under "") the graphs `before` and `after`, from `graph_of`. The
    page of `view` is served, and requests further data from the server: see `served` in page.js.
    """
    ok = bool(facts.get("ok", True))
    view = command == "view"
    models: Sequence[Facts] = facts["models"] if command == "ci" else [{"name": "", command: facts}]
    drawings: dict[str, Any] = {"graphs": {}, "near": {}}
    if view:
        models = [{"name": "", "optimize": facts}]
        drawings["served"] = facts["served"]
    parts = [] if view else [_PageSection("Verdict", _verdict(command, facts))]
    for model in models:
        title = f"{model['name']}: " if model["name"] else ""
        parts += [
            _PageSection(f"{title}{p.name}", p.html)
            for p in _model_parts(model, graphs.get(model["name"], {}), drawings)
        ]
    parts.append(_PageSection("Environment", _environment(command_line, facts, environment)))
    links = "".join(f'<a href="#s{i}">{escape(p.name)}</a>' for i, p in enumerate(parts))
    body = "".join(f'<section id="s{i}"><h2>{escape(p.name)}</h2>{p.html}</section>' for i, p in enumerate(parts))
    links, body = controls_written_out(links), controls_written_out(body)
    title = controls_written_out(f"{facts['name']}: onnxfuse view" if view else f"onnxfuse {command}: {word(facts)}")
    headline = controls_written_out(facts["summary"]) if view else title
    data = json.dumps(_shown(drawings), separators=(",", ":")).replace("<", "\\u003c")
    icon = '<link rel="icon" href="data:,">' if view else ""  # browsers would request one from a server
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">{icon}'
        f"<style>{_style()}</style></head>"
        f'<body class="{command}"><header class="{"good" if ok else "bad"}"><h1>{escape(headline)}</h1>'
        f"<nav>{links}</nav></header>"
        f'<main>{body}</main><script type="application/json" id="graphs">{data}</script>'
        f"<script>{_script()}</script></body></html>\n"
    )


def policy() -> str:
    """Return the content security policy: run the page's own script, and contact only the server that it came from."""
    script, style = (b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in (_script(), _style()))
    return (
        f"default-src 'none'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def _script() -> str:
    return '"use strict";\n' + _asset("graph.js") + _asset("page.js")


def _style() -> str:
    return _asset("page.css") + _asset("graph.css")


def _shown(data: Any) -> Any:
    """Return plain data with text that a page would interpret escaped."""
    if isinstance(data, str):
        return controls_written_out(data)
    if isinstance(data, Mapping):
        return {_shown(key): _shown(value) for key, value in data.items()}
    return [_shown(value) for value in data] if isinstance(data, list | tuple) else data


def _asset(name: str) -> str:
    return (resources.files("onnxfuse.reporting") / name).read_text(encoding="utf-8")


def _verdict(command: str, facts: Facts) -> str:
    results = checks(command, facts)
    broken = [c for c in results if not c.ok]
    summary = facts.get("summary") or _summary(command, facts)
    rows = [
        ("✗" if not c.ok else "–" if c.skipped else "✓", c.group, c.name, "\n".join(c.found))
        for c in (*broken, *(c for c in results if c.ok))
    ]
    judged, skipped = [c for c in results if not c.skipped], sum(c.skipped for c in results)
    passed = f"{len(judged) - len(broken)} of {plural(judged, 'check')} passed" if results else ""
    passed += f", {skipped} not run" if skipped else ""
    lines = facts.get("notes", ()) if command == "optimize" else notes("verify", facts) if command == "verify" else ()
    note_html = "".join(f"<p>note: {escape(note)}</p>" for note in lines)
    found = table(("", "where", "what", "found"), rows)
    return f'<p class="summary">{escape(str(summary))}</p>{note_html}<p>{passed}</p><div class="checks">{found}</div>'


def _summary(command: str, facts: Facts) -> str:
    if command == "optimize" and "nodes" in facts:
        nodes, fused = facts["nodes"], fused_ops_text(facts["fused_nodes"], facts["distinct_kernels"])
        return f"{plural(nodes['before'], 'node')} → {nodes['after']}, including {fused}"
    return ""


def _model_parts(model: Facts, graphs: Mapping[str, Any], drawings: dict[str, Any]) -> Iterator[_PageSection]:
    index = len(drawings["graphs"])
    localization = (model.get("verify") or {}).get("bisection")
    if localization:
        yield _PageSection(
            "At fault" if localization["fault"] else "Bisect", _at_fault(localization, index if graphs else None)
        )
    optimized = model.get("optimize") or {}
    if optimized.get("precision"):
        summary, pinned = precision_rows(optimized["precision"])
        lines = "".join(f"<p>{escape(line)}</p>" for line in summary)
        yield _PageSection("Lower precision", lines + table(KEPT, pinned))
    reverted = (optimized.get("guard") or {}).get("undone")
    if reverted:
        yield _PageSection("Taken back by --guard", _taken_back(reverted))
    if graphs:
        drawings["graphs"][str(index)] = graphs
        drawings["near"][str(index)] = [
            {key: n[key] for key in ("rule", "root", "node", "reason", "hint")} for n in optimized.get("near", [])
        ]
        yield _PageSection("Graph", graph_html(index, graphs))
    if graphs or model.get("optimize"):
        yield _PageSection("Rules applied", _applied(optimized, graphs))
    if misses := _near(optimized.get("near", [])):
        yield _PageSection("Nearly fused", misses)
    if model.get("regressed") or model.get("changed"):
        changes = [("regressed", line) for line in model["regressed"]]
        changes += [("changed", line) for line in model["changed"]]
        yield _PageSection("Against the lock", table(("", "difference"), changes))
    if model.get("verify"):
        yield _PageSection("Errors", _errors(model["verify"]))
    if model.get("bench"):
        yield _PageSection("Times", _times(model["bench"]))
    for name, html in profiled_parts(model["profile"]) if model.get("profile") else ():
        yield _PageSection(name, html)


def _at_fault(localization: Facts, graph: int | None) -> str:
    """Return the result of `--bisect`; a button shows the location in the graph with this index."""
    guilty = localization["guilty"]
    rows = [("made of", ", ".join(guilty["nodes"]))] if guilty else []
    rows += [("in the original", ", ".join(localization["replaced"])), ("because", localization["why"])]
    rows = [(title, text) for title, text in rows if text]
    if localization["folder"]:
        folder = localization["folder"]
        call = f"onnxfuse verify {folder}/original.onnx {folder}/model.onnx --inputs {folder}/test_data_set_0"
        rows.append(("shown by", call))
    value = guilty["output"] if guilty else localization["output"]
    button = f'<button data-show="{graph}" data-value="{escape(value)}">show it in the graph</button>'
    button_html = button if graph is not None and localization["fault"] else ""
    return f'<p class="summary">{escape(localization["text"])}</p>{table(("", ""), rows)}{button_html}'


def _taken_back(reverted: Sequence[Facts]) -> str:
    rows = [
        (u["rule"], f"{u['op']} ({u['node']})" if u["op"] else "left out", u["fault"], ", ".join(u["nodes"]))
        for u in reverted
    ]
    return table(("rule", "fused op", "what was wrong", "in the original"), rows)


def _applied(optimized: Facts, graphs: Mapping[str, Any]) -> str:
    after = graphs.get("after", {}).get("nodes", [])
    fused: dict[str, int] = {}
    replaced: dict[str, int] = {}
    for node in after:
        if "rule" in node:
            fused[node["rule"]] = fused.get(node["rule"], 0) + 1
            replaced[node["rule"]] = replaced.get(node["rule"], 0) + len(node["nodes"])
    counts = dict(optimized.get("rules") or fused)
    if "undone" in optimized:
        return f"<p>{plural(optimized['undone'], 'fused op')} undone; {escape(optimized['back']['summary'])}.</p>"
    if not counts:
        return "<p>No rule applied.</p>"
    chart = bars([Bar(rule, n, str(n), "good") for rule, n in sorted(counts.items(), key=lambda item: -item[1])])
    kinds: dict[tuple[str, str], int] = {}
    for node in after:
        if "rule" in node:
            key = (node["rule"], " + ".join(node["body"]))
            kinds[key] = kinds.get(key, 0) + 1
    rows = [(n, rule, body) for (rule, body), n in sorted(kinds.items(), key=lambda item: -item[1])]
    kinds_table = table(("ops", "rule", "what is in one kernel"), rows, attribute="data-rule", key=1)
    texts = ", ".join(f"{rule}: {plural(replaced[rule], 'node')} in {plural(n, 'op')}" for rule, n in fused.items())
    return f"{chart}<p>{escape(texts)}</p>{kinds_table}"


def _near(misses: Sequence[Facts]) -> str:
    """Return the near misses that no other rule took, grouped if equal, with their counts."""
    kinds: dict[tuple[str, str, str], list[Facts]] = {}
    for one in misses:
        if not one["fused_otherwise"] and one["telling"]:
            words = re.sub(r"'[^']*'|; \S+:", lambda m: "a value" if "'" in m[0] else ";", one["reason"])
            kinds.setdefault((one["rule"], one["root"].split()[0], words), []).append(one)
    rows = [(len(ns), ns[0]["rule"], ns[0]["node"], ns[0]["reason"], ns[0]["hint"]) for ns in kinds.values()]
    return table(("places", "rule", "first stopped at", "because it", "what would help"), rows)


def _errors(verified: Facts) -> str:
    outputs = verified["outputs"]
    budgeted = [row for row in outputs if not judged_by_parts(row)]
    shares = [_share(row) for row in budgeted]
    chart = bars(
        [
            Bar(
                row["output"],
                share,
                f"{_times_over(share)} the error allowed",
                "good" if row["verdict"] == "ok" else "bad",
            )
            for row, share in zip(budgeted, shares, strict=True)
        ],
        limit=1.0,
    )
    keys = [k for k in ("error", "budget", "own", "max_abs", "max_rel", "cosine") if all(k in r for r in outputs)]
    rows = [
        (r["output"], r["dtype"], *(_figure(r, k) for k in keys), r["verdict"], r.get("fault", "")) for r in outputs
    ]
    titles = {"budget": "allowed", "own": "original's", "max_abs": "max abs", "max_rel": "max rel"}
    table_html = table(("output", "type", *(titles.get(k, k) for k in keys), "verdict", "fault"), rows)
    return f"{chart if budgeted else ''}{table_html}{''.join(_histograms(outputs))}<p>{escape(_truth(verified))}</p>"


def _figure(row: Facts, key: str) -> str:
    """Return a figure of an output; the error of one that is judged by the model's parts decides nothing."""
    unused = {"error": "-", "budget": "by parts", "own": "-"} if judged_by_parts(row) else {}
    return unused.get(key) or number(row[key], 7 if key == "cosine" else 3)


def _times_over(share: float) -> str:
    return f"{share:.0%} of" if share < 10 else f"{share:.0f} times"


def _histograms(outputs: Iterable[Facts]) -> Iterator[str]:
    for row in outputs:
        counts = (row.get("difference") or {}).get("ulps") or {}
        if counts:
            yield f"<h3>{escape(row['output'])}: elements by distance to the original, in rounding steps</h3>"
            yield histogram([(label, int(n)) for label, n in counts.items()])


def _truth(verified: Facts) -> str:
    truth = verified["truth"]
    cases = sum(not c["note"] for c in verified["cases"])
    ops = verified.get("kernels") or []
    every = sum(op["nodes"] for op in ops)
    ran = sum(op["nodes"] for op in ops if op["runs_as"] == "kernel")
    kernels = (
        f"; {ran} of {fused_ops_text(every, len(ops))} ran as {agreeing(ran, 'a kernel', 'kernels', of=every)}"
        if ops
        else ""
    )
    rounded = "; float32 products may be rounded to TF32" if verified.get("tf32") else ""
    return (
        f"{plural(cases, 'case')} on {verified['provider']}; error against {truth['kind']} "
        f"({truth['how']}){kernels}{rounded}"
    )


def _share(row: Facts) -> float:
    """Return the used share of an output's error budget; infinite if the budget is zero."""
    error, budget = float(row["error"]), float(row["budget"])
    if not math.isfinite(error):
        return math.inf
    return error / budget if budget else (0.0 if error == 0 else math.inf)


def _times(benched: Facts) -> str:
    parts = []
    for block in benched["blocks"]:
        name = " ".join(f"{k}={v}" for k, v in block["dimensions"].items()) or "fixed shapes"
        parts.append(f"<h3>{escape(name)}: {escape(block['verdict'])}</h3>")
        parts.append(
            bars([
                Bar(f"{r['model']}: {r['setting']}", r["p50"], f"{r['p50']:.1f} us (p99 {r['p99']:.1f})",
                    "good" if r["model"] == "fused" else "")
                for r in block["rows"]
            ])
        )  # fmt: skip
    ceilings = benched.get("ceilings")
    spots = list(_spots(benched)) if ceilings else []
    if ceilings and ceilings["flops_per_second"] and spots:
        parts.append("<h3>Roofline</h3>")
        parts.append(roofline(spots, ceilings["bytes_per_second"], ceilings["flops_per_second"]))
    return "".join(parts)


def _spots(benched: Facts) -> Iterator[Spot]:
    """Yield a point per block and model from `traffic`: the bytes and FLOPs of one run, counted from the graph."""
    for block in benched["blocks"]:
        name = " ".join(f"{k}={v}" for k, v in block["dimensions"].items())
        for model, traffic in (block.get("work") or {}).items():
            best = min(r["p50"] for r in block["rows"] if r["model"] == model)
            if traffic["bytes"] and traffic["flops"]:
                kind = "good" if model == "fused" else ""
                rate = traffic["flops"] / best * 1e6
                yield Spot(f"{model} {name}".strip(), traffic["flops"] / traffic["bytes"], rate, kind)


def _environment(command_line: str, facts: Facts, environment: Facts) -> str:
    versions = {**environment, **(facts.get("environment") or {})}
    prompt = "" if command_line.startswith("onnxfuse.") else "$ "
    return f"<pre>{prompt}{escape(command_line)}</pre>" + table(("", ""), list(versions.items()))
