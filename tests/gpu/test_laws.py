"""The random graphs of tests/laws on a real GPU: every fused op runs as its kernel, and is right."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import onnxfuse
from onnxfuse.runtime import cuda_unusable
from tests.support.random_graphs import ANCHORS, models
from tests.support.small import Arrays, assert_same_numbers, halved, optimize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(cuda_unusable() is not None, reason=f"needs a GPU: {cuda_unusable()}"),
]

EXACT_PRODUCTS = [("CUDAExecutionProvider", {"use_tf32": "0"})]
"""TF32 would drown in its own rounding what a wrong kernel does."""


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("anchor", ANCHORS)
@given(data=st.data())
@settings(max_examples=12)
def test_kernels_compute_what_the_nodes_compute(anchor: str, dtype: str, data: st.DataObject) -> None:
    """Against float64, the fused model errs at most twice as much as the original, plus one rounding step."""
    model = data.draw(models(anchor))
    model = halved(model) if dtype == "float16" else model
    made, _ = optimize(model)
    assert_same_numbers(model, made, folded=anchor == "conv_batchnorm", run=_run)


def _run(model: onnx.ModelProto, inputs: Arrays) -> list[np.ndarray]:
    session = onnxfuse.session(model, providers=EXACT_PRODUCTS)
    assert [p.reason for p in session.fused if p.runs_as != "kernel"] == []
    return list(session.run(None, dict(inputs)))
