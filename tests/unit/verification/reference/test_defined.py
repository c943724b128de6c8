"""ONNX Runtime's own operators in float64: what their definitions compute is what its kernels do."""

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

from onnxfuse.ops import ENTRIES
from onnxfuse.verification.reference.defined import DEFINED, operators
from onnxfuse.verification.reference.float64_reference import reference_for
from tests.support.definitions import inputs_of, model_of
from tests.support.small import run
from tests.unit.ops.definitions.test_norms import NORMS
from tests.unit.ops.definitions.test_products import PRODUCTS


@pytest.mark.parametrize("name", ["skip", "skip alone", "embeddings", "gated sum"])
def test_norms_are_computed_by_their_definitions(name: str) -> None:
    """All outputs, of those that are read; more exactly than the kernel does."""
    compare(NORMS[name])


@pytest.mark.parametrize("name", ["transposed", "gemm", "convolution"])
def test_products_are_computed_by_their_definitions(name: str) -> None:
    """With what stands around them."""
    compare(PRODUCTS[name])


def compare(text: str) -> None:
    """Compare a model in the reference with ONNX Runtime."""
    model = model_of(text)
    reference, inputs = reference_for(model, "float64", []), inputs_of(model)
    assert reference.evaluator is not None
    wide = {n: x.astype(np.float64) if x.dtype == np.float32 else x for n, x in inputs.items()}
    for ours, theirs in zip(reference.evaluator.run(None, wide), run(model, inputs), strict=True):
        assert ours.dtype == (np.float64 if theirs.dtype == np.float32 else theirs.dtype)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=3e-5 * max(1.0, np.abs(theirs).max()))


def test_forms_without_a_definition_are_not_computed() -> None:
    """The operator is named."""
    model = model_of("""g (float[2,3,4] a, float[3,2,5] b) => (float[2,4,5] y) {
      [p] y = com.microsoft.FusedMatMul <transBatchA = 1> (a, b) }""")
    evaluator = ReferenceEvaluator(model, new_ops=[*operators(ReferenceEvaluator)])
    with pytest.raises(NotImplementedError, match="FusedMatMul 'p' in a form that its definition does not know"):
        evaluator.run(None, {"a": np.zeros((2, 3, 4), np.float32), "b": np.zeros((3, 2, 5), np.float32)})


def test_only_operators_that_nothing_else_is_said_of_are_defined_here() -> None:
    """ONNX's own have an implementation, and meanings are computed as such."""
    assert {e.domain for e in DEFINED} >= {"com.microsoft"}
    assert all(e.domain and e.definition and not e.rows and not e.meaning for e in DEFINED)
    assert len(DEFINED) == sum(bool(e.domain and e.definition and not (e.rows or e.meaning)) for e in ENTRIES.values())
