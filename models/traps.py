"""Traps for lower precision, planted into real architectures: each is exact in float32 and breaks plain float16.

A trap stands behind a value of the residual stream and gives nearly what it reads, by a detour whose numbers float16
does not hold. `planted` gives the model, and the names of the nodes of the detour begin with `TRAP`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

import models
from models.network import Form, Network
from models.weights import seeded
from onnxfuse.model.nested import in_order

TRAP = "trap"
HIDDEN = 64
SEQUENCE = 24

Detour = Callable[[Network, str], str]


@dataclass(frozen=True)
class Trap:
    """One kind of numbers that float16 does not hold."""

    name: str
    detour: Detour
    layers: tuple[int, ...] = (1,)
    """The layers behind which it stands."""
    architecture: str = "bert_base"
    kept: bool = True
    """Whether nodes have to stay; masks are brought into range instead, and an epsilon is the smallest number."""


def _outer(net: Network, x: str) -> str:
    return net.Div(net.Mul(x, 1e5), 1e5)


def _outlier_channel(net: Network, x: str) -> str:
    wide = np.ones(HIDDEN, np.float32)
    wide[5] = 3e5
    return net.Div(net.Mul(x, net.constant(wide)), net.constant(wide))


def _sum_of_squares(net: Network, x: str) -> str:
    squares = net.ReduceSum(net.Pow(net.Mul(x, 64.0), 2.0), [-1], keepdims=1)
    return net.Mul(net.Div(net.Mul(x, 64.0), net.Sqrt(squares)), 8.0)


def _mean_of_many(net: Network, x: str) -> str:
    total = net.ReduceSum(net.Add(x, 100.0), [1, 2], keepdims=1)
    return net.Add(x, net.Sub(net.Div(total, float(SEQUENCE * HIDDEN)), 100.0))


def _variance_by_squares(net: Network, x: str) -> str:
    off = net.Add(x, 60.0)
    mean = net.ReduceMean(off, axes=[-1])
    variance = net.Sub(net.ReduceMean(net.Mul(off, off), axes=[-1]), net.Mul(mean, mean))
    return net.Div(net.Sub(off, mean), net.Sqrt(net.Add(net.Abs(variance), 1e-5)))


def _far_origin(net: Network, x: str) -> str:
    return net.Sub(net.Add(x, 3000.0), 3000.0)


def _box_corners(net: Network, x: str) -> str:
    low, high = net.Sub(3000.0, net.Mul(x, 0.5)), net.Add(net.Mul(x, 0.5), 3000.0)
    return net.Sub(high, low)


def _zero_rows(net: Network, x: str) -> str:
    """x with every fourth position zero, as padding is."""
    return net.Mul(x, net.constant((np.arange(SEQUENCE) % 4 != 1).astype(np.float32)[:, None]))


def _epsilon(net: Network, x: str) -> str:
    zero = _zero_rows(net, x)
    return net.Add(x, net.Div(zero, net.Add(net.ReduceL2(zero, axes=[-1]), 1e-8)))


def _least_length(net: Network, x: str) -> str:
    zero = _zero_rows(net, x)
    return net.Add(x, net.Div(zero, net.Max(net.ReduceL2(zero, axes=[-1]), 1e-12)))


def _small_scale(net: Network, x: str) -> str:
    small = net.Mul(x, 1e-7)
    return net.Div(small, net.Sqrt(net.Add(net.ReduceMean(net.Mul(small, small), axes=[-1]), 1e-20)))


def _log_of_nothing(net: Network, x: str) -> str:
    share = net.Relu(net.Sub(net.Softmax(net.Mul(x, 4.0), axis=-1), 0.02))
    entropy = net.ReduceSum(net.Mul(share, net.Log(net.Add(share, 1e-10))), [-1], keepdims=1)
    return net.Add(x, entropy)


def _inverse_of_variance(net: Network, x: str) -> str:
    zero = _zero_rows(net, x)
    variance = net.ReduceMean(net.Mul(zero, zero), axes=[-1])
    return net.Add(x, net.Mul(zero, net.Pow(net.Add(variance, 1e-9), -0.5)))


def _running_sum(net: Network, x: str) -> str:
    total = net.CumSum(net.Add(x, 50.0), np.array(2, np.int64))
    before = net.Sub(total, net.Add(x, 50.0))
    return net.Sub(net.Sub(total, before), 50.0)


def _angles(net: Network, x: str) -> str:
    places = net.CumSum(net.Add(net.Mul(x, 0.0), 997.25), np.array(1, np.int64))
    return net.Add(x, net.Sin(places))


def _exponentials(net: Network, x: str) -> str:
    raised = net.Exp(net.Add(net.Mul(x, 2.0), 9.0))
    return net.Add(x, net.Mul(net.Div(raised, net.ReduceSum(raised, [-1], keepdims=1)), 8.0))


def _soft_plus(net: Network, x: str) -> str:
    return net.Sub(net.Div(net.Log(net.Add(net.Exp(net.Mul(x, 16.0)), 1.0)), 16.0), 0.4)


def _cubes(net: Network, x: str) -> str:
    far = net.Mul(x, 40.0)
    return net.Div(net.Div(net.Pow(far, 3.0), net.Add(net.Pow(far, 2.0), 1.0)), 40.0)


def _embeddings(net: Network, x: str) -> str:
    far = net.constant((np.arange(HIDDEN) % 7).astype(np.float32) * 1e4 + 3e4)
    twice = net.Add(net.Add(x, far), far)
    return net.Sub(net.Sub(twice, far), far)


def _branch(net: Network, x: str) -> str:
    """The same as `_outer` in both branches of an If."""
    some = net.Greater(net.ReduceMax(x, keepdims=0), 0.0)

    def body(side: str, by: float) -> onnx.GraphProto:
        name = f"{net.scope}/{side}"
        up = helper.make_node("Mul", [x, f"{name}/by"], [f"{name}/up"], name=f"{name}/Mul")
        down = helper.make_node("Div", [f"{name}/up", f"{name}/by"], [f"{name}/out"], name=f"{name}/Div")
        result = helper.make_tensor_value_info(f"{name}/out", TensorProto.FLOAT, None)
        factor = helper.make_tensor(f"{name}/by", TensorProto.FLOAT, [], [by])
        return helper.make_graph([up, down], side, [], [result], [factor])

    return net.If(some, then_branch=body("then", 2e5), else_branch=body("else", 3e5))


def _hide(net: Network, x: str, low: Callable[[str], str]) -> str:
    """x plus attention of each position over the others, some of which are hidden."""
    scores = net.MatMul(net.Mul(x, 0.125), net.Transpose(x, perm=[0, 2, 1]))
    return net.Add(x, net.MatMul(net.Softmax(low(scores), axis=-1), x))


def _lowest_chosen(net: Network, x: str) -> str:
    seen = net.constant(np.tril(np.ones((SEQUENCE, SEQUENCE), np.bool_)))
    return _hide(net, x, lambda scores: net.Where(seen, scores, float(np.finfo(np.float32).min)))


def _lowest_added_twice(net: Network, x: str) -> str:
    hidden = net.constant(np.triu(np.ones((SEQUENCE, SEQUENCE), np.float32), 1))
    mask = net.Mul(hidden, -1e9)
    return _hide(net, x, lambda scores: net.Add(net.Add(scores, mask), mask))


TRAPS: tuple[Trap, ...] = (
    Trap("activations of 1e5", _outer, (1, 3)),
    Trap("a channel times 3e5", _outlier_channel),
    Trap("a sum of squares", _sum_of_squares),
    Trap("a mean of many by their sum", _mean_of_many),
    Trap("a variance by E[x^2] - E[x]^2", _variance_by_squares),
    Trap("x + 3000 - 3000", _far_origin, (0, 3)),
    Trap("corners of boxes", _box_corners),
    Trap("epsilon 1e-8 of a divisor", _epsilon, kept=False),
    Trap("least length 1e-12", _least_length, kept=False),
    Trap("values of 1e-7", _small_scale),
    Trap("log of 0 + 1e-10", _log_of_nothing, kept=False),
    Trap("1 / sqrt(0 + 1e-9)", _inverse_of_variance, kept=False),
    Trap("a cumulative sum", _running_sum),
    Trap("angles of thousands", _angles),
    Trap("exponentials without their maximum", _exponentials),
    Trap("log(1 + exp(16 x))", _soft_plus),
    Trap("cubes", _cubes),
    Trap("embeddings of 9e4", _embeddings),
    Trap("inside an If", _branch),
    Trap("a mask of float32's lowest, chosen", _lowest_chosen, kept=False),
    Trap("a mask of -1e9, added twice", _lowest_added_twice, kept=False),
    Trap("activations of 1e5 in a ViT", _outer, (2,), "vit_b_16"),
)

SIZES: dict[str, dict[str, Any]] = {
    "bert_base": {"layers": 5, "hidden": HIDDEN, "heads": 2, "intermediate": 128, "vocabulary": 211, "positions": 32},
    "vit_b_16": {
        "layers": 5,
        "hidden": HIDDEN,
        "heads": 2,
        "intermediate": 128,
        "image": 32,
        "patch": 8,
        "classes": 16,
    },
}
"""Small ones of the same depth of structure: every node kind of the published models."""

STREAM = {
    "bert_base": "encoder.layer.{}.output.LayerNorm/LayerNormalization_output_0",
    "vit_b_16": "encoder.layers.encoder_layer_{}/Add_1_output_0",
}
"""The value behind a layer."""


def planted(trap: Trap) -> onnx.ModelProto:
    """Return the architecture in float32 with the trap behind its layers."""
    model = models.build(trap.architecture, batch=2, sequence=SEQUENCE, **SIZES[trap.architecture])
    for layer in trap.layers:
        _plant(model, STREAM[trap.architecture].format(layer), f"{TRAP}{layer}", trap.detour)
    nodes = in_order(list(model.graph.node))
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return model


def _plant(model: onnx.ModelProto, value: str, scope: str, detour: Detour) -> None:
    readers = [n for n in model.graph.node if value in n.input]
    assert readers, f"no value is called {value}"
    given = detour(Network(model, Form(), seeded(0), scope), value)
    for node in readers:
        for n, name in enumerate(node.input):
            if name == value:
                node.input[n] = given


def feeds(trap: Trap, count: int = 2) -> Sequence[dict[str, NDArray[np.generic]]]:
    """Return inputs for the model, such as it meets in real life."""
    sizes = SIZES[trap.architecture]
    return [models.example_inputs(trap.architecture, batch=2, sequence=SEQUENCE, seed=n, **sizes) for n in range(count)]
