"""`compare` on the stand-in CUDA libraries: what only a CUDA session takes."""

from typing import Any

import numpy as np
import onnx

from onnxfuse.support.errors import UsageError
from onnxfuse.verification.compare.compare import compare
from tests.support import fused_models, stand_in_kernels
from tests.support.scenarios import FakeCuda

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]


def sixth_row() -> onnx.ModelProto:
    """An export whose constants are those of the length that it was traced with."""
    return onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[n, 4] x) => (float[1, 4] y) <int64[1] sixth = {5}> { r = Relu (x)  y = Gather (r, sixth) }""")


def index_out_of_range() -> Any:
    model = sixth_row()
    report = compare(model, model, providers=CUDA, shapes={"n": (7, 2, 8)})
    told = ""
    try:
        compare(model, model, [{"x": np.ones((2, 4), np.float32)}], providers=CUDA)
    except UsageError as error:
        told = str(error)
    return {"notes": [[c.shapes["x"][0], c.note] for c in report.cases], "truth": report.truth, "told": told}


def test_an_index_that_only_cuda_does_not_look_at_has_no_truth(on_fake_cuda: FakeCuda) -> None:
    """The case is left out and told, the others keep their truth in float64; given inputs are asked about."""
    facts = on_fake_cuda(index_out_of_range)
    why = "the original runs, but has no true result"
    assert {rows: why in note for rows, note in facts["notes"]} == {7: False, 2: True, 8: False}
    assert all(not note for rows, note in facts["notes"] if rows != 2)
    assert facts["truth"] == "float64"
    assert why in facts["told"]
    assert "out of data bounds" in facts["told"]


def without_rows() -> Any:
    stand_in_kernels.install()
    x = np.empty((0, 8), np.float32)
    found = {}
    for model, more in ((fused_models.chain(), {"b": np.ones(8, np.float32)}), (fused_models.branches(), {"c": True})):
        report = compare(model, model, [{"x": x} | {k: np.asarray(v) for k, v in more.items()}], providers=CUDA)
        counts = {k.op: [k.calls, k.launches] for k in report.kernels}
        found[model.graph.name] = {
            "counts": counts,
            "problems": list(report.problems),
            "branch told": bool(report.never_ran),
        }
    return found


def test_a_kernel_that_got_no_elements_was_called_and_one_in_another_branch_was_not(on_fake_cuda: FakeCuda) -> None:
    """A detector that found nothing launches nothing, and is not wrong for it; a branch that nobody took is told."""
    facts = on_fake_cuda(without_rows)
    assert facts["chain"] == {
        "counts": {"BiasRelu_1": [1, 0], "TwiceTanh_2": [1, 0], "Negate_3": [1, 0]},
        "problems": [],
        "branch told": False,
    }
    assert facts["branches"] == {
        "counts": {"Negate_3": [1, 0], "TwiceTanh_2": [0, 0]},
        "problems": [],
        "branch told": True,
    }
