"""Scan of opset 8 has a batch axis and lengths: they are made up in range, and the truth is float64."""

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.verification import verify

CPU = ["CPUExecutionProvider"]


def model(
    lengths: str, states: int, scans: int, directions: list[int] | None, factor: float = 1.5, fixed: bool = False
) -> onnx.ModelProto:
    """Return running sums of the exp of what is scanned; `lengths`: "", "input", "int32" or "constant"."""
    batch, longest = (3, 5) if fixed else ("B", "S")

    def value(name: str, shape: Any, type_: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, type_, shape)

    inner = [helper.make_node("Add", [f"s{n}", f"i{n % scans}"], [f"t{n}"]) for n in range(states)]
    inner += [
        helper.make_node("Mul", [f"t{n % states}" if states else f"i{n}", "factor"], [f"o{n}"]) for n in range(scans)
    ]
    body = helper.make_graph(
        inner, "b", [value(f"{k}{n}", [4]) for k, count in (("s", states), ("i", scans)) for n in range(count)],
        [value(f"{k}{n}", [4]) for k, count in (("t", states), ("o", scans)) for n in range(count)],
    )  # fmt: skip
    nodes = [helper.make_node("Exp", [f"x{n}"], [f"e{n}"]) for n in range(scans)]
    inputs = [value(f"h{n}", [batch, 4]) for n in range(states)]
    inputs += [value(f"x{n}", [batch, longest, 4]) for n in range(scans)]
    weights = [numpy_helper.from_array(np.array(factor, np.float32), "factor")]
    if lengths == "constant":
        weights.append(numpy_helper.from_array(np.array([5, 2, 1]), "lengths"))
    elif lengths == "int32":
        inputs.append(value("short", [batch], TensorProto.INT32))
        nodes.append(helper.make_node("Cast", ["short"], ["lengths"], to=TensorProto.INT64))
    elif lengths:
        inputs.append(value("lengths", [batch], TensorProto.INT64))
    outputs = [f"f{n}" for n in range(states)] + [f"y{n}" for n in range(scans)]
    given = ["lengths" if lengths else "", *(f"h{n}" for n in range(states)), *(f"e{n}" for n in range(scans))]
    more: dict[str, Any] = {} if directions is None else {"directions": directions}
    nodes.append(helper.make_node("Scan", given, outputs, body=body, num_scan_inputs=scans, **more))
    nodes.append(helper.make_node("Neg", ["y0"], ["z"]))
    graph = helper.make_graph(nodes, "g", inputs, [value(o, None) for o in (*outputs, "z")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 8)], ir_version=7)


@pytest.mark.parametrize("lengths", ["", "input", "int32", "constant"])
@pytest.mark.parametrize(("states", "scans"), itertools.product((0, 1, 2), (1, 2)))
def test_it_is_verified_in_float64(lengths: str, states: int, scans: int) -> None:
    """Every made-up case runs, at fixed and open sizes and from either end; nobody stands in for the reference."""
    for directions, fixed in itertools.product((None, [1, 0][:scans]), (True, False)):
        if lengths == "constant" and not fixed:
            continue
        made = model(lengths, states, scans, directions, fixed=fixed)
        report = verify(made, onnxfuse.optimize(made), providers=CPU, extra_cases=False)
        assert (report.ok, report.truth, report.truth_why) == (True, "float64", "")
        assert not [c.note for c in report.cases if c.note]


def test_a_wrong_body_is_found() -> None:
    """One percent in what each turn computes is a mismatch."""
    report = verify(model("input", 1, 2, [1, 0]), model("input", 1, 2, [1, 0], 1.515), providers=CPU)
    assert {r.output for r in report.rows if r.verdict == "mismatch"} == {"y0", "y1", "z"}


@pytest.mark.parametrize("option", [{"guard": True}, {"precision": "float16"}])
def test_it_is_guarded_and_converted(option: dict[str, Any]) -> None:
    """What runs the model to judge it takes it, too."""
    made = model("input", 1, 1, None)
    assert verify(made, onnxfuse.optimize(made, **option), providers=CPU, extra_cases=False).ok
