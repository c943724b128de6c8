"""Nodes that combine results of sibling anchors: of more anchors than one body may have, they are refused early."""

from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest
from onnx import helper

from onnxfuse import cuda
from onnxfuse.cuda.templates.gemm.plan import MOST_BESIDE, MOST_TOGETHER
from onnxfuse.fusion import fuse
from onnxfuse.fusion.region.attempt import Attempt
from onnxfuse.fusion.region.proof import proven_op
from onnxfuse.fusion.steps import pointwise
from onnxfuse.fusion.steps.combined import combined, results_of_anchors
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.rewriting.every_graph import for_every_graph
from tests.support.channels_last import weights
from tests.support.small import assert_same_numbers, graph_of, parse

GEMM = [one for one in rule_file.shipped() if one.name == "gemm"]


def summed(count: int) -> str:
    """Return so many products of one input, and the sum of all of them, one by one."""
    sums = " ".join(f"s{b} = Add ({f's{a}' if a else 'm0'}, m{b})" for a, b in pairwise(range(count)))
    known = ", ".join(weights(f"w{i}", 16, 16) for i in range(count))
    products = " ".join(f"m{i} = MatMul (x, w{i})" for i in range(count))
    return f"""<ir_version: 8, opset_import: ["" : 20]>
g (float[N,16] x) => (float[N,16] y) <{known}> {{ {products} {sums} y = Relu (s{count - 1}) }}"""


def whole(count: int) -> tuple[object, ...] | str:
    """Return the op of all nodes of such a graph, or why there is none."""
    (graph,) = for_every_graph(parse(summed(count)), lambda graph: graph)
    return proven_op(graph, graph.nodes, "gemm", "gemm")


def test_a_body_has_as_many_products_as_the_template_says() -> None:
    """No kernel computes more of them, on any GPU: what would combine more is refused before it grows."""
    assert cuda.TEMPLATES["gemm"].together == MOST_TOGETHER < MOST_BESIDE
    assert not isinstance(whole(2), str)
    for count in range(MOST_TOGETHER + 1, MOST_BESIDE + 2):
        assert f"{count} products in one body" in str(whole(count))


def test_products_that_are_summed_are_not_grown_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more products than a body has only those without a sum are tried, and the report says what combines two."""
    tried = list[list[str]]()

    def noted(graph: Graph, nodes: list[Node], *given: Any, **named: Any) -> Any:
        tried.append([n.op for n in nodes])
        return proven_op(graph, nodes, *given, **named)

    monkeypatch.setattr(fuse, "proven_op", noted)
    text = summed(MOST_TOGETHER + 2)
    report = pipeline.run(model := parse(text), GEMM)
    many = [nodes for nodes in tried if nodes.count("MatMul") > MOST_TOGETHER]
    assert many
    assert not [nodes for nodes in many if "Add" in nodes]
    told = [stop.reason for one in report.applied for stop in one.stops]
    assert any(f"{MOST_TOGETHER + 2} anchors: Add s1 combines MatMul m0 and MatMul m1" in one for one in told)
    assert_same_numbers(parse(text), model)


@pytest.mark.parametrize("count", [2, MOST_TOGETHER, MOST_TOGETHER + 1, MOST_BESIDE])
def test_results_are_followed_of_more_anchors_than_a_body_has(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """By their names, with the anchor of each; of fewer anchors any node may combine them."""
    followed = dict[int, dict[str, str]]()

    def noted(attempt: Attempt) -> dict[str, Node]:
        found = results_of_anchors(attempt)
        followed[1 + len(attempt.region.siblings)] = {value: anchor.name for value, anchor in found.items()}
        return found

    monkeypatch.setattr(pointwise, "results_of_anchors", noted)
    pipeline.run(parse(summed(count)), GEMM)
    names = [f"m{i}" for i in range(count)] if count > MOST_TOGETHER else []
    assert followed[count] == dict(zip(names, names, strict=True))


@pytest.mark.parametrize(("together", "followed"), [(0, False), (1, True), (2, True), (3, False)])
def test_a_template_without_a_limit_follows_nothing(
    monkeypatch: pytest.MonkeyPatch, together: int, followed: bool
) -> None:
    """Of three anchors: 0 is no limit, and one result may always be used alone."""
    monkeypatch.setitem(
        cast(dict[str, Any], cuda.TEMPLATES), "gemm", replace(cuda.TEMPLATES["gemm"], together=together)
    )
    anchors = [Node(helper.make_node("MatMul", ["x", "w"], [f"m{n}"])) for n in range(3)]
    attempt: Any = SimpleNamespace(
        how=SimpleNamespace(template="gemm"), start=SimpleNamespace(root=anchors[0]),
        region=SimpleNamespace(siblings=tuple(anchors[1:])),
    )  # fmt: skip
    expected = {f"m{n}": anchor for n, anchor in enumerate(anchors)} if followed else {}
    assert results_of_anchors(attempt) == expected


# ---- what comes of the results

TEXT = """g (int64[1] k, float[4,4] x, float[4,4] r) => (float[4,4] z) {
  a = MatMul (x, x) b = MatMul (x, x)
  c = Relu (a) d = Add (c, r) e = Mul (d, a) f = Neg (r)
  y, t = TopK (b, k) z = Sub (y, e)
}"""


def following(*nodes: str) -> tuple[dict[str, str], str | None]:
    """Return which anchor each value comes from once these nodes have joined, and why the last one may not."""
    graph = graph_of(parse(TEXT))
    results = {value: anchor for value in "ab" if (anchor := graph.producer(value)) is not None}
    reason = None
    for name in nodes:
        joined = graph.producer(name)
        assert reason is None
        assert joined is not None
        reason = combined(results, joined)
    return {value: anchor.outputs[0] for value, anchor in results.items() if value not in "ab"}, reason


def test_what_comes_of_one_result_is_followed() -> None:
    """Through each node, also one that reads it twice or beside other values; each output is one more."""
    assert following("c", "d", "e") == ({"c": "a", "d": "a", "e": "a"}, None)
    assert following("y") == ({"y": "b", "t": "b"}, None)


def test_what_reads_no_result_is_not_followed() -> None:
    """A node of a prologue, or one whose operand has not joined."""
    assert following("f", "d") == ({}, None)


def test_what_combines_two_results_is_named_with_the_anchors() -> None:
    """In the order of the graph, whichever is read first; nothing more is followed then."""
    assert following("c", "d", "e", "y", "z") == (
        {"c": "a", "d": "a", "e": "a", "y": "b", "t": "b"},
        "Sub z combines MatMul a and MatMul b",
    )
