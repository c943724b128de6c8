"""`python -m tests.support.verification.random_networks`: false alarms and planted faults on small random networks.

Networks with few outputs behind long sums: an image's mean, a few classes. Each is optimized and verified with several
seeds, and verified again with a fault in the fused file. `--count` and `--seeds` choose how many.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.passes import pipeline
from onnxfuse.verification import VerifyReport, verify

CPU = ["CPUExecutionProvider"]
ACTIVATIONS = ("Relu", "HardSwish", "Silu", "LeakyRelu", "Gelu", "Tanh")
EPSILON = 1e-5


@dataclass
class Network:
    """A network under construction; `value` is the last value, with `channels` columns or maps."""

    rng: np.random.Generator
    value: str = "x"
    channels: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def weight(self, *shape: int, deviation: float = 1.0, mean: float = 0.0) -> str:
        """Return the name of a new weight."""
        values = (mean + deviation * self.rng.standard_normal(shape)).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Append a node, and return its output."""
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        self.value = output
        return output

    def activation(self) -> None:
        """Append an activation, from one node or as exporters spell it."""
        x, kind = self.value, str(self.rng.choice(ACTIVATIONS))
        if kind == "Silu":
            self.add("Mul", x, self.add("Sigmoid", x))
        elif kind == "Gelu":
            self.add("Gelu", x, approximate="none")
        else:
            self.add(kind, x)

    def convolution(self, channels: int) -> None:
        """Append a convolution of a random kind, often with a norm, an activation and a residual."""
        start, kind = self.value, str(self.rng.choice(["3", "1", "depthwise", "stride"]))
        if kind == "depthwise":
            channels, group = self.channels, self.channels
        else:
            group = 1
        side, stride = (1, 1) if kind == "1" else (3, 2 if kind == "stride" else 1)
        terms = self.channels // group * side * side
        weight = self.weight(channels, self.channels // group, side, side, deviation=terms**-0.5)
        self.add(
            "Conv", start, weight, self.weight(channels, deviation=0.1),
            pads=[side // 2] * 4, strides=[stride] * 2, kernel_shape=[side] * 2, group=group,
        )  # fmt: skip
        if self.rng.random() < 0.6:
            scale, shift, mean = (self.weight(channels, deviation=0.2, mean=m) for m in (1.0, 0.0, 0.0))
            variance = numpy_helper.from_array(self.rng.uniform(0.5, 2, channels).astype(np.float32), f"n{scale}")
            self.weights.append(variance)
            self.add("BatchNormalization", self.value, scale, shift, mean, variance.name, epsilon=EPSILON)
        self.activation()
        if stride == 1 and channels == self.channels and self.rng.random() < 0.5:
            self.add("Add", self.value, start)
        self.channels = channels

    def linear(self, columns: int) -> None:
        """Append a linear layer of a random spelling."""
        weight = self.weight(self.channels, columns, deviation=self.channels**-0.5)
        bias = self.weight(columns, deviation=0.1)
        self.add("Add", self.add("MatMul", self.value, weight), bias)
        self.channels = columns

    def norm(self) -> None:
        """Append a LayerNormalization."""
        scale, shift = self.weight(self.channels, deviation=0.1, mean=1.0), self.weight(self.channels, deviation=0.1)
        self.add("LayerNormalization", self.value, scale, shift, axis=-1, epsilon=EPSILON)

    def model(self, shape: Sequence[int | str]) -> onnx.ModelProto:
        """Return the model."""
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        y = helper.make_tensor_value_info(self.value, TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "network", [x], [y], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def images(network: Network) -> onnx.ModelProto:
    """Convolutions, the mean of the image, a linear layer."""
    rng = network.rng
    network.channels, side = 3, int(rng.choice([16, 24, 32]))
    for _ in range(rng.integers(2, 5)):
        network.convolution(int(rng.choice([8, 16, 24, 32])))
    if rng.random() < 0.5:
        network.add("Flatten", network.add("GlobalAveragePool", network.value))
    else:
        axes = numpy_helper.from_array(np.array([2, 3], np.int64), "axes")
        network.weights.append(axes)
        network.add("ReduceMean", network.value, "axes", keepdims=0)
    network.linear(int(rng.choice([1, 2, 5, 10, 16, 100])))
    return network.model(("batch", 3, side, side))


def rows(network: Network) -> onnx.ModelProto:
    """Linear layers, activations, norms and residuals."""
    rng = network.rng
    width = network.channels = int(rng.choice([8, 32, 64, 128]))
    for _ in range(rng.integers(1, 5)):
        start, columns = network.value, network.channels
        if rng.random() < 0.4:
            network.norm()
        network.linear(int(rng.choice([16, 64, columns])))
        network.activation()
        if network.channels == columns and rng.random() < 0.6:
            network.add("Add", network.value, start)
    network.linear(int(rng.choice([1, 2, 5, 10, 100])))
    if rng.random() < 0.3:
        network.add("Softmax", network.value, axis=-1)
    return network.model(("batch", width))


def sequences(network: Network) -> onnx.ModelProto:
    """A layer of attention with a norm, the mean over the sequence, a linear layer."""
    rng = network.rng
    width = network.channels = int(rng.choice([16, 32, 64]))
    for _ in range(rng.integers(1, 3)):
        start = network.value
        network.norm()
        normed = network.value
        parts = []
        for _ in "qkv":
            network.value, network.channels = normed, width
            network.linear(width)
            parts.append(network.value)
        scores = network.add("MatMul", parts[0], network.add("Transpose", parts[1], perm=[0, 2, 1]))
        network.weights.append(numpy_helper.from_array(np.array(width**-0.5, np.float32), f"s{scores}"))
        network.add("MatMul", network.add("Softmax", network.add("Mul", scores, f"s{scores}"), axis=-1), parts[2])
        network.add("Add", network.value, start)
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    network.weights.append(axes)
    network.add("ReduceMean", network.value, "axes", keepdims=0)
    network.linear(int(rng.choice([1, 3, 10])))
    return network.model(("batch", "sequence", width))


KINDS: tuple[Callable[[Network], onnx.ModelProto], ...] = (images, images, rows, sequences)


def network(number: int) -> onnx.ModelProto:
    """Return the random network of this number; half of them are convolutional."""
    return KINDS[number % len(KINDS)](Network(np.random.default_rng(number)))


def optimized(number: int) -> onnx.ModelProto:
    """Return it optimized."""
    model = network(number)
    pipeline.run(model)
    return model


def _epsilon(model: onnx.ModelProto) -> bool:
    """Make the epsilon of a norm ten times as large."""
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "epsilon":
                attribute.f *= 10
                return True
    return False


def _weight(model: onnx.ModelProto) -> bool:
    """Make one matrix or filter larger by 1e-4 of itself."""
    tensor = next(t for t in model.graph.initializer if len(t.dims) > 1)
    tensor.CopyFrom(numpy_helper.from_array((numpy_helper.to_array(tensor) * np.float32(1.0001)), tensor.name))
    return True


def _half(model: onnx.ModelProto) -> bool:
    """Round a value in the middle to float16."""
    node = model.graph.node[len(model.graph.node) // 2]
    name, place = node.output[0], len(model.graph.node) // 2 + 1
    node.output[0] = f"{name}.exact"
    model.graph.node.insert(
        place, helper.make_node("Cast", [f"{name}.exact"], [f"{name}.half"], to=TensorProto.FLOAT16)
    )
    model.graph.node.insert(place + 1, helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    return True


def _tanh(model: onnx.ModelProto) -> bool:
    """Approximate a Gelu by the Tanh."""
    for node in model.graph.node:
        if node.op_type == "Gelu":
            del node.attribute[:]
            node.attribute.append(helper.make_attribute("approximate", "tanh"))
            return True
    return False


FAULTS: dict[str, Callable[[onnx.ModelProto], bool]] = {
    "epsilon ten times as large": _epsilon,
    "a weight off by 1e-4": _weight,
    "a value rounded to float16": _half,
    "tanh in a Gelu": _tanh,
}
"""Each changes the model, and returns whether it has the place for it."""


def judged(number: int, seed: int, fault: str = "") -> VerifyReport | None:
    """Return the verdict on the optimized network, or on one with a fault; None if it has no place for that."""
    if not fault:
        return verify(network(number), optimized(number), providers=CPU, seeds=(seed,))
    wrong = network(number)
    if not FAULTS[fault](wrong):
        return None
    pipeline.run(wrong)
    return verify(network(number), wrong, providers=CPU, seeds=(seed,))


@click.command(help=__doc__)
@click.option("--count", default=60, show_default=True)
@click.option("--seeds", default=3, show_default=True)
@click.option("--faults/--no-faults", default=True, show_default=True)
def main(count: int, seeds: int, *, faults: bool) -> None:
    """Print the false alarms and the faults that were missed."""
    reports = {(n, seed): judged(n, seed) for n in range(count) for seed in range(seeds)}
    alarms = [key for key, report in reports.items() if report is not None and not report.ok]
    used = [max(row.severity for row in r.outputs) for r in reports.values() if r is not None and r.ok]
    print(f"false alarms: {len(alarms)} of {len(reports)} {alarms}; the others use up to {max(used):.0%} of the budget")
    for fault in FAULTS if faults else ():
        verdicts = {n: report for n in range(count) if (report := judged(n, 0, fault)) is not None}
        missed = [n for n, report in verdicts.items() if report.ok]
        print(f"{fault}: caught {len(verdicts) - len(missed)} of {len(verdicts)}, missed {missed}", flush=True)


if __name__ == "__main__":
    main()
