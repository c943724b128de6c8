"""A body of the recurrent template taken apart: one node, an LSTM, a GRU or an RNN with the activations they have by
themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import onnx
from onnx import TensorProto

from onnxfuse.model.fused import FusedOp, Meaning
from onnxfuse.support.plurals import plural
from onnxfuse.symbolic import element_types
from onnxfuse.symbolic.element_types import UnsupportedError

TYPES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)
"""Element types that a layer is computed in."""


@dataclass(frozen=True)
class Kind:
    """A kind of cell."""

    cell: str
    """The struct of cells.cuh that computes it."""
    gates: int
    states: int
    """1: what it gives, h; 2: what it keeps, c, beside it."""
    activations: tuple[str, ...]
    """Of a direction, in lower case."""


KINDS = {
    "LSTM": Kind("Lstm", 4, 2, ("sigmoid", "tanh", "tanh")),
    "GRU": Kind("Gru", 3, 1, ("sigmoid", "tanh")),
    "RNN": Kind("Rnn", 1, 1, ("tanh",)),
}
"""By operator."""
DIRECTIONS = {"forward": (1, False), "reverse": (1, True), "bidirectional": (2, False)}
"""How many directions, and whether the first one begins at the end; a second one does."""
X, W, R, BIAS, LENGTHS, H, C, PEEPHOLES = range(8)
"""Places among the node's inputs."""
USUAL = {
    "activation_alpha": [], "activation_beta": [], "input_forget": 0, "layout": 0, "linear_before_reset": 1,
}  # fmt: skip
"""What the kernel takes of attributes beside those that say the layer's size and direction."""


@dataclass(frozen=True)
class Layer:
    """A body taken apart: where its tensors are among the op's, and what it computes of them."""

    kind: Kind
    dtype: int
    hidden: int
    """Cells of a direction."""
    ways: int
    """Directions."""
    reverse: bool
    """Whether the first one begins at the end."""
    x: int
    w: int
    r: int
    bias: int | None
    states: tuple[int | None, ...]
    """What h, and c, are before the first position; None: 0."""
    outputs: tuple[int | None, ...]
    """Positions of y and of what h, and c, are in the end among the op's outputs; None: nobody reads it."""

    @property
    def rows(self) -> int:
        """Rows of the weights of a direction."""
        return self.kind.gates * self.hidden


def take_apart(op: FusedOp) -> Layer:
    """Return the body of `op` taken apart; raises `UnsupportedError` with the reason where no kernel fits it."""
    return _taken_apart(op.meaning)


@lru_cache(maxsize=1024)
def _taken_apart(meaning: Meaning) -> Layer:
    body = meaning.op().body
    nodes = [n for n in body.node if n.op_type != "Constant"]
    if len(nodes) != 1 or nodes[0].op_type not in KINDS or nodes[0].domain not in ("", "ai.onnx"):
        raise UnsupportedError(f"{plural(nodes, 'node')}, expected one of {', '.join(KINDS)}")
    (node,) = nodes
    kind = KINDS[node.op_type]
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    ways, reverse = _direction(attributes)
    _require_usual(node.op_type, kind, ways, attributes)
    inputs, outputs = list(body.input), list(body.output)
    if not set(filter(None, node.input)) <= set(inputs):
        raise UnsupportedError(f"{node.op_type} of a constant of the body")
    places = [inputs.index(name) if name else None for name in node.input] + [None] * 8
    if places[LENGTHS] is not None or places[PEEPHOLES] is not None:
        raise UnsupportedError(f"{node.op_type} with {'sequence_lens' if places[PEEPHOLES] is None else 'peepholes'}")
    x, w, r = places[X], places[W], places[R]
    if x is None or w is None or r is None:
        raise UnsupportedError(f"{node.op_type} without its weights")
    dtype = meaning.inputs[x]
    if dtype not in TYPES or {*meaning.inputs, *meaning.outputs} != {dtype}:
        raise UnsupportedError(f"{node.op_type} of {element_types.name(dtype)}, expected float16 or bfloat16")
    made = [outputs.index(name) if name in outputs else None for name in node.output] + [None] * 3
    hidden = int(attributes.get("hidden_size", 0))
    if hidden < 1:
        raise UnsupportedError(f"{node.op_type} without hidden_size")
    states, given = (places[H], places[C])[: kind.states], tuple(made[: 1 + kind.states])
    return Layer(kind, dtype, hidden, ways, reverse, x, w, r, places[BIAS], states, given)


def _direction(attributes: dict[str, object]) -> tuple[int, bool]:
    said = attributes.get("direction", b"forward")
    direction = said.decode() if isinstance(said, bytes) else str(said)
    if direction not in DIRECTIONS:
        raise UnsupportedError(f"the direction {direction}")
    return DIRECTIONS[direction]


def _require_usual(op_type: str, kind: Kind, ways: int, attributes: dict[str, object]) -> None:
    """Raise where an attribute is another one than the kernel takes."""
    said = attributes.get("activations") or []
    assert isinstance(said, list)
    activations = tuple(a.decode().lower() for a in said)
    if activations not in ((), kind.activations * ways):
        raise UnsupportedError(f"the activations {', '.join(activations)}")
    if "clip" in attributes:
        raise UnsupportedError(f"{op_type} with clip")
    defaults = {"linear_before_reset": 0 if op_type == "GRU" else 1}
    for name, usual in USUAL.items():
        if (value := attributes.get(name, defaults.get(name, usual))) != usual:
            raise UnsupportedError(f"{op_type} with {name} = {value}, expected {usual}")
