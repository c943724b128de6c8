"""Random small graphs around an anchor: extra readers, dead branches, swapped operands, any legal order of nodes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import onnx
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

UNARY = ("Relu", "Tanh", "Sigmoid", "Neg", "Abs", "Softplus", "Erf", "Elu")
BINARY = ("Add", "Sub", "Mul", "Max", "Min")
COMMUTATIVE = ("Add", "Mul", "Max", "Min")


@dataclass
class Builder:
    """A graph that grows node by node; every value that it offers has the shape `shape`."""

    random: Random
    shape: tuple[int, ...]
    opset: int
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[TensorProto] = field(default_factory=list)
    values: list[str] = field(default_factory=lambda: ["x", "r"])

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """Add a node; return its output."""
        if op in COMMUTATIVE and self.random.random() < 0.5:
            inputs = inputs[::-1]
        output = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [output], name=f"node_{len(self.nodes)}", **attributes))
        return output

    def weight(self, *shape: int, positive: bool = False) -> str:
        """Add a weight of both signs, in eighths, so that float16 holds it exactly; return its name."""
        drawn = [self.random.choice((-1, 1)) * self.random.randint(1, 16) / 8 for _ in range(int(np.prod(shape)))]
        array = np.asarray(drawn, np.float32).reshape(shape)
        return self.constant(np.abs(array) if positive else array)

    def constant(self, value: object) -> str:
        """Add a float32 (or int64) initializer; return its name."""
        array = np.asarray(value)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def any(self) -> str:
        """Return one of the values so far, the latest ones more often."""
        return self.random.choice(self.values[-3:] if self.random.random() < 0.6 else self.values)

    def pointwise(self) -> str:
        """Add one elementwise node over values so far; return its output."""
        kind = self.random.random()
        if kind < 0.4:
            return self.node(self.random.choice(UNARY), self.any())
        other = self.any() if kind < 0.7 else self._broadcast()
        return self.node(self.random.choice(BINARY), self.any(), other)

    def _broadcast(self) -> str:
        rank = len(self.shape)
        kept = self.random.randint(0, rank)
        shape = [d if self.random.random() < 0.6 else 1 for d in self.shape[rank - kept :]]
        # The first axis is the batch, which no weight varies along.
        return self.weight(*([1, *shape[1:]] if kept == rank else shape))


Anchor = Callable[[Builder, str], str]


def matmul(b: Builder, x: str) -> str:
    return b.node("MatMul", x, b.weight(b.shape[-1], b.shape[-1]))


def gemm(b: Builder, x: str) -> str:
    inputs = [x, b.weight(b.shape[-1], b.shape[-1]), *([b.weight(b.shape[-1])] if b.random.random() < 0.7 else [])]
    return b.node("Gemm", *inputs, transB=b.random.randint(0, 1), beta=b.random.choice((1.0, 1.0, 0.5)))


def conv(b: Builder, x: str) -> str:
    channels = b.shape[1]
    inputs = [x, b.weight(channels, channels, 1, 1), *([b.weight(channels)] if b.random.random() < 0.7 else [])]
    return b.node("Conv", *inputs)


def conv_batchnorm(b: Builder, x: str) -> str:
    channels = b.shape[1]
    shift, mean = b.weight(channels), b.weight(channels)
    scale, variance = b.weight(channels), b.weight(channels, positive=True)
    return b.node("BatchNormalization", conv(b, x), scale, shift, mean, variance)


def layer_norm(b: Builder, x: str) -> str:
    extra = [b.weight(b.shape[-1])] if b.random.random() < 0.5 else []
    return b.node("LayerNormalization", x, b.weight(b.shape[-1]), *extra)


def layer_norm_spelled(b: Builder, x: str) -> str:
    mean = b.node("ReduceMean", x, axes=[-1])
    d = b.node("Sub", x, mean)
    square = b.node("Mul", d, d) if b.random.random() < 0.5 else b.node("Pow", d, b.constant(2.0))
    variance = b.node("ReduceMean", square, axes=[-1])
    deviation = b.node("Sqrt", b.node("Add", variance, b.constant(1e-5)))
    return b.node("Mul", b.node("Div", d, deviation), b.weight(b.shape[-1]))


def rms_norm(b: Builder, x: str) -> str:
    return b.node("RMSNormalization", x, b.weight(b.shape[-1]))


def rms_norm_spelled(b: Builder, x: str) -> str:
    square = b.node("Pow", x, b.constant([2.0]))
    power = b.node("ReduceMean", square, b.constant([len(b.shape) - 1]))
    deviation = b.node("Sqrt", b.node("Add", power, b.constant(1e-6)))
    return b.node("Mul", b.node("Div", x, deviation), b.weight(b.shape[-1]))


def softmax(b: Builder, x: str) -> str:
    return b.node("Softmax", x, axis=-1)


def pointwise(b: Builder, x: str) -> str:
    return b.node("Mul", x, b.node("Sigmoid", x))


ANCHORS: dict[str, tuple[Anchor, tuple[int, ...], int]] = {
    "matmul": (matmul, (3, 4), 17),
    "gemm": (gemm, (3, 4), 13),
    "conv": (conv, (2, 4, 3, 3), 17),
    "conv_batchnorm": (conv_batchnorm, (2, 4, 3, 3), 15),
    "layer_norm": (layer_norm, (2, 3, 4), 17),
    "layer_norm_spelled": (layer_norm_spelled, (2, 3, 4), 13),
    "rms_norm": (rms_norm, (2, 3, 4), 23),
    "rms_norm_spelled": (rms_norm_spelled, (3, 4), 18),
    "softmax": (softmax, (2, 3, 4), 17),
    "pointwise": (pointwise, (3, 4), 17),
}
"""Each anchor with the shape that its graphs work on, and the opset it is written in."""


@st.composite
def models(draw: st.DrawFn, anchor: str) -> onnx.ModelProto:
    """Return a model in which `anchor` is followed by two elementwise nodes, among up to ten others."""
    emit, shape, opset = ANCHORS[anchor]
    b = Builder(draw(st.randoms(use_true_random=False)), shape, opset)
    for _ in range(draw(st.integers(0, 4))):
        b.values.append(b.pointwise())
    first = len(b.nodes)
    after = b.node(b.random.choice(UNARY), b.node("Add", emit(b, b.any()), b.weight(shape[-1])))
    inner = [o for n in b.nodes[first:] for o in n.output]
    b.values.append(after)
    for _ in range(draw(st.integers(0, 4))):
        b.values.append(b.pointwise())
    last = b.node("Add", after, b.values[-1])
    outputs = [last, *b.random.sample(b.values[2:], k=min(len(b.values) - 2, b.random.choice((0, 0, 1, 2))))]
    if b.random.random() < 0.3:
        # A value from inside the anchor: fused as an extra output, or the reason for a refusal.
        outputs.append(b.random.choice(inner))
    return _model(b, list(dict.fromkeys(outputs)))


def _model(b: Builder, outputs: list[str]) -> onnx.ModelProto:
    shape: list[str | int | None] = ["N", *b.shape[1:]]
    graph = helper.make_graph(
        _shuffled(b.nodes, b.random),
        "random",
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, shape) for v in ("x", "r")],
        [helper.make_tensor_value_info(v, TensorProto.FLOAT, None) for v in outputs],
        b.weights,
    )
    return _typed(helper.make_model(graph, opset_imports=[helper.make_opsetid("", b.opset)], ir_version=8))


def _shuffled(nodes: list[onnx.NodeProto], random: Random) -> list[onnx.NodeProto]:
    """Return the nodes in another topological order."""
    waiting, ordered, known = list(nodes), [], {o for n in nodes for o in n.output}
    while waiting:
        ready = [n for n in waiting if not any(v in known for v in n.input)]
        chosen = random.choice(ready)
        waiting.remove(chosen)
        ordered.append(chosen)
        known -= set(chosen.output)
    return ordered


def inside_a_branch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with its nodes in a branch of an If: they read inputs and weights from the graph outside."""
    graph = model.graph
    names = [o.name for o in graph.output]
    then = helper.make_graph(graph.node, "then", [], graph.output)
    nothing = [helper.make_node("Sub", ["x", "x"], [f"nothing_{name}"]) for name in names]
    types = [helper.make_tensor_value_info(f"nothing_{name}", TensorProto.FLOAT, None) for name in names]
    other = helper.make_graph(nothing, "else", [], types)
    node = helper.make_node("If", ["c"], [f"out_{name}" for name in names], then_branch=then, else_branch=other)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    outputs = [helper.make_tensor_value_info(f"out_{name}", TensorProto.FLOAT, None) for name in names]
    outer = helper.make_graph([node], "outer", [*graph.input, condition], outputs, graph.initializer)
    return _typed(helper.make_model(outer, opset_imports=model.opset_import, ir_version=model.ir_version))


def _typed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return `model` with the shapes of its outputs filled in."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    del model.graph.output[:]
    model.graph.output.extend(inferred.graph.output)
    return model
