"""Sizes that never come together say nothing."""

import onnx
import pytest

from onnxfuse import cuda
from onnxfuse.cuda import SUPPORTED
from onnxfuse.graph import concrete_shapes
from onnxfuse.model.fused import fused_ops
from tests.support.small import parse
from tests.unit.fusion.region.test_proof import optimized
from tests.unit.fusion.steps.test_extra_outputs import EXPORTED


def test_sizes_that_never_come_together_say_nothing() -> None:
    """The planner tells which two: a name that the model does not relate to others takes the size that they ask for."""
    made, _ = optimized(parse(EXPORTED))
    ((name, (node,)),) = (
        (n, nodes) for n, nodes in concrete_shapes.fused_nodes(made.graph).items() if n.startswith("Attention")
    )

    def reason(total: int) -> str | None:
        sized = concrete_shapes.with_sizes(made, {"N": 3, "P": 9, "C": total})[0]
        types = concrete_shapes.every_type(onnx.shape_inference.infer_shapes(sized).graph)
        shapes = concrete_shapes.input_shapes(node, types)
        assert shapes is not None
        return cuda.unplanned(fused_ops(made)[name], shapes, [(arch, True) for arch in SUPPORTED])

    assert reason(10) is None
    with pytest.raises(cuda.DisagreeingError) as wrong:
        reason(9)
    assert (wrong.value.found, wrong.value.expected) == (9, 10)
