"""Pools whose windows ONNX's inference counts otherwise than ONNX Runtime get pads with which both count the same."""

import itertools

import numpy as np
import onnx
import pytest

from tests.support.small import NO_RULE, fuses, optimize, parse, run


def _pool(op: str, auto: str, ceil: int, size: int, stride: int, dilation: int, extent: int) -> str:
    attributes = f'auto_pad = "{auto}", ceil_mode = {ceil}, kernel_shape = [{size}], strides = [{stride}]'
    if dilation > 1:
        attributes += f", dilations = [{dilation}]"
    return f"""<ir_version: 8, opset_import: ["" : 15]> g (float[2,3,{extent}] x) => (float[A,B,C] p, float y) {{
      p = {op} <{attributes}> (x)  q = Neg (p)  y = ReduceSum <keepdims = 0> (q) }}"""


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize("auto", ["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
def test_inference_tells_what_is_computed(op: str, auto: str) -> None:
    """Of each pool that is rewritten the types from ONNX alone are those of the run, and the numbers are the same."""
    rewritten, rng = 0, np.random.default_rng(0)
    dilations = (1, 2) if op == "MaxPool" else (1,)
    for ceil, size, stride, dilation, extent in itertools.product((0, 1), (1, 2, 3), (1, 2, 3), dilations, (4, 5, 8)):
        model = parse(_pool(op, auto, ceil, size, stride, dilation, extent))
        x = {"x": rng.standard_normal((2, 3, extent)).astype(np.float32)}
        if auto.startswith("SAME") and (-(-extent // stride) - 1) * stride + size < extent:
            continue  # ONNX Runtime does not run what would have to be padded by less than nothing
        before, (made, _) = run(model, x), optimize(model, NO_RULE)
        if made.graph.node[0] == model.graph.node[0]:
            continue
        rewritten += 1
        inferred = onnx.shape_inference.infer_shapes(made).graph.value_info[0].type.tensor_type.shape
        assert tuple(d.dim_value for d in inferred.dim) == before[0].shape
        for was, now in zip(before, run(made, x), strict=True):
            assert np.array_equal(was, now)
    assert rewritten


def test_a_concat_behind_such_a_pool_opens() -> None:
    """ONNX Runtime sees through no sequence, and into a Concat: it would count nine windows, and refuse the eight."""
    text = """g (float[2,4,16] x, float[2,4,8] z) => (float[4,4,8] y) {
      p = MaxPool <ceil_mode = 1, kernel_shape = [1], strides = [2]> (x)
      s = SequenceConstruct (p, z)  y = ConcatFromSequence <axis = 0> (s) }"""
    assert fuses(text, "softmax", opset=15) == ["MaxPool", "Concat"]
