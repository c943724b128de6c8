"""What is timed computes the right thing, whatever its shapes are."""

import numpy as np
import onnx

from onnxfuse.measure.timing.binding import bind, opened, ort_values, outputs_of
from onnxfuse.measure.timing.settings import DEFAULT
from tests.unit.measure.benchmark.test_compare import parsed

CPU = ["CPUExecutionProvider"]

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def test_what_is_timed_computes_the_right_thing(original: onnx.ModelProto) -> None:
    """The bound outputs hold what the session computes of the bound inputs: it is the model that is timed."""
    arrays = {"ids": np.array([[2, 0]]), "r": np.ones((1, 2, 4), np.float32)}
    session = opened(original, DEFAULT, CPU, fused=False)
    inputs = ort_values(arrays)
    outputs = outputs_of(session, inputs, "original")
    outputs["y"].update_inplace(np.zeros((1, 2, 4), np.float32))
    bind(session, inputs, outputs).run()
    np.testing.assert_array_equal(outputs["y"].numpy(), session.run(None, arrays)[0])


def test_outputs_of_other_shapes_than_declared_are_timed_as_they_run() -> None:
    """ONNX Runtime only warns of them where it allocates them itself, and refuses memory that is bound to them."""
    made = parsed("""g (float[n, 3] x, int64[r] shape) => (float[a, b, c] rank, float[7, 1, 3, 1] size, float[n, 3] w)
    { rank = Reshape (x, shape)  size = Neg (rank)  w = Neg (x) }""")
    values = ort_values({"x": np.ones((2, 3), np.float32), "shape": np.array([2, 1, 3, 1])})
    session = opened(made, DEFAULT, CPU, fused=False)
    outputs = outputs_of(session, values, "original")
    bound = bind(session, values, outputs)
    for _ in range(3):
        bound.run()
    assert sorted(v.shape() for v in bound.binding.get_outputs()) == [[2, 1, 3, 1], [2, 1, 3, 1], [2, 3]]
    assert outputs["w"].numpy().max() == -1, "what can be bound is: its memory is written"
