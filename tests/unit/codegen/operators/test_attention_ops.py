"""MultiHeadAttention in a body: the forms that a program can say, and the refusals of the others."""

import pytest

from bench.cases import ops
from bench.cases.ops import HALF
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.program import Attend
from onnxfuse.symbolic.element_types import UnsupportedError

NAMES = ("q", "k", "v", "a", "b", "c", "d")


def attend(operands: str, attributes: str = "num_heads = 2") -> Attend:
    """Return the attention of these operands: q, k, v, a to d, or none."""
    given = [name for name in NAMES if name in operands.replace(",", " ").split()]
    text = f"({', '.join(given)}) => (y) {{ y = com.microsoft.MultiHeadAttention <{attributes}> ({operands}) }}"
    value = read.program(ops.op(text, (HALF,) * len(given), (HALF,))).values[-1]
    assert isinstance(value, Attend)
    return value


def test_queries_keys_values_and_a_bias() -> None:
    """The bias is the sixth input."""
    assert attend("q, k, v") == Attend((0, 1, 2), 2, 0.0, False, HALF)
    assert attend("q, k, v, , , a") == Attend((0, 1, 2, 3), 2, 0.0, False, HALF)
    assert attend("q, k, v", "num_heads = 1, scale = 0.25, unidirectional = 1") == Attend(
        (0, 1, 2), 1, 0.25, True, HALF
    )


@pytest.mark.parametrize("operands", ["q, k, v, a", "q, k, v, , a", "q, k, v, , , , a", "q, k, v, , , , , a"])
def test_other_inputs_are_refused(operands: str) -> None:
    """A bias of the projections, a padding mask, past keys and values."""
    with pytest.raises(UnsupportedError, match="more than queries, keys, values and a bias"):
        attend(operands)


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ("num_heads = 2, mask_filter_value = -1.0", "MultiHeadAttention with mask_filter_value"),
        ("scale = 1.0", "MultiHeadAttention of 0 heads"),
    ],
)
def test_other_attributes_are_refused(attributes: str, reason: str) -> None:
    """An attribute that changes the result, and no number of heads."""
    with pytest.raises(UnsupportedError, match=reason):
        attend("q, k, v", attributes)
