"""Parts of a model, for bisecting."""

import numpy as np
import onnx

from onnxfuse.verification.localize.partition import submodel
from onnxfuse.verification.run import sessions
from tests.support import quantized_models
from tests.support.quantized_models import TOKENS

CPU = ["CPUExecutionProvider"]


def test_a_node_that_is_there_for_some_of_its_outputs_computes_the_others_under_other_names() -> None:
    """The scale of a DynamicQuantizeLinear is fed to the window of its integers."""
    original = quantized_models.dynamic(TOKENS, "QInt8", per_channel=False)
    node = next(n for n, one in enumerate(original.graph.node) if one.op_type == "DynamicQuantizeLinear")
    x = quantized_models.drawn(TOKENS, 1)
    feeds = {"x": x, "x_scale": np.array(7, np.float32), "x_zero_point": np.array(7, np.uint8)}
    part = submodel(original, [node], feeds, {"x_quantized": onnx.TypeProto()})
    (found,) = sessions.run(sessions.ort_session(part, CPU), feeds).values()
    assert (found.shape, found.max()) == (x.shape, 255), "by its own scale, not by the one that is fed"
