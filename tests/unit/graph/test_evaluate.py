"""What has a meaning is folded."""

import numpy as np
import pytest
from onnx import helper

from onnxfuse import ops
from onnxfuse.graph.evaluate import MEANT, evaluate, is_foldable
from onnxfuse.graph.meanings import computed
from onnxfuse.ops import Operator, Trait


@pytest.mark.parametrize("entry", MEANT, ids=str)
def test_what_has_a_meaning_is_folded(entry: Operator) -> None:
    """Also far from 0 in float16, where onnx's reference rounds each step: exp(12) is infinite there."""
    assert is_foldable(entry, entry.domain)
    if entry.traits & {Trait.BROADCASTS, Trait.QUANTIZES} or entry in (ops.PRelu, ops.CastLike, ops.BitwiseNot):
        return
    x = np.array([-12, -1, 0, 0.5, 0.75], np.float16)
    if entry not in (ops.Asin, ops.Acos, ops.Atanh, ops.Acosh, ops.Sinh, ops.Cosh, ops.Tan):
        x = np.append(x, np.float16(12))
    node = helper.make_node(entry, ["x"], ["y"], domain=entry.domain)
    (found,) = evaluate([node], {"x": x}, ["y"], 22 if entry != ops.Swish else 24)
    (meant,) = computed(entry, 22, [x], {})
    np.testing.assert_array_equal(found, meant)
    assert found.dtype in (np.float16, np.bool_)
