"""What a graph may go on with that holds graphs of its own: branches, loops, sequences, functions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.laws.every_operator.grow import LOCAL, Grower, RefusedError


def _float(g: Grower) -> int:
    return helper.np_dtype_to_tensor_dtype(g.numpy)


class Body:
    """Nodes of a body, under names that no other has: what it reads from outside is captured."""

    def __init__(self, g: Grower, stem: str) -> None:
        self.g, self.stem, self.nodes = g, f"{stem}{len(g.nodes)}", list[onnx.NodeProto]()

    def add(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{self.stem}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], f"n_{name}", **attributes))
        return name

    def chain(self, x: str) -> str:
        """Return a value after a few operators that keep its shape."""
        for _ in range(self.g.pick((1, 2, 3, 4))):
            match self.g.pick(range(6)):
                case 0 | 1:
                    x = self.add(self.g.pick(("Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Identity")), [x])
                case 2:
                    x = self.add(self.g.pick(("Mul", "Add", "Sub")), [x, self.g.number(0.5)])
                case 3:
                    x = self.add("Add", [x, x])
                case 4:
                    x = self.add("Mul", [x, self.add("Sigmoid", [x])])
                case _:
                    x = self.add("Cast", [self.add("Cast", [x], to=TensorProto.DOUBLE)], to=_float(self.g))
        return x

    def graph(self, inputs: list[onnx.ValueInfoProto], outputs: list[str]) -> onnx.GraphProto:
        ends = [helper.make_empty_tensor_value_info(o) for o in outputs]
        return helper.make_graph(self.nodes, self.stem, inputs, ends)


def branches(g: Grower) -> None:
    """One of two branches, by a constant, a number, or an extent; they may end in other shapes."""
    x = g.any()
    match g.pick(range(3)):
        case 0:
            held = g.constant(np.array(g.chance(0.5)))
        case 1:
            held = g.add("Greater", [g.add("ReduceSum", [x], keepdims=0), g.number(0.5)])
            held = g.add("Reshape", [held, g.constant(np.zeros(0, np.int64))])
        case _:
            size = g.add("Size", [x])
            held = g.add("Greater", [size, g.constant(np.array(g.pick((0, 4, 100)), np.int64))])
    then, other = Body(g, "then"), Body(g, "else")
    end = then.chain(x)
    if g.chance(0.3):
        end = then.add("Flatten", [end], axis=0)
    ends = other.chain(x)
    name = f"v{len(g.nodes)}"
    node = helper.make_node(
        "If", [held], [name], f"n_{name}", then_branch=then.graph([], [end]), else_branch=other.graph([], [ends])
    )
    g.add_nodes([node], [name])
    if g.chance(0.5):
        g.add("Relu", [name])


def loops(g: Grower) -> None:
    """A loop that carries a value, and may give each of its states."""
    x = g.any(most=4)
    body = Body(g, "loop")
    state, keep, at = f"{body.stem}_state", f"{body.stem}_keep", f"{body.stem}_at"
    values = [
        helper.make_tensor_value_info(at, TensorProto.INT64, []),
        helper.make_tensor_value_info(keep, TensorProto.BOOL, []),
        helper.make_tensor_value_info(state, _float(g), [None] * len(g.shape(x))),
    ]
    end = body.chain(state)
    if g.chance(0.4):
        end = body.add("Add", [end, body.add("Mul", [x, g.number(0.5)])])
    on, each = body.add("Identity", [keep]), g.chance(0.5)
    outputs = [on, end, *([body.add("Identity", [end])] if each else [])]
    names = [f"v{len(g.nodes)}{'_' * i}" for i in range(1 + each)]
    count = g.constant(np.array(g.pick((1, 2, 3)), np.int64))
    go = g.constant(np.array(True)) if g.chance(0.5) else ""
    g.add_nodes(
        [helper.make_node("Loop", [count, go, x], names, f"n_{names[0]}", body=body.graph(values, outputs))], names
    )


def scans(g: Grower) -> None:
    """A state carried over the rows of a value, from either end."""
    x = g.any(least=2, most=4)
    if g.opset < 9 or not g.shape(x)[0]:
        raise RefusedError
    body = Body(g, "scan")
    state, row = f"{body.stem}_state", f"{body.stem}_row"
    rank = len(g.shape(x)) - 1
    values = [helper.make_tensor_value_info(v, _float(g), [None] * rank) for v in (state, row)]
    end = body.add("Mul", [body.add("Add", [state, body.chain(row)]), g.number(0.5)])
    begin = g.weight(g.shape(x)[1:])
    names = [f"v{len(g.nodes)}", f"v{len(g.nodes)}_"]
    way: dict[str, Any] = {"scan_input_directions": [1]} if g.chance(0.3) else {}
    graph = body.graph(values, [end, body.add("Identity", [end])])
    g.add_nodes(
        [helper.make_node("Scan", [begin, x], names, f"n_{names[0]}", body=graph, num_scan_inputs=1, **way)], names
    )


def sequences(g: Grower) -> None:
    """Parts in a sequence, one of which is taken, or all put together again, each through a body."""
    x = g.any(least=1)
    stem = f"v{len(g.nodes)}"
    nodes: list[onnx.NodeProto] = []
    axis = int(g.rng.integers(len(g.shape(x))))

    def add(op: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{stem}_{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], f"n_{name}", **attributes))
        return name

    keep = int(g.chance(0.6))
    held = (
        add("SplitToSequence", [x, *([g.constant(np.array(1, np.int64))] if keep else [])], axis=axis, keepdims=keep)
        if g.chance(0.6)
        else add("SequenceConstruct", [x, g.weight(g.shape(x))])
    )
    if g.opset >= 17 and g.chance(0.3):
        body = Body(g, "map")
        item = helper.make_tensor_value_info(f"{body.stem}_item", _float(g), None)
        end = body.chain(item.name)
        held = add("SequenceMap", [held], body=body.graph([item], [end]))
    if g.chance(0.3):
        held = add("SequenceInsert", [held, x, g.constant(np.array(0, np.int64))])
    match g.pick(range(4)):
        case 0:
            end = add("SequenceAt", [held, g.constant(np.array(g.pick((0, -1)), np.int64))])
        case 1:
            end = add("Cast", [add("SequenceLength", [held])], to=_float(g))
        case _:
            new = {"new_axis": 1} if g.chance(0.4) else {}
            end = add("ConcatFromSequence", [held], axis=0 if new else axis, **new)
    g.add_nodes(nodes, [end])


def functions(g: Grower) -> None:
    """A function of the model's own, called once or twice, with an attribute that it hands on."""
    x = g.any()
    name = f"F{len(g.functions)}"
    imports = [helper.make_opsetid("", g.opset)]
    nodes = [
        helper.make_node(g.pick(("Relu", "Sigmoid", "Tanh", "Neg")), ["a"], ["b"]),
        helper.make_node(g.pick(("Add", "Mul", "Sub")), ["b", "a"], ["c"]),
    ]
    attributes = []
    if g.chance(0.5):
        handed = helper.make_node("LeakyRelu", ["c"], ["d"])
        handed.attribute.append(
            onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
        )
        nodes.append(handed)
        attributes = ["slope"]
    else:
        nodes.append(helper.make_node("Abs", ["c"], ["d"]))
    g.functions.append(helper.make_function(LOCAL, name, ["a"], ["d"], nodes, imports, attributes))
    given: dict[str, Any] = {"slope": 0.3} if attributes else {}
    try:
        for _ in range(g.pick((1, 2))):
            x = g.add(name, [x], domain=LOCAL, **given)
    except RefusedError:
        if not any(n.op_type == name for n in g.nodes):
            g.functions.pop()
        raise


NESTED: tuple[Callable[[Grower], None], ...] = (branches, loops, scans, sequences, functions, branches, functions)
