"""Recurrent layers as exporters write them: with zeros for first states, without names for what nobody reads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.model.fused import fused_ops
from tests.support.kernels.recurrents import GATES, Case
from tests.support.small import ops, optimize

HALF = TensorProto.FLOAT16


def model(
    case: Case,
    inputs: list[str],
    outputs: list[str],
    more: Sequence[onnx.NodeProto] = (),
    dtype: int = HALF,
    **attributes: Any,
) -> onnx.ModelProto:
    """Return a model of one layer, its weights of the model's own; `more`: nodes before it."""
    rng, rows = np.random.default_rng(0), GATES[case.kind] * case.hidden
    shapes = {"w": (1, rows, case.terms), "r": (1, rows, case.hidden), "b": (1, 2 * rows)}
    kept = [
        numpy_helper.from_array((rng.standard_normal(s) / 8).astype(helper.tensor_dtype_to_np_dtype(dtype)), n)
        for n, s in shapes.items()
        if n in inputs
    ]
    node = helper.make_node(case.kind, inputs, outputs, hidden_size=case.hidden, **attributes)
    given = [helper.make_tensor_value_info("x", dtype, ["T", "B", case.terms])]
    if "h" in inputs and not more:
        given.append(helper.make_tensor_value_info("h", dtype, [1, "B", case.hidden]))
    made = [helper.make_tensor_value_info(n, dtype, None) for n in outputs if n in ("y", "y_h")]
    graph = helper.make_graph([*more, node], "g", given, made, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("outputs", [["y"], ["y", "y_h"], ["y", "", "c"], ["", "y_h"], ["unread", "y_h", "c"]], ids=str)
@pytest.mark.parametrize("inputs", [["x", "w", "r"], ["x", "w", "r", "b"], ["x", "w", "r", "", "", "h"]], ids=str)
def test_whatever_a_node_lacks_it_is_one_op(inputs: list[str], outputs: list[str]) -> None:
    """Biases, first states, outputs that have no name or that nobody reads."""
    made, _ = optimize(model(Case("LSTM", 8, 1, 1, 4), inputs, outputs))
    assert ops(made) == ["{LSTM}"]
    (op,) = fused_ops(made).values()
    assert (len(op.inputs), len(op.outputs)) == (len([i for i in inputs if i]), len({"y", "y_h"} & set(outputs)))


def test_zeros_of_as_many_sequences_as_there_are_are_not_computed() -> None:
    """As torch writes them."""
    nodes = [
        helper.make_node("Shape", ["x"], ["n"], start=1, end=2),
        helper.make_node("Constant", [], ["one"], value_ints=[1]),
        helper.make_node("Constant", [], ["eight"], value_ints=[8]),
        helper.make_node("Concat", ["one", "n", "eight"], ["shape"], axis=0),
        helper.make_node("ConstantOfShape", ["shape"], ["h"], value=numpy_helper.from_array(np.zeros(1, np.float16))),
    ]
    made, report = optimize(model(Case("GRU", 8, 1, 1, 4), ["x", "w", "r", "b", "", "h"], ["y", "last"], nodes))
    assert ops(made) == ["GRU"]
    assert report.by_rule() == {"zero_states": 1}
    made, _ = optimize(
        model(Case("GRU", 8, 1, 1, 4), ["x", "w", "r", "b", "", "h"], ["y", "y_h"], nodes, linear_before_reset=1)
    )
    assert ops(made) == ["{GRU}"]


@pytest.mark.parametrize(
    ("case", "attributes", "dtype", "why"),
    [
        (Case("LSTM", 8, 1, 1, 4), {"clip": 1.0}, HALF, "LSTM with clip"),
        (Case("LSTM", 8, 1, 1, 4), {}, TensorProto.FLOAT, "dtype(x)"),
        (Case("LSTM", 640, 1, 1, 4), {}, HALF, "640 cells"),
    ],
)
def test_what_has_no_kernel_stays_a_plain_node(case: Case, attributes: dict[str, Any], dtype: int, why: str) -> None:
    """And is told."""
    made, report = optimize(model(case, ["x", "w", "r", "b"], ["y"], dtype=dtype, **attributes))
    assert ops(made) == ["LSTM"]
    assert any(why in near.refusal.reason for near in report.stopped if near.rule == "recurrent")
