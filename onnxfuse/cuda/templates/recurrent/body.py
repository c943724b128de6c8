"""Parse a body of the recurrent template: one LSTM, GRU or RNN node with default activations."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import onnx

from onnxfuse import ops
from onnxfuse.cuda.isa.factors import BFLOAT16, FLOAT16, FactorType, factors_of
from onnxfuse.model.fused import FusedOp, Meaning
from onnxfuse.ops.registry import Cell
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError

FACTORS = (FLOAT16, BFLOAT16)
"""Supported types of factors."""


DIRECTIONS = {"forward": (1, False), "reverse": (1, True), "bidirectional": (2, False)}
"""Number of directions, and whether the first one is reversed; the second one always is."""
X, W, R, BIAS, LENGTHS, H, C, PEEPHOLES = range(8)
"""Indices of the node's inputs."""
USUAL = {
    "activation_alpha": [], "activation_beta": [], "input_forget": 0, "layout": 0, "linear_before_reset": 1,
}  # fmt: skip
"""Supported values of attributes other than the layer's size and direction."""


@dataclass(frozen=True)
class Layer:
    """A parsed body: the locations of its tensors among the op's, and its configuration."""

    operator: ops.Operator
    factors: FactorType
    hidden: int
    """Hidden size per direction."""
    ways: int
    """Number of directions."""
    reverse: bool
    """Whether the first direction is reversed."""
    x: int
    w: int
    r: int
    bias: int | None
    states: tuple[int | None, ...]
    """Indices of the initial h, and c, among the op's inputs; None: 0."""
    outputs: tuple[int | None, ...]
    """Indices of y and of the final h, and c, among the op's outputs; None: unused."""

    @property
    def rows(self) -> int:
        """Rows of a direction's weights."""
        return self.cell.gates * self.hidden

    @property
    def cell(self) -> Cell:
        """Its gates, states and activations."""
        assert self.operator.cell is not None
        return self.operator.cell


def parse_op(op: FusedOp) -> Layer:
    """Parse the body of `op`; raises `UnsupportedError` with the reason if no kernel supports it."""
    return _parse(op.meaning)


@lru_cache(maxsize=1024)
def _parse(meaning: Meaning) -> Layer:
    body = meaning.op().body
    nodes = [n for n in body.node if n.op_type != ops.Constant]
    entry = ops.operator(nodes[0].op_type, nodes[0].domain) if len(nodes) == 1 else None
    if entry is None or entry.cell is None:
        raise UnsupportedError(f"{plural(nodes, 'node')}, expected a recurrent layer alone")
    (node,) = nodes
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    ways, reverse = _direction(attributes)
    _require_usual(entry, entry.cell, ways, attributes)
    inputs, outputs = list(body.input), list(body.output)
    if not set(filter(None, node.input)) <= set(inputs):
        raise UnsupportedError(f"{node.op_type} of a constant of the body")
    slots = [inputs.index(name) if name else None for name in node.input] + [None] * 8
    if slots[LENGTHS] is not None or slots[PEEPHOLES] is not None:
        raise UnsupportedError(f"{node.op_type} with {'sequence_lens' if slots[PEEPHOLES] is None else 'peepholes'}")
    x, w, r = slots[X], slots[W], slots[R]
    if x is None or w is None or r is None:
        raise UnsupportedError(f"{node.op_type} without its weights")
    dtype = meaning.inputs[x]
    factors = factors_of(dtype, dtype)
    if factors not in FACTORS or {*meaning.inputs, *meaning.outputs} != {dtype}:
        raise UnsupportedError(f"{node.op_type} of {element_types.name(dtype)}, expected float16 or bfloat16")
    outputs_at = [outputs.index(name) if name in outputs else None for name in node.output] + [None] * 3
    hidden = int(attributes.get("hidden_size", 0))
    if hidden < 1:
        raise UnsupportedError(f"{node.op_type} without hidden_size")
    states, results = (slots[H], slots[C])[: entry.cell.states], tuple(outputs_at[: 1 + entry.cell.states])
    return Layer(entry, factors, hidden, ways, reverse, x, w, r, slots[BIAS], states, results)


def _direction(attributes: dict[str, object]) -> tuple[int, bool]:
    value = attributes.get("direction", b"forward")
    direction = value.decode() if isinstance(value, bytes) else str(value)
    if direction not in DIRECTIONS:
        raise UnsupportedError(f"the direction {direction}")
    return DIRECTIONS[direction]


def _require_usual(op_type: str, cell: Cell, ways: int, attributes: dict[str, object]) -> None:
    """Raise if an attribute has an unsupported value."""
    names = attributes.get("activations") or []
    assert isinstance(names, list)
    activations = tuple(a.decode().lower() for a in names)
    if activations not in ((), tuple(a.lower() for a in cell.activations) * ways):
        raise UnsupportedError(f"the activations {', '.join(activations)}")
    if "clip" in attributes:
        raise UnsupportedError(f"{op_type} with clip")
    defaults = {"linear_before_reset": 0 if op_type == ops.GRU else 1}
    for name, usual in USUAL.items():
        if (value := attributes.get(name, defaults.get(name, usual))) != usual:
            raise UnsupportedError(f"{op_type} with {name} = {value}, expected {usual}")
