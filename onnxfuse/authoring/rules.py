"""List the available rules, and explain a rule by its effect on its own examples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from onnxfuse.api.request import options
from onnxfuse.graph.graph import bodies
from onnxfuse.model.display_names import as_line
from onnxfuse.model.fused import fused_ops
from onnxfuse.model.validate import validate
from onnxfuse.passes import phases, pipeline
from onnxfuse.rules.language import pack, predicate, rule_file
from onnxfuse.rules.language.rule_file import Rule
from onnxfuse.rules.pattern import expression, shapes
from onnxfuse.support.bounded_text import parse_model
from onnxfuse.support.errors import ModelError, RuleError


@dataclass(frozen=True)
class ExampleResult:
    """The effect of a rule on one of its examples; nodes are lines of ONNX text."""

    before: tuple[str, ...]
    after: tuple[str, ...] | None
    """None if the rule refuses the example."""
    fault: str
    """Why the result differs from the file; `onnxfuse rules --test` reports all of it."""
    bodies: dict[str, tuple[str, ...]]
    """Nodes of each fused op."""
    refusals: tuple[str, ...]


def rules(folders: Sequence[Path] = (), name: str | None = None) -> tuple[Rule, ...]:
    """Return all rules, including those in `folders`, or the rule or normal form called `name`.

    Raises RuleError, UsageError.
    """
    available = pack.select(folders)
    return available if name is None else (options.find_rule((*available, *rule_file.forms().values()), name),)


def custom_rules(folders: Sequence[Path], name: str | None = None) -> tuple[Rule, ...]:
    """Return the rules in `folders` alone, without the shipped ones and those of packs; or the one called `name`."""
    if name is not None:
        return rules(folders, name)
    return tuple(r for folder in folders for r in rule_file.load(folder)) if folders else pack.select()


@dataclass(frozen=True)
class BuiltIn:
    """A built-in pass, which no rule file defines."""

    name: str
    phase: str
    summary: str


def built_in() -> tuple[BuiltIn, ...]:
    """Return the built-in passes in pipeline order."""
    return tuple(
        BuiltIn(one.name, ", ".join(filter(None, (phase.name, when))), one.summary)
        for phase in phases.PIPELINE
        for one, when in phase.listed()
    )


def predicates() -> list[str]:
    """Return what may stand in `shapes` and the predicates available in `where`."""
    words = (*predicate.TESTS.values(), *predicate.TERMS.values())
    return [*shapes.TEXTS, expression.EACH_TEXT, expression.MEASURED_TEXT, *(word.text for word in words)]


def kind(one: Rule) -> str:
    """Return the kind of a rule, in a word or two."""
    if one.fuse is not None:
        return f"fuse, {one.fuse.template}"
    if one.name in rule_file.forms():
        return "normal form"
    return "rewrite" if one.layout is None else "layout"


def facts(one: Rule) -> dict[str, Any]:
    """Return what a list of rules says of one, as plain data for JSON."""
    return {
        "name": one.name, "summary": one.summary, "kind": kind(one), "file": str(one.path), "pack": one.pack,
        "optional": one.optional,
    }  # fmt: skip


def examples(one: Rule) -> list[ExampleResult]:
    """Return the rule's effect on each of its examples; raises RuleError for an invalid example model."""
    return [_shown(one, example.text, refused=bool(example.refusal)) for example in one.examples]


def _shown(one: Rule, text: str, *, refused: bool) -> ExampleResult:
    from onnxfuse.runtime.sessions.opening import refusal  # ONNX Runtime is imported only when something is run.

    model = example_model(one, text)
    before = _nodes(model.graph.node)
    report = pipeline.run(model, [one], opens=refusal)
    fault = "applies, though its file says that it is refused" if refused and report.applied else ""
    if refused and not report.applied:
        return ExampleResult(before, None, "", {}, tuple(f"{n.refusal.node}: {n.refusal.reason}" for n in report.near))
    bodies = {op.name: _nodes(op.body.node) for op in fused_ops(model).values()}
    return ExampleResult(before, _nodes(model.graph.node), fault, bodies, ())


def example_model(one: Rule, text: str) -> onnx.ModelProto:
    """Return the model of an example; raises RuleError for an invalid one."""
    try:
        model = parse_model(text)
        validate(model)
    except ModelError as error:
        raise RuleError(f"{one.path}: [[example]]: {error}", "See onnxfuse docs rule-language.") from None
    empty = next(_without_values(model.graph), None)
    if empty is not None:
        raise RuleError(
            f"{one.path}: [[example]]: '{empty}' has no values, and nothing computes it",
            f"Give them, <float[2] {empty} = {{1, 2}}>, or make it an input of the example",
        )
    return model


def _without_values(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that a graph in ONNX text declares with a type, without a value or a producer."""
    computed = {v.name for v in (*graph.input, *graph.initializer)} | {o for n in graph.node for o in n.output}
    yield from (v.name for v in graph.value_info if v.name not in computed)
    for node in graph.node:
        for body in bodies(node):
            yield from _without_values(body)


def _nodes(nodes: Sequence[onnx.NodeProto]) -> tuple[str, ...]:
    return tuple(as_line(n) for n in nodes)
