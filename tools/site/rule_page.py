"""The page of a rule, made of its file: what it does, what becomes of its examples, what it refuses, its history."""

import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

import onnx

from bench.figures import data, tables
from onnxfuse import cuda
from onnxfuse.authoring import rules as library
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language.rule_file import Example, Rule, shipped_folder
from tools.site.diagram import drawing, keys
from tools.site.python_reference import markdown, prose

ROOT = Path(__file__).parents[2]
NUMBERS = 10
"""A line of a file's comments with so many numbers is of what was measured."""
NODES = 30
"""A drawing of more nodes tells less than its text."""
LEGEND = "What changes is outlined; a filled node is one fused op with one kernel."
MEASURED = {
    "row": ("Memory-bound kernels", "memory-bound-kernels"),
    "pointwise": ("Memory-bound kernels", "memory-bound-kernels"),
    "scan": ("Memory-bound kernels", "memory-bound-kernels"),
    "gemm": ("Matrix products with bias + GELU", "matrix-products-with-bias--gelu"),
    "direct": ("Few channels or filters", "few-channels-or-filters"),
    "depthwise": ("Poolings and depthwise convolutions", "poolings-and-depthwise-convolutions"),
    "attention": ("Attention on short sequences", "attention-on-short-sequences"),
}
"""Where the page of kernels says what bounds those of a template."""


def rules() -> tuple[Rule, ...]:
    """Return the rules that come with onnxfuse, by name."""
    folder = shipped_folder()
    return tuple(r for r in library.rules() if r.path.is_relative_to(folder))


@dataclass(frozen=True)
class Tried:
    """An example of a rule file, and what the rule makes of it."""

    text: str
    becomes: str
    """What is left, where the rule applies."""
    refusal: tuple[str, str] | None
    """The node at which the rule stops, and why, where it does not."""
    before: onnx.ModelProto
    after: onnx.ModelProto


def page(one: Rule) -> str:
    """Return the page of a rule."""
    text = one.path.read_text(encoding="utf-8")
    tried = [_tried(one, e) for e in one.examples]
    applied, refused = [t for t in tried if t.refusal is None], [t for t in tried if t.refusal is not None]
    told = [_said(block) for block in _comments(text)]
    parts = [f"# {one.name}", one.summary, _facts(one), *(prose for prose, _ in told if prose)]
    if applied:
        parts += ["## Before and after", LEGEND, *_applied(applied)]
    else:
        parts.append("It joins what other rules have made, so none of its examples shows it at work by itself.")
    if refused:
        parts += ["## What it refuses, and why", *_refused(refused)]
    parts += _figures(one, applied, [measured for _, measured in told if measured])
    parts += _history(one)
    parts += ["## The file", "The whole rule, in [the rule language](language.md):"]
    parts += [folded(f"rules/{one.path.relative_to(shipped_folder())}", f"```toml\n{text.rstrip()}\n```")]
    return "\n\n".join(parts) + "\n"


def _tried(one: Rule, example: Example) -> Tried:
    before, after = library.example_model(one, example.text), library.example_model(one, example.text)
    report = pipeline.run(after, [one])
    refusal = None
    if example.refusal:
        found = [(n.refusal.node, str(n.refusal.reason)) for n in report.near]
        refusal = next((f for f in found if example.refusal in ": ".join(f)), ("", example.refusal))
    becomes = ", ".join(op.strip("{}").replace(" ", " + ") if op.startswith("{") else op for op in example.after)
    return Tried(example.text.strip(), becomes, refusal, before, after)


def _facts(one: Rule) -> str:
    match library.kind(one).partition(", "):
        case "rewrite", _, _:
            kind = "A rewrite: nodes become other nodes; what depends on weights only is computed once, in float64."
        case "layout", _, _:
            kind = "A layout: regions of a model run channels last inside."
        case _, _, "library":
            kind = "A fusion that ONNX Runtime's own op computes on CUDA."
        case _, _, template:
            kind = f'A fusion; its kernel is made by template `"{template}"`: {cuda.TEMPLATES[template].summary}.'
    if one.optional:
        return f"{kind} It is optional: ask for it with `--also {one.name}` {one.optional}."
    return f"{kind} Leave it out with `--skip {one.name}`, apply it alone with `--only {one.name}`."


def _comments(text: str) -> Iterator[str]:
    """Yield the paragraphs of what the file says of itself before its first table, line breaks as they are."""
    lines = (line for line in takewhile(lambda line: not line.startswith("["), text.splitlines()))
    blocks = "\n".join(line[2:] if line.startswith("#") else "" for line in lines if not line.startswith("summary"))
    return filter(None, map(str.strip, re.split(r"\n\n+", blocks)))


def _said(block: str) -> tuple[str, str]:
    """Return a paragraph of a file's comments as Markdown, and of it what was measured, as it stands there."""
    measured = ""
    if any(len(re.findall(r"\d+", line)) >= NUMBERS for line in block.splitlines()):
        # From the sentence on that names the unit.
        unit = re.search(r"\b(microseconds|us)\b", block, re.IGNORECASE)
        ends = [found.end() for found in re.finditer(r"\.\s", block[: unit.start()])] if unit is not None else []
        cut = max(ends, default=0)
        block, measured = block[:cut].strip(), block[cut:].strip()
    formulas: list[str] = []
    while " = " in block.partition("\n")[0] or (formulas and block[:1].islower()):
        line, _, rest = block.partition("\n")
        if re.search(r"\. [A-Z]", line):
            break
        formulas.append(line)
        block = rest
    code = ["```\n" + "\n".join(formulas) + "\n```"] if formulas else []
    return "\n\n".join([*code, *prose(block)]), measured


