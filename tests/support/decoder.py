"""A small drawn decoder with growing caches, and what it says: the token of the greatest logit, step after step."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Arrays = Mapping[str, np.ndarray]
LAYERS, WIDTH, INNER, HEADS, GROUPS, SIZE, VOCABULARY, BEFORE = 2, 64, 128, 4, 2, 16, 97, 3
CACHES = tuple(f"past_{what}_{n}" for n in range(LAYERS) for what in ("keys", "values"))


class _Builder:
    """Nodes and drawn weights of a graph."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.rng = np.random.default_rng(54)
        self.dtype = np.dtype(dtype)

    def op(self, operator: str, *inputs: str, count: int = 1, **attributes: Any) -> list[str]:
        made = [f"{operator.lower()}_{len(self.nodes)}_{i}" for i in range(count)]
        self.nodes.append(helper.make_node(operator, inputs, made, **attributes))
        return made

    def one(self, operator: str, *inputs: str, **attributes: Any) -> str:
        return self.op(operator, *inputs, **attributes)[0]

    def constant(self, array: npt.ArrayLike, dtype: npt.DTypeLike | None = None) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype or self.dtype), name))
        return name

    def axes(self, *numbers: int) -> str:
        return self.constant(numbers, np.int64)

    def linear(self, x: str, terms: int, columns: int) -> str:
        return self.one("MatMul", x, self.constant(self.rng.standard_normal((terms, columns)) * 2 / terms**0.5))

    def norm(self, x: str) -> str:
        mean = self.one("ReduceMean", self.one("Mul", x, x), self.axes(-1))
        root = self.one("Sqrt", self.one("Add", mean, self.constant(1e-6)))
        return self.one("Mul", self.one("Div", x, root), self.constant(1 + 0.1 * self.rng.standard_normal(WIDTH)))

    def rotated(self, x: str, cos: str, sin: str) -> str:
        a, b = self.op("Split", x, count=2, axis=-1, num_outputs=2)
        turned = self.one("Concat", self.one("Neg", b), a, axis=-1)
        return self.one("Add", self.one("Mul", x, cos), self.one("Mul", turned, sin))

    def layer(self, x: str, n: int, cos: str, sin: str) -> tuple[str, str, str]:
        """Return the next x, and the caches of the next step."""
        h = self.norm(x)
        q, k, v = (
            self.one("Transpose", self.one("Reshape", made, self.axes(1, 1, -1, SIZE)), perm=[0, 2, 1, 3])
            for made in (self.linear(h, WIDTH, heads * SIZE) for heads in (HEADS, GROUPS, GROUPS))
        )
        keys, values = (
            self.one("Concat", past, new, axis=2)
            for past, new in zip(CACHES[2 * n : 2 * n + 2], (self.rotated(k, cos, sin), v), strict=True)
        )
        length = self.one("Slice", self.one("Shape", keys), self.axes(2), self.axes(3))
        wide = self.one("Concat", self.axes(1, GROUPS, HEADS // GROUPS), length, self.axes(SIZE), axis=0)
        flat = self.axes(1, HEADS, -1, SIZE)
        all_keys, all_values = (
            self.one("Reshape", self.one("Expand", self.one("Unsqueeze", c, self.axes(2)), wide), flat)
            for c in (keys, values)
        )
        scores = self.one("MatMul", self.rotated(q, cos, sin), self.one("Transpose", all_keys, perm=[0, 1, 3, 2]))
        weights = self.one("Softmax", self.one("Div", scores, self.constant(SIZE**0.5)), axis=-1)
        y = self.one("Transpose", self.one("MatMul", weights, all_values), perm=[0, 2, 1, 3])
        x = self.one("Add", x, self.linear(self.one("Reshape", y, self.axes(1, 1, WIDTH)), WIDTH, WIDTH))
        h = self.norm(x)
        gate = self.linear(h, WIDTH, INNER)
        gate = self.one("Mul", self.one("Mul", gate, self.one("Sigmoid", gate)), self.linear(h, WIDTH, INNER))
        return self.one("Add", x, self.linear(gate, INNER, WIDTH)), keys, values


def decoder(dtype: npt.DTypeLike = np.float32) -> onnx.ModelProto:
    """Return one step of the decoder: logits, and caches that have grown by one."""
    made = _Builder(dtype)
    x = made.one("Gather", made.constant(made.rng.standard_normal((VOCABULARY, WIDTH))), "ids")
    rates = made.constant(10_000.0 ** (-np.arange(0, SIZE, 2) / SIZE), np.float32)
    angles = made.one("Mul", made.one("Cast", made.one("Unsqueeze", "position", made.axes(-1)), to=1), rates)
    kind = helper.np_dtype_to_tensor_dtype(made.dtype)
    cos, sin = (
        made.one("Cast", made.one("Unsqueeze", made.one("Concat", f, f, axis=-1), made.axes(1)), to=kind)
        for f in (made.one("Cos", angles), made.one("Sin", angles))
    )
    kept: list[str] = []
    for n in range(LAYERS):
        x, *caches = made.layer(x, n, cos, sin)
        kept += caches
    logits = made.linear(made.norm(x), WIDTH, VOCABULARY)

    def cache(name: str, length: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, [1, GROUPS, length, SIZE])

    tokens = [helper.make_tensor_value_info(name, TensorProto.INT64, [1, 1]) for name in ("ids", "position")]
    outputs = [helper.make_tensor_value_info(logits, kind, [1, 1, VOCABULARY]), *(cache(k, "Q") for k in kept)]
    graph = helper.make_graph(made.nodes, "decoder", [*tokens, *(cache(c, "P") for c in CACHES)], outputs, made.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def generate(step: Callable[[Arrays], list[np.ndarray]], steps: int, dtype: npt.DTypeLike = np.float32) -> list[int]:
    """Return the tokens that a decoder says, each the next step's input, from drawn caches on."""
    rng = np.random.default_rng(0)
    caches = {c: rng.standard_normal((1, GROUPS, BEFORE, SIZE)).astype(dtype) for c in CACHES}
    said = [1]
    for n in range(steps):
        logits, *grown = step({"ids": np.array([[said[-1]]]), "position": np.array([[BEFORE + n]]), **caches})
        caches = dict(zip(CACHES, grown, strict=True))
        said.append(int(logits.argmax()))
    return said[1:]
