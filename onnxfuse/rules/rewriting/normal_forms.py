"""Normal forms: rules in `rules/forms/` that bring several spellings to one.

Each is a pass of the pipeline: it is applied whichever rules are chosen, as other rules match the form that it leaves.
"""

from onnxfuse.graph.graph import Graph
from onnxfuse.graph.graph_pass import Pass
from onnxfuse.rules.language.rule_file import Rewrite, forms
from onnxfuse.rules.match.match import Match
from onnxfuse.rules.match.replace import instantiate
from onnxfuse.rules.rewriting.rewrite import bind, find


def normal_form(name: str) -> Pass:
    """Return the pass that applies the rewrites of `rules/forms/NAME.toml`."""
    rule = forms()[name]

    def run(graph: Graph) -> bool:
        count = sum(_apply(graph, one) for one in rule.rewrites)
        return count > 0

    return Pass(rule.name, rule.summary, run)


def _apply(graph: Graph, rewrite: Rewrite) -> int:
    """Apply a rewrite at each node where it matches; return at how many."""
    count = 0
    for node in [n for n in graph.nodes if n.op in rewrite.source.root.operators]:
        match = find(graph, rewrite.source, rewrite.where, node) if node.order >= 0 else None
        bound = bind(rewrite.let, graph, match) if isinstance(match, Match) else None
        new = instantiate(rewrite.target, graph, bound, rewrite.optional) if isinstance(bound, Match) else None
        if isinstance(bound, Match) and isinstance(new, list):
            graph.replace(list(bound.nodes.values()), new)
            count += 1
    return count
