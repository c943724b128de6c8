"""Failed attempts of rewrites, cached between iterations over a graph: a worklist keyed by what each attempt read."""

from collections.abc import Callable, Iterable

from onnxfuse.graph.graph import Graph, Node
from onnxfuse.rules.match.equal_attempts import EqualAttempts
from onnxfuse.rules.match.match import Match, Refusal
from onnxfuse.rules.match.refusal import Nearness
from onnxfuse.shapes.types import ValueType


class Attempts:
    """The failed attempts at the nodes of one graph: a node is tried again only if something within its reach changed.

    The reach of a node is every value whose producer, readers, type or data its attempts queried. Values are identified
    by name: the graph may be committed and read again in between.
    """

    def __init__(self) -> None:
        self._settled: dict[str, set[str]] = {}
        """The reach of nodes that no rewrite matched in an earlier turn, by their first output that is there."""
        self._tried: dict[str, set[str]] = {}
        """The same for nodes tried in this turn."""
        self._refusals: dict[tuple[int, str], Refusal] = {}
        """By rewrite and node."""
        self._changed: set[str] = set()
        """Values that changed in this turn."""
        self._equal: EqualAttempts | None = None
        self._nodes: dict[Node, None] = {}
        self._types: dict[str, ValueType] = {}

    def resume(self, graph: Graph) -> None:
        """Continue with a graph that was committed after `observe`, and read again with types inferred anew."""
        if [(n.op, n.inputs, n.outputs) for n in self._nodes] != [(n.op, n.inputs, n.outputs) for n in graph.nodes]:
            self._settled, self._tried = {}, {}
        # The bodies of a node may have changed, and with them what it captures.
        self.changed(n for n in graph.nodes if n.captures)
        self._nodes = dict.fromkeys(graph.nodes)

    def begin(self, graph: Graph) -> None:
        """Begin a turn: the nodes within whose reach something has changed are tried again."""
        self.observe(graph)
        reach = {**self._settled, **self._tried}
        self._settled = {root: values for root, values in reach.items() if values.isdisjoint(self._changed)}
        self._refusals = {at: refusal for at, refusal in self._refusals.items() if at[1] in self._settled}
        self._tried, self._changed = {}, set()
        if self._equal is None or self._equal.graph is not graph:
            self._equal = EqualAttempts(graph)
        self._equal.restart()

    def observe(self, graph: Graph) -> None:
        """Note what has changed since the last call."""
        nodes, types = dict.fromkeys(graph.nodes), {**graph.types}
        self.changed(n for n in self._nodes if n not in nodes)
        self.changed(n for n in nodes if n not in self._nodes)
        known = self._types
        self._changed.update([v for v, t in types.items() if (before := known.get(v)) is not t and before != t])
        self._changed.update(v for v in self._types if v not in types)
        if [n for n in self._nodes if n in nodes] != [n for n in nodes if n in self._nodes]:
            # The order of a value's readers decides which of equally near attempts is reported.
            self._settled, self._tried = {}, {}
        self._nodes, self._types = nodes, types

    def changed(self, nodes: Iterable[Node]) -> None:
        """Note that `nodes` were removed or added: all that they read and compute has changed."""
        for node in nodes:
            self._changed.update(node.outputs, node.reads)

    def find(
        self,
        rewrite: int,
        graph: Graph,
        node: Node,
        search: Callable[[], Match | Refusal | None],
        previous: Nearness | None = None,
    ) -> Match | Refusal | None:
        """Return the outcome of `search`, or the same from an earlier turn or at an equal node.

        `previous` is how near another spelling of the rule came.
        """
        root = next(filter(None, node.outputs), "")
        settled = self._settled.get(root)
        if settled is not None and settled.isdisjoint(self._changed):
            return self._refusals.get((rewrite, root))
        reach = self._tried.get(root)
        if reach is None:
            reach = self._tried[root] = set(node.outputs)
        assert self._equal is not None, "begin() comes first"
        outcome = self._equal.find((rewrite, previous), node, search, reach)
        if isinstance(outcome, Match):
            self._changed.update(node.outputs)  # what follows a match is not kept
        elif outcome is not None:
            self._refusals[rewrite, root] = outcome
        return outcome
