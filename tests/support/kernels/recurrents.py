"""Layers of recurrent nets, with shapes for their inputs: for the tests of their kernels."""

from dataclasses import dataclass

import numpy as np

from bench.cases import ops
from bench.cases.ops import HALF
from onnxfuse.model.fused import FusedOp

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
WAYS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@dataclass(frozen=True)
class Case:
    """A layer on so many sequences."""

    kind: str
    hidden: int
    steps: int
    batch: int
    terms: int = 24
    direction: str = "forward"
    bias: bool = True
    states: bool = True
    outputs: str = "yhc"
    """Those that are read."""
    dtype: int = HALF

    @property
    def lstm(self) -> bool:
        return self.kind == "LSTM"

    @property
    def names(self) -> list[str]:
        """Of the outputs, as the node has them."""
        return [n for n in ("yhc" if self.lstm else "yh") if n in self.outputs]

    def op(self) -> FusedOp:
        """Return the op whose body is the node."""
        states = [", ", ", ".join(("h0", "c0") if self.lstm else ("h0",))] if self.states else []
        inputs = ["x", "w", "r", *(["b"] if self.bias else []), *(["h0"] if self.states else [])]
        inputs += ["c0"] if self.states and self.lstm else []
        read = ["x", "w", "r", *(["b"] if self.bias or self.states else [])]
        if not self.bias and self.states:
            read[-1] = ""
        attributes = f'hidden_size = {self.hidden}, direction = "{self.direction}"'
        attributes += ", linear_before_reset = 1" if self.kind == "GRU" else ""
        every = ", ".join(n if n in self.outputs else f"unread_{n}" for n in ("yhc" if self.lstm else "yh"))
        text = f"{every} = {self.kind} <{attributes}> ({', '.join(read)}{', '.join(states)})"
        head = f"({', '.join(inputs)}) => ({', '.join(self.names)})"
        types = (self.dtype,) * len(inputs), (self.dtype,) * len(self.names)
        return ops.op(f"{head} {{ {text} }}", *types, "recurrent", opset=17)

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shapes of the inputs."""
        ways, rows = WAYS[self.direction], GATES[self.kind] * self.hidden
        state = (ways, self.batch, self.hidden)
        return [
            (self.steps, self.batch, self.terms), (ways, rows, self.terms), (ways, rows, self.hidden),
            *([(ways, 2 * rows)] if self.bias else []),
            *([state] * (2 if self.lstm else 1) if self.states else []),
        ]  # fmt: skip

    def inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Return random inputs, with weights of the size that training starts from."""
        scale = {1: 1.5 / self.terms**0.5, 2: 1.5 / self.hidden**0.5}
        made = [rng.standard_normal(s) * scale.get(i, 0.5 if i > 2 else 1.0) for i, s in enumerate(self.shapes())]
        return [x.astype(ops.NUMPY[self.dtype]) for x in made]

    def rounded(self, inputs: list[np.ndarray]) -> list[np.ndarray]:
        """Return the outputs by float64, with h rounded to the element type at each position, as a plain node does."""
        given = iter(x.astype(np.float64) for x in inputs)
        x, w, r = next(given), next(given), next(given)
        ways, rows, size = r.shape
        bias = next(given) if self.bias else np.zeros((ways, 2 * rows))
        h, c = (next(given, np.zeros((ways, self.batch, size))) for _ in range(2))
        every = np.zeros((self.steps, ways, self.batch, size))
        for way in range(ways):
            turned = self.direction == "reverse" or way == 1
            for t in range(self.steps)[:: -1 if turned else 1]:
                gates = x[t] @ w[way].T + bias[way, :rows], h[way] @ r[way].T + bias[way, rows:]
                h[way], c[way] = self._step(*gates, h[way], c[way])
                every[t, way] = h[way] = h[way].astype(ops.NUMPY[self.dtype]).astype(np.float64)
        return [{"y": every, "h": h, "c": c}[n] for n in self.names]

    def _step(self, inner: np.ndarray, back: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, r = (np.split(v, GATES[self.kind], axis=-1) for v in (inner, back))
        if self.kind == "RNN":
            return np.tanh(x[0] + r[0]), c
        if self.kind == "GRU":
            z, reset = _sigmoid(x[0] + r[0]), _sigmoid(x[1] + r[1])
            return (1 - z) * np.tanh(x[2] + reset * r[2]) + z * h, c
        i, o, f = (_sigmoid(x[n] + r[n]) for n in range(3))
        c = f * c + i * np.tanh(x[3] + r[3])
        return o * np.tanh(c), c


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def within_budget(case: Case, inputs: list[np.ndarray], got: list[np.ndarray]) -> None:
    """Assert the shapes, and at most twice the error of a node that rounds h at each position, and one rounding."""
    exact, plain = ops.truth(case.op(), inputs), case.rounded(inputs)
    for result, true, node in zip(got, exact, plain, strict=True):
        assert result.shape == true.shape
        assert result.dtype == ops.NUMPY[case.dtype]
        if result.size:
            own = np.abs(node - true).max()
            allowed = 2 * own + 2 * ops.ROUNDING[case.dtype] * np.abs(true) + 8 * ops.ARITHMETIC[case.dtype]
            off = np.abs(result.astype(np.float64) - true) - allowed
            assert (off <= 0).all(), f"{off.max()} above the budget, a node's own error is {own}"
