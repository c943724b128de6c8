"""The work of optimizing grows with the graph and not with its square, whatever the graph's form.

Work is counted in calls of Python functions, which are the same on every machine: twice the nodes may take little more
than twice the calls.
"""

import gc
import sys
from collections import Counter
from collections.abc import Callable, Hashable
from types import FrameType
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper
from onnx.helper import make_node, make_tensor_value_info

from onnxfuse.fusion import fuse
from onnxfuse.fusion.region import make_op, proof
from onnxfuse.graph.graph import Graph, Node
from onnxfuse.model.fused import FusedOp
from onnxfuse.passes import pipeline
from onnxfuse.rules.match.equal_attempts import EqualAttempts, Outcome
from onnxfuse.rules.rewriting import attempts
from onnxfuse.support.collector import OBJECTS, collecting_rarely
from onnxfuse.support.errors import ModelError

MORE = 2.3
"""Calls for twice the nodes, at most: some steps sort, or search a sorted list."""

MOST = 1_100
"""Calls for a further node, at most: products that are added in pairs take 1,000, an activation of a chain 240."""

FURTHER = 10
"""Attempts that twice the nodes may take beyond those of the first: a tree has one more level."""


def model(nodes: list[NodeProto], outputs: list[str], weights: list[TensorProto] | None = None) -> ModelProto:
    """Return a model of float32 with the input x."""
    graph = helper.make_graph(
        nodes,
        "g",
        [make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        weights or [],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def weight(number: int) -> TensorProto:
    """Return a matrix unlike that of any other number."""
    return numpy_helper.from_array(np.eye(8, dtype=np.float32) * number + 0.5, f"w{number}")


def chain(count: int) -> ModelProto:
    """Return a chain of activations."""
    values = ["x", *(f"v{i}" for i in range(count))]
    nodes = [make_node("Relu" if i % 2 else "Tanh", [values[i]], [values[i + 1]]) for i in range(count)]
    return model(nodes, [values[-1]])


def layers(count: int) -> ModelProto:
    """Return a chain of MatMul, Add and Relu, with weights of its own for each."""
    nodes, value = list[NodeProto](), "x"
    for i in range(count // 3):
        nodes.append(make_node("MatMul", [value, f"w{i}"], [f"m{i}"]))
        nodes.append(make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"]))
        nodes.append(make_node("Relu", [f"a{i}"], [value := f"r{i}"]))
    biases = [numpy_helper.from_array(np.full(8, i, np.float32), f"b{i}") for i in range(count // 3)]
    return model(nodes, [value], [weight(i) for i in range(count // 3)] + biases)


def tree(count: int) -> ModelProto:
    """Return products of one value that are added in pairs, level by level."""
    nodes = [make_node("MatMul", ["x", f"w{i}"], [f"p{i}"]) for i in range(count // 2)]
    level = [n.output[0] for n in nodes]
    while len(level) > 1:
        pairs = list(zip(level[::2], level[1::2], strict=False))
        sums = [f"{a}+{b}" for a, b in pairs]
        nodes += [make_node("Add", [*pair], [out]) for pair, out in zip(pairs, sums, strict=True)]
        level = sums + level[2 * len(pairs) :]
    return model(nodes, level, [weight(i) for i in range(count // 2)])


def branches(count: int) -> ModelProto:
    """Return independent branches from one value, each with an output."""
    nodes = [make_node("MatMul", ["x", f"w{i}"], [f"p{i}"]) for i in range(count // 2)]
    nodes += [make_node("Sigmoid", [f"p{i}"], [f"y{i}"]) for i in range(count // 2)]
    return model(nodes, [f"y{i}" for i in range(count // 2)], [weight(i) for i in range(count // 2)])


def equal_operands(count: int) -> ModelProto:
    """Return a Concat of equal values."""
    nodes = [make_node("Relu", ["x"], [f"r{i}"]) for i in range(count)]
    return model([*nodes, make_node("Concat", [f"r{i}" for i in range(count)], ["y"], axis=1)], ["y"])


def shared_weight(count: int) -> ModelProto:
    """Return a chain of MatMul, Add and Relu that all read one weight and one bias."""
    nodes, value = list[NodeProto](), "x"
    for i in range(count // 3):
        nodes.append(make_node("MatMul", [value, "w1"], [f"m{i}"]))
        nodes.append(make_node("Add", [f"m{i}", "b"], [f"a{i}"]))
        nodes.append(make_node("Relu", [f"a{i}"], [value := f"r{i}"]))
    return model(nodes, [value], [weight(1), numpy_helper.from_array(np.ones(8, np.float32), "b")])


def every_value(count: int) -> ModelProto:
    """Return a chain of activations whose values are all outputs."""
    values = ["x", *(f"v{i}" for i in range(count))]
    nodes = [make_node("Relu" if i % 2 else "Tanh", [values[i]], [values[i + 1]]) for i in range(count)]
    return model(nodes, values[1:])


def parts(count: int) -> ModelProto:
    """Return a Split, and an activation of each part; at the second size of more parts than a fused op may have."""
    nodes = [make_node("Split", ["x", "sizes"], [f"s{i}" for i in range(count)], axis=0)]
    nodes += [make_node("Sigmoid" if i % 2 else "Tanh", [f"s{i}"], [f"y{i}"]) for i in range(count)]
    sizes = numpy_helper.from_array(np.full(count, 4, np.int64), "sizes")
    return model(nodes, [f"y{i}" for i in range(count)], [sizes])


def unread_parts(count: int) -> ModelProto:
    """Return a Split of many parts, of which one is read."""
    split = make_node("Split", ["x"], [f"s{i}" for i in range(count)], axis=0, num_outputs=count)
    return model([split, make_node("Relu", ["s0"], ["y"])], ["y"])


def forwarded_operands(count: int) -> ModelProto:
    """Return a Concat that reads different values through an Identity each."""
    kinds = ["Relu", "Tanh", "Sigmoid", "Softplus"]
    nodes = [make_node(kinds[i % 4], ["x" if i < 4 else f"r{i - 4}"], [f"r{i}"]) for i in range(count)]
    nodes += [make_node("Identity", [f"r{i}"], [f"i{i}"]) for i in range(count)]
    return model([*nodes, make_node("Concat", [f"i{i}" for i in range(count)], ["y"], axis=1)], ["y"])


def operands(count: int) -> ModelProto:
    """Return chains of activations, and a Concat of all their values."""
    nodes = [make_node("Relu" if i % 2 else "Tanh", [f"r{i - 4}" if i > 3 else "x"], [f"r{i}"]) for i in range(count)]
    return model([*nodes, make_node("Concat", [f"r{i}" for i in range(count)], ["y"], axis=1)], ["y"])


FORMS = [
    chain, layers, tree, branches, equal_operands, shared_weight, every_value, parts, unread_parts, forwarded_operands,
    operands,
]  # fmt: skip


def calls_to_optimize(built: ModelProto) -> int:
    """Return how many Python functions are called while a model is optimized."""
    count = 0

    def counted(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        pipeline.run(built)
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("form", FORMS)
def test_work_grows_with_the_graph(form: Callable[[int], ModelProto]) -> None:
    """Twice the nodes take little more than twice the calls, and a node takes few."""
    sizes = few, many = (192, 384)
    for nodes in sizes:
        pipeline.run(form(nodes))  # fills the caches: kernels of one kind are planned once
    once, twice = (calls_to_optimize(form(nodes)) for nodes in sizes)
    assert twice <= MORE * once, f"{once} calls, then {twice}"
    assert twice - once <= MOST * (many - few), f"{(twice - once) / (many - few):.0f} calls for a node"


PADDED = 4_000_000
"""Calls for a Pad of edges along four axes, at most: 81 parts of the output, of eight operands each, for all GPUs."""


def test_a_pad_of_all_axes_is_planned_at_once() -> None:
    """A Concat and a Pad of two nodes may not take seconds: each part of the output is lowered once for all GPUs."""
    nodes = [
        make_node("Concat", ["a"] * 8, ["c"], axis=1),
        make_node("Pad", ["c", "pads"], ["y"], mode="edge"),
    ]
    built = model(nodes, ["y"], [numpy_helper.from_array(np.ones(8, np.int64), "pads")])
    built.graph.input[0].CopyFrom(make_tensor_value_info("a", TensorProto.FLOAT, [2, 12, 4, 4]))
    assert calls_to_optimize(built) < PADDED
    assert [n.domain for n in built.graph.node] == ["onnxfuse"]


@pytest.mark.parametrize("form", [chain, layers, tree, branches, operands])
def test_equal_parts_are_matched_once(form: Callable[[int], ModelProto], monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice the nodes of one kind take hardly an attempt more: what differs is where they begin and end."""
    made = Counter[int]()

    class Counted(EqualAttempts):
        def find(
            self, key: Hashable, root: Node, search: Callable[[], Outcome], reach: set[str] | None = None
        ) -> Outcome:
            def counted() -> Outcome:
                made[nodes] += 1
                return search()

            return super().find(key, root, counted, reach)

    for module in (fuse, attempts):
        monkeypatch.setattr(module, "EqualAttempts", Counted)
    few, many = 192, 384
    for nodes in (few, many):
        pipeline.run(form(nodes))
    assert 0 < made[few] <= made[many] <= made[few] + FURTHER, made


@pytest.mark.parametrize("own", [(700, 10, 10), (80_000, 5, 5), (0, 10, 10)])
def test_garbage_is_collected_rarely_while_a_model_is_optimized(own: tuple[int, int, int]) -> None:
    """The process's own thresholds hold again afterwards, and stay if they are larger, or 0: no collection."""
    seen = list[tuple[int, int, int]]()
    before = gc.get_threshold()
    gc.set_threshold(*own)
    try:
        pipeline.run(chain(4), progress=lambda _: seen.append(gc.get_threshold()))
        with collecting_rarely(), pytest.raises(ModelError):
            pipeline.run(ModelProto(), progress=lambda _: seen.append(gc.get_threshold()))
        after = gc.get_threshold()
    finally:
        gc.set_threshold(*before)
    assert {first for first, *_ in seen} == {max(own[0], OBJECTS) if own[0] else 0}
    assert after == own


def test_equal_regions_without_a_kernel_are_proven_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products that fit no kernel together are tried again from the next one, but not proven again."""
    failed: list[Any] = []

    def proven(graph: Graph, nodes: list[Node], *given: Any, **named: Any) -> tuple[FusedOp, Node] | str:
        made = proof.proven_op(graph, nodes, *given, **named)
        failed.extend([make_op.outline(graph, nodes)] if isinstance(made, str) else [])
        return made

    monkeypatch.setattr(fuse, "proven_op", proven)
    pipeline.run(tree(384))
    assert failed
    assert len(failed) == len(set(failed))
