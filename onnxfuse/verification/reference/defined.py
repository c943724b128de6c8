"""ONNX Runtime's own operators in the reference, by the nodes that their entries define them by."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto, helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxfuse.graph.defined import write_definition
from onnxfuse.graph.graph import Graph
from onnxfuse.model.schema import opset_of
from onnxfuse.ops import ENTRIES, Operator
from onnxfuse.shapes.inference import infer

Array = npt.NDArray[Any]
Evaluator = Callable[[ModelProto], ReferenceEvaluator]

DEFINED = tuple(e for e in ENTRIES.values() if e.domain and e.definition and not (e.rows or e.meaning))
"""Those that nothing else is said of: the others are computed by their meanings."""


def operators(evaluator: Evaluator) -> tuple[type[OpRun], ...]:
    """Return the operators; `evaluator` computes what they are defined by."""
    return tuple(_operator(entry, evaluator) for entry in DEFINED)


def _operator(entry: Operator, evaluator: Evaluator) -> type[OpRun]:
    class Defined(OpRun):
        op_domain = entry.domain

        def run(
            self, *inputs: Array | None, linked_attributes: Mapping[str, Any] | None = None, **_unused: Any
        ) -> tuple[Array | None, ...]:
            """Return the outputs, None for those without a name.

            Raises NotImplementedError for a node that the definition does not know.
            """
            if linked_attributes:
                raise NotImplementedError(f"{entry} with attributes of a function")
            return _computed(self.onnx_node, inputs, self.run_params["opsets"], evaluator)

        def _run(self, *inputs: Array | None) -> tuple[Array | None, ...]:
            return self.run(*inputs)

    return type(str(entry), (Defined,), {})


def _computed(
    node: NodeProto, inputs: Sequence[Array | None], opsets: Mapping[str, int], evaluator: Evaluator
) -> tuple[Array | None, ...]:
    arrays = {name: np.asarray(x) for name, x in zip(node.input, inputs, strict=True) if name and x is not None}
    model = _alone(node, arrays, opsets)
    while any(n.op_type == node.op_type and n.domain == node.domain for n in model.graph.node):
        if not _written(model):
            raise NotImplementedError(f"{node.op_type} '{node.name}' in a form that its definition does not know")
    while _written(model):  # one is defined by another
        continue
    wanted = [name for name in node.output if name]
    found = dict(zip(wanted, evaluator(model).run(wanted, arrays), strict=True))
    return tuple(found.get(name) for name in node.output)


def _alone(node: NodeProto, arrays: Mapping[str, Array], opsets: Mapping[str, int]) -> ModelProto:
    """Return a model of the node alone, whose inputs have the types of the arrays."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in arrays.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = helper.make_graph([node], "defined", inputs, outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()])


def _written(model: ModelProto) -> bool:
    """Write the definitions of a model's nodes; return whether there were any."""
    graph, constants = Graph(model.graph, infer(model).graph, opset_of(model)), dict[bytes, str]()
    written = [write_definition(graph, n, constants) for n in list(graph.nodes) if n.entry in DEFINED]
    graph.commit()
    return any(written)
