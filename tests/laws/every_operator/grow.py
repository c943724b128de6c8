"""A random graph that grows node by node: each node is run at once, so that shapes and types need no telling."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.model.nested import captured
from tests.support.kernels.random_models import Maker

MOST, LARGEST = 4000, 500.0
"""Elements of a value, and the largest number in one: half types still have digits for it."""
EXTENTS = (1, 1, 1, 2, 3, 4, 5, 8)
OPSETS = range(7, 26)
"""Those that ONNX Runtime promises to run, up to the newest that its kernels are written for."""
TYPES = (TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
LOCAL = "local"
RUN: dict[int, int] = {TensorProto.BFLOAT16: TensorProto.FLOAT}
"""What a type is computed in: for bfloat16 ONNX Runtime has hardly a kernel on the CPU."""

NEVER_EMPTY = (
    "MatMul",
    "QLinearMatMul",
    "MatMulInteger",
    "Gemm",
    "Einsum",
    "FusedMatMul",
    "LSTM",
    "GRU",
    "RNN",
    "InstanceNormalization",
)
"""Of no numbers ONNX Runtime's products are, in some element types, memory that nobody has written; the others end the
process."""


class RefusedError(Exception):
    """An operator does not take what it was given, or makes of it what no graph goes on with."""


def options() -> ort.SessionOptions:
    """Return what a graph is run with: as it is written, on one thread, without a word."""
    made = ort.SessionOptions()
    made.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    made.intra_op_num_threads = made.inter_op_num_threads = 1
    made.log_severity_level = 4
    return made


@functools.cache
def attributes_of(op: str, opset: int) -> frozenset[str]:
    """Return the attributes that an operator has in an operator set; RefusedError where it is none of it."""
    try:
        schema = onnx.defs.get_schema(op, opset)
    except onnx.defs.SchemaError:
        raise RefusedError(op) from None
    if schema.deprecated:
        raise RefusedError(op)
    return frozenset(schema.attributes)


@dataclass
class Grower(Maker):
    """A graph under construction, with the numbers behind each value."""

    opset: int = 17
    found: dict[str, np.ndarray] = field(default_factory=dict)
    """What each value is."""
    names: dict[tuple[str, int], str] = field(default_factory=dict)
    """What an input's axis is called."""
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    """The functions of the domain LOCAL that nodes call."""

    @property
    def numpy(self) -> np.dtype:
        """The type that the graph is about, as it is computed here."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(RUN.get(self.dtype, self.dtype)))

    def values(self, shape: int | Sequence[int], scale: float = 1.0) -> np.ndarray:
        """Return numbers of both signs, in 16ths, none 0: what is compared is not decided by a rounding."""
        drawn = self.rng.integers(1, 33, shape) * self.rng.choice((-1, 1), shape) / 16 * scale
        return np.asarray(drawn).astype(self.numpy)

    def input(self, shape: int | Sequence[int], array: np.ndarray | None = None) -> str:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = self.found[name] = self.values(shape) if array is None else array
        return name

    def constant(self, array: np.ndarray) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(array, order="C"), name))
        self.found[name] = np.asarray(array)
        return name

    def number(self, value: float) -> str:
        """Return a constant of the graph's type: a scalar, or one of some axes of 1."""
        return self.constant(np.full((1,) * self.pick((0, 0, 1, 1, 2)), value, self.numpy))

    def shape(self, value: str) -> tuple[int, ...]:
        return self.found[value].shape

    def is_float(self, value: str) -> bool:
        return self.found[value].dtype == self.numpy

    def any(self, *, floats: bool = True, least: int = 0, most: int = 7) -> str:
        """Return a value in hand, later ones more often; RefusedError where there is none such."""
        here = [v for v in self.in_hand() if least <= self.found[v].ndim <= most and (not floats or self.is_float(v))]
        if not here:
            raise RefusedError
        return self.pick(here[-3:] if self.chance(0.7) else here)

    def of_kind(self, kinds: str, *, least: int = 0) -> str:
        """Return a value whose numpy kind is one of these letters; RefusedError where there is none such."""
        here = [v for v in self.in_hand() if self.found[v].dtype.kind in kinds and self.found[v].ndim >= least]
        if not here:
            raise RefusedError
        return self.pick(here[-3:] if self.chance(0.7) else here)

    def in_hand(self) -> list[str]:
        return [*self.feeds, *(o for n in self.nodes for o in n.output if o in self.found)]

    def add(  # type: ignore[override]  # its outputs are counted, not named
        self, op: str, inputs: Sequence[str], *, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> Any:
        """Add a node; return its output, a list where there are more. RefusedError where it does not run."""
        if not domain:
            unknown = set(attributes) - attributes_of(op, self.opset)
            if unknown:
                raise RefusedError(f"{op} has no {unknown}")
        names = [f"v{len(self.nodes)}{'_' * i}" for i in range(outputs)]
        node = helper.make_node(op, list(inputs), names, f"n{len(self.nodes)}", domain=domain, **attributes)
        if self._is_run_by_accident(op, inputs, attributes):
            raise RefusedError
        self.add_nodes([node], names)
        return names[0] if outputs == 1 else names

    def add_nodes(self, nodes: list[onnx.NodeProto], names: list[str]) -> None:
        """Add nodes that end in tensors of these names, by values of any kind. RefusedError if they do not run."""
        arrays = self._run(nodes, names)
        for name, array in zip(names, arrays, strict=True):
            self._check(array)
            self.found[name] = array
        self.nodes.extend(nodes)

    def _is_run_by_accident(self, op: str, inputs: Sequence[str], attributes: Mapping[str, Any]) -> bool:
        """Return whether ONNX Runtime makes of these operands what no definition says, and what nobody means."""
        read = [self.found.get(v) for v in inputs]
        if op in NEVER_EMPTY and any(array is not None and not array.size for array in read):
            return True
        if op.startswith("Reduce") and not self.found[inputs[0]].size:
            # Of no numbers it keeps the extents of axes that are counted from the end.
            axes = attributes.get("axes", self.found[inputs[1]] if len(inputs) > 1 else ())
            return bool(np.any(np.asarray(axes) < 0))
        # An extent that is computed and happens to be 0 copies the one that it takes the place of.
        return op == "Reshape" and 0 in self.found[inputs[1]] and inputs[1] not in {t.name for t in self.weights}

    def along(self, op: str, x: str, axes: Iterable[int], attribute: str = "axes", **attributes: Any) -> str:
        """Add a node whose axes are an attribute or an input, as the operator set has it."""
        if attribute in attributes_of(op, self.opset):
            named: dict[str, Any] = {attribute: [int(a) for a in axes]}
            return self.add(op, [x], **named, **attributes)
        return self.add(op, [x, self.ints(*axes)], **attributes)

    def _run(self, nodes: list[onnx.NodeProto], names: list[str]) -> list[np.ndarray]:
        weights = {t.name: t for t in self.weights}
        made = {o for n in nodes for o in n.output}
        read = dict.fromkeys(v for n in nodes for v in (*n.input, *captured(n)) if v and v not in made)
        graph = helper.make_graph(
            nodes,
            "one",
            [
                helper.make_tensor_value_info(v, helper.np_dtype_to_tensor_dtype(self.found[v].dtype), self.shape(v))
                for v in read
                if v not in weights
            ],
            [helper.make_empty_tensor_value_info(o) for o in names],
            [weights[v] for v in read if v in weights],
        )
        try:
            session = ort.InferenceSession(finished(graph, self.opset, self.functions).SerializeToString(), options())
            return session.run(None, {v: self.found[v] for v in read if v not in weights})
        except Exception as error:  # ONNX Runtime has a class for each kind of refusal, and none above them
            raise RefusedError(f"{error}") from None

    def _check(self, array: np.ndarray) -> None:
        if not isinstance(array, np.ndarray) or array.size > MOST or array.ndim > 7 or array.dtype.kind not in "fiub":
            raise RefusedError
        if array.dtype.kind == "f":
            size = np.abs(array.astype(np.float64))
            if not np.isfinite(size).all() or size.max(initial=0) > LARGEST:
                raise RefusedError


def finished(graph: onnx.GraphProto, opset: int, functions: Sequence[onnx.FunctionProto] = ()) -> onnx.ModelProto:
    """Return a model of a graph, of an age that the operator set goes with."""
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    if functions:
        imports.append(helper.make_opsetid(LOCAL, 1))
    version = 8 if opset < 19 else 10
    return helper.make_model(graph, opset_imports=imports, ir_version=version, functions=functions)
