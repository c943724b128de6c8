"""Transposed convolutions that pad unlike at their ends pad alike: the same numbers, and a kernel on CUDA."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto

from onnxfuse.model.fused import fused_ops
from tests.unit.passes.layout.test_subpixel import image, model, same


def uneven(made: ModelProto) -> list[list[int]]:
    """Return the pads of every ConvTranspose that pads unlike at its ends, in bodies, too."""
    nodes = [*made.graph.node, *(n for op in fused_ops(made).values() for n in op.body.node)]
    pads = [list(a.ints) for n in nodes if n.op_type == "ConvTranspose" for a in n.attribute if a.name == "pads"]
    return [p for p in pads if p[: len(p) // 2] != p[len(p) // 2 :]]


@given(data=st.data(), rank=st.sampled_from([1, 2, 3]), bias=st.booleans(), opset=st.sampled_from([10, 13, 17, 21]))
def test_any_padding_computes_the_same(data: st.DataObject, rank: int, bias: bool, opset: int) -> None:
    """Kernels of any size, strides, dilations, output_padding; sizes known or not."""
    strides, kernel, dilations = ([data.draw(st.integers(*of)) for _ in range(rank)] for of in ((1, 3), (1, 5), (1, 2)))
    pads = [data.draw(st.integers(0, kernel[at % rank] - 1)) for at in range(2 * rank)]
    more = [data.draw(st.integers(0, s - 1)) for s in strides]
    size = [data.draw(st.integers(4, 6)) for _ in range(rank)]
    names: list[int | str] = [f"D{at}" for at in range(rank)] if data.draw(st.booleans()) else list(size)
    told: dict[str, Any] = {
        "strides": strides,
        "dilations": dilations,
        "pads": pads,
        **({"output_padding": more} if any(more) else {}),
    }
    before = model(rank, kernel, names, opset=opset, bias=bias, **told)
    assert not uneven(same(before, image(before, [2, 2, *size])))


@given(data=st.data())
def test_auto_pad_of_an_odd_number_stays_as_it_is(data: st.DataObject) -> None:
    """Operator sets and libraries differ on where the one more goes: no op of the library's takes it channels last."""
    how = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER"]))
    before = model(2, [3, 3], ["H", "W"], strides=[2, 2], auto_pad=how)
    made = same(before, image(before, [1, 2, 5, 4]))
    assert [n.op_type for n in made.graph.node if n.op_type == "ConvTranspose"] == ["ConvTranspose"]
