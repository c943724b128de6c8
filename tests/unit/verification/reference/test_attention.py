"""ONNX's Attention in float64: every output in every form that ONNX Runtime has, believed beside it."""

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.verification.reference.ort_reference import OrtReference
from onnxfuse.verification.reference.reference import float64_evaluator

FORMS = list(itertools.product((23, 24), (0, 1, 2, 3), (0.0, 2.0), ("", "float", "bool")))


@pytest.mark.parametrize(("opset", "mode", "softcap", "mask"), FORMS)
def test_scores_are_those_of_the_mode(opset: int, mode: int, softcap: float, mask: str) -> None:
    """Scores before and after softcap, mask and softmax, with a cache and without, causal or not, grouped or not."""
    for causal, kv_heads, past, rank in itertools.product((0, 1), (4, 2), (0, 3), (4, 3)):
        rng = np.random.default_rng(0)
        feeds = {n: rng.standard_normal((2, heads, 5, 8)) for n, heads in (("q", 4), ("k", kv_heads), ("v", kv_heads))}
        attributes: dict[str, Any] = {"softcap": softcap, "qk_matmul_output_mode": mode, "is_causal": causal}
        if rank == 3:
            feeds = {n: x.transpose(0, 2, 1, 3).reshape(2, 5, -1) for n, x in feeds.items()}
            attributes |= {"q_num_heads": 4, "kv_num_heads": kv_heads}
        if mask:
            visible = (rng.random((5, 5 + past)) < 0.6) | (np.arange(5 + past) == 0)
            feeds["m"] = visible if mask == "bool" else rng.standard_normal(visible.shape)
        if past:
            feeds |= {n: rng.standard_normal((2, kv_heads, past, 8)) for n in ("pk", "pv")}
        read = ["q", "k", "v", "m" if mask else "", *(["pk", "pv"] if past else [])]
        # The scores are the fourth output: those between are left out, or there.
        gives = ["y", "nk" if past else "", "nv" if past else "", "qk"]
        node = helper.make_node("Attention", read, gives, **attributes)
        types = {n: TensorProto.BOOL if x.dtype == np.bool_ else TensorProto.FLOAT for n, x in feeds.items()}
        inputs = [helper.make_tensor_value_info(n, types[n], x.shape) for n, x in feeds.items()]
        outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "qk")]
        graph = helper.make_graph([node], "g", inputs, outputs)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        cross_check = OrtReference()
        with np.errstate(all="ignore"):
            _, scores = float64_evaluator(model, cross_check=cross_check).run(None, feeds)
        assert scores.shape == (2, 4, 5, 5 + past)
        assert not cross_check.text
        assert not cross_check.unchecked


def test_what_stands_in_for_an_operator_gives_each_output_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the reference is not believed, ONNX Runtime's outputs stand at the positions that the node names."""
    from onnxfuse.verification.reference import attention

    right = attention.ONNX_ATTENTION
    monkeypatch.setattr(attention, "ONNX_ATTENTION", lambda *x, **how: tuple(2 * y for y in right(*x, **how)))
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 23]> g (float[1, 2, 3, 4] q) => (float[1, 2, 3, 4] y, '
        "float[1, 2, 3, 3] s) { y, , , s = Attention <scale = 0.75> (q, q, q) }"
    )
    cross_check = OrtReference()
    q = np.random.default_rng(0).standard_normal((1, 2, 3, 4))
    y, scores = float64_evaluator(model, cross_check=cross_check).run(None, {"q": q})
    assert cross_check.doubts
    assert np.allclose(scores, 0.75 * q @ q.transpose(0, 1, 3, 2))
    assert y.shape == q.shape
