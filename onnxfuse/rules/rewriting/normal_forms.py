"""Normal forms: rules in `rules/forms/` that bring several spellings to one.

Each is a pass of the pipeline: it is applied whichever rules are chosen, as other rules match the form that it leaves.
"""

from onnxfuse.graph.graph import Graph, Node
from onnxfuse.graph.graph_pass import Pass
from onnxfuse.rules.language import predicate
from onnxfuse.rules.language.rule_file import Rewrite, forms
from onnxfuse.rules.match.match import Match, Trace, has_other_operands, matches
from onnxfuse.rules.match.replace import instantiate
from onnxfuse.rules.rewriting.rewrite import bind


def normal_form(name: str) -> Pass:
    """Return the pass that applies the rewrites of `rules/forms/NAME.toml`: at each node the first that matches."""
    rule = forms()[name]
    rewrites: dict[str, list[Rewrite]] = {}
    for one in rule.rewrites:
        for op in one.source.root.operators:
            rewrites.setdefault(op, []).append(one)

    def run(graph: Graph) -> bool:
        changed = False
        for node in [n for n in graph.nodes if n.op in rewrites]:
            changed |= node.order >= 0 and any(_apply(graph, one, node) for one in rewrites[node.op])
        return changed

    return Pass(rule.name, rule.summary, run)


def _apply(graph: Graph, rewrite: Rewrite, node: Node) -> bool:
    """Apply a rewrite at a node; return whether it matched."""
    match = _match(graph, rewrite, node)
    bound = None if match is None else bind(rewrite.let, graph, match)
    new = instantiate(rewrite.target, graph, bound, rewrite.optional) if isinstance(bound, Match) else None
    if not isinstance(bound, Match) or not isinstance(new, list):
        return False
    graph.replace(bound.replaced, new)
    return True


def _match(graph: Graph, rewrite: Rewrite, node: Node) -> Match | None:
    """Return the first match at a node for which all conditions hold; nothing is said of the others."""
    if has_other_operands(rewrite.source, graph, node):
        return None
    for match in matches(rewrite.source, graph, node, Trace()):
        conditions = (*rewrite.about, *rewrite.where, *predicate.spelling_conditions(match.pattern))
        if all(predicate.holds(one, graph, match) is None for one in conditions):
            return match
    return None