def _applied(examples: Sequence[Tried]) -> Iterator[str]:
    """Yield what becomes of the examples; the first one is open."""
    for number, example in enumerate(examples):
        body = f"{_pair(example.before, example.after)}\n\n```\n{example.text}\n```"
        yield folded(example.becomes, body) if number else body


def _pair(before: onnx.ModelProto, after: onnx.ModelProto) -> str:
    """Return the drawings of a model before and after, side by side."""
    if max(len(m.graph.node) for m in (before, after)) > NODES:
        return "The graph is too large to be drawn here; its text is below."
    same = keys(before) & keys(after)
    figures = [
        f'<figure><figcaption>{title}</figcaption><div class="scroll">{drawing(m, same, title)}</div></figure>'
        for title, m in (("before", before), ("after", after))
    ]
    return f'<div class="graphs">{"".join(figures)}</div>'


def drawn(name: str) -> str:
    """Return the first example of a rule before and after it, with what the colours mean."""
    (one,) = (r for r in rules() if r.name == name)
    example = _tried(one, one.examples[0])
    file = f"rules/{one.path.relative_to(shipped_folder())}"
    return f"{_pair(example.before, example.after)}\n\nThe rule [{name}]({file}) on its own example. {LEGEND}"


def folded(title: str, body: str) -> str:
    """Return a block that opens when its title is touched."""
    inner = "\n".join(f"    {line}" if line else "" for line in body.splitlines())
    title = title.replace('"', "'")
    return f'??? quote "{title}"\n\n{inner}'


def _refused(examples: Sequence[Tried]) -> Iterator[str]:
    for example in examples:
        node, reason = example.refusal or ("", "")
        at = f"It stops at `{node}`.\n\n" if node else ""
        yield folded(reason, f"{at}```\n{example.text}\n```")


def _figures(one: Rule, applied: Sequence[Tried], measured: Sequence[str]) -> Iterator[str]:
    """Yield what is counted and what was measured of the rule."""
    rows: list[tuple[int, int, str]] = []
    for example in applied:
        before, after = (sum(map(launched, m.graph.node)) for m in (example.before, example.after))
        ops = [" + ".join(n.op_type for n in f.body.node if launched(n)) for f in fused_ops(example.after).values()]
        rows.append((before, after, "; ".join(ops)))
    if one.fuse is None:  # other rules take what a rewrite leaves, so that alone it may even add launches
        rows = [row for row in rows if row[1] < row[0]]
    times = tables.of_rule(data.read(), one.name)
    if rows or measured or times:
        yield "## Figures"
    if times:
        yield "Microseconds of whole models, with all rules and without this one:"
        yield times
    if rows:
        yield "Launches of a kernel in the examples above; nodes that ONNX Runtime runs without one do not count."
        head = ("before", "after", "in one kernel")[: 3 if one.fuse is not None else 2]
        lines = [" | ".join(map(str, row[: len(head)])) for row in rows]
        yield "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {line} |" for line in lines)])
    if measured:
        yield "What the rule's file says was measured:"
    yield from (f"```\n{block}\n```" for block in measured)
    template = MEASURED.get(one.fuse.template) if one.fuse is not None else None
    if template is not None and rows:
        title, heading = template
        yield f"What bounds kernels of its template: [{title}](../performance/kernels.md#{heading})."


def launched(node: onnx.NodeProto) -> bool:
    """Return whether ONNX Runtime launches a kernel for a node."""
    return node.op_type != "Constant" and not cuda.is_free(node.op_type, node.domain)


# ---- history


def _history(one: Rule) -> Iterator[str]:
    """Yield the changes of the rule's file; nothing outside of a whole clone."""
    logged = commits().get(str(one.path.relative_to(ROOT)), []) if one.path.is_relative_to(ROOT) else []
    if logged:
        yield "## History"
        yield "\n".join(f"- {date} `{commit}` {markdown(subject)}" for date, commit, subject in logged)


@cache
def commits() -> dict[str, list[tuple[str, str, str]]]:
    """Return date, commit and subject of the changes of each rule file, newest first; none outside of a whole clone."""
    command = ["git", "log", "--no-merges", "--format=%x00%as %h %s", "--name-only", "--", "rules"]
    shallow = ["git", "rev-parse", "--is-shallow-repository"]
    try:
        # In a clone of the last commits alone the oldest one of these looks as if it had made all files.
        if subprocess.run(shallow, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip() != "false":
            return {}
        log = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return {}
    found: dict[str, list[tuple[str, str, str]]] = {}
    for entry in log.stdout.split("\0")[1:]:
        head, *files = entry.strip().splitlines()
        date, commit, subject = head.split(" ", 2)
        for file in filter(None, files):
            found.setdefault(file, []).append((date, commit, subject))
    return found
