"""The shapes that fused ops have when ONNX Runtime runs them: inference leaves some open, of cut tables and masks."""

from collections.abc import Iterable, Mapping

import onnx

from onnxfuse.graph.concrete_shapes import Shape, fused_nodes
from onnxfuse.verification.inputs.inputs import Array
from onnxfuse.verification.run import sessions

ASKED = "shape_of."
"""Before the name of a value: the output that gives its shape."""


def input_shapes(model: onnx.ModelProto, cases: Iterable[Mapping[str, Array]]) -> dict[str, set[tuple[Shape, ...]]]:
    """Return by fused op the shapes of its inputs, in any case, on the CPU.

    What stands in bodies of If, Loop and Scan is not seen. Raises ModelError, what ONNX Runtime raises.
    """
    asked = onnx.ModelProto()
    asked.CopyFrom(model)
    known = {t.name: tuple(t.dims) for t in model.graph.initializer}
    top = {o for node in model.graph.node for o in node.output} | {i.name for i in model.graph.input}
    nodes = {
        op: seen
        for op, found in fused_nodes(model.graph).items()
        if (seen := [n for n in found if all(v in known or v in top for v in n.input)])
    }
    for value in sorted({v for found in nodes.values() for node in found for v in node.input} - set(known)):
        asked.graph.node.add(op_type="Shape", input=[value], output=[ASKED + value])
        asked.graph.output.append(onnx.helper.make_tensor_value_info(ASKED + value, onnx.TensorProto.INT64, None))
    session = sessions.ort_session(asked, [sessions.CPU])
    shapes: dict[str, set[tuple[Shape, ...]]] = {op: set() for op in nodes}
    for given in cases:
        got = sessions.run(session, given, [o.name for o in asked.graph.output if o.name.startswith(ASKED)])
        here = known | {name.removeprefix(ASKED): tuple(map(int, value)) for name, value in got.items()}
        for op, found in nodes.items():
            shapes[op] |= {tuple(here[v] for v in node.input) for node in found}
    return shapes
