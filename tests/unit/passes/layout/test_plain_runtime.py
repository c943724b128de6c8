"""Channels-last regions run in ONNX Runtime as anybody opens it: its default level moves Transposes through operators.

Each operator stands between two convolutions, in every form that it has: attributes or inputs, with axes or without.
"""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse

SIZES = {3: (12,), 4: (12, 8), 5: (6, 8, 6)}


def floats(*shape: int, seed: int = 0) -> np.ndarray:
    """Return small weights."""
    return (np.random.default_rng((seed, *shape)).standard_normal(shape) * 0.3).astype(np.float32)


def integers(*values: int) -> np.ndarray:
    """Return a vector as shapes and axes are written."""
    return np.array(values, np.int64)


def model(
    op: str, reads: tuple[Any, ...] = (), *, opset: int, rank: int = 4, how: str = "initializer", computed: int = -1,
    channels: int = 8, outputs: int = 1, take: int = -1, named: bool = True, **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """Return Conv, Relu, `op` on that and `reads`, Conv, Relu; `how` the reads are given: number `computed` or all."""
    kernel, pads = (3,) * (rank - 2), [1] * (2 * (rank - 2))
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], pads=pads),
        helper.make_node("Relu", ["c1"], ["a1"]),
        helper.make_node("ReduceMin", ["x"], ["least"], keepdims=0),
        helper.make_node("Sub", ["least", "least"], ["zero"]),
    ]
    weights = {
        "w1": floats(8, 4, *kernel),
        "b1": floats(8),
        "w2": floats(8, channels, *kernel, seed=1),
        "b2": floats(8, seed=1),
    }
    names = []
    for n, array in enumerate(reads):
        names.append("" if array is None else f"k{n}")
        if array is None:
            continue
        if how == "computed" or n == computed:
            to = helper.np_dtype_to_tensor_dtype(array.dtype)
            nodes.append(helper.make_node("Cast", ["zero"], [f"z{n}"], to=to))
            nodes.append(helper.make_node("Add", [f"i{n}", f"z{n}"], [f"k{n}"]))
            weights[f"i{n}"] = array
        elif how == "constant":
            nodes.append(helper.make_node("Constant", [], [f"k{n}"], value=numpy_helper.from_array(array)))
        else:
            weights[f"k{n}"] = array
    made = [f"p{n}" for n in range(outputs)]
    nodes += [
        helper.make_node(op, ["a1", *names], made, **attributes),
        helper.make_node("Conv", [made[take], "w2", "b2"], ["c2"], pads=pads),
        helper.make_node("Relu", ["c2"], ["y"]),
    ]
    read = {v for n in nodes for v in n.input}
    nodes = [n for n in nodes if n.op_type in ("Conv", "Relu", op) or set(n.output) & read]
    nodes = [n for n in nodes if "zero" not in n.output or any("zero" in other.input for other in nodes)]
    nodes = [n for n in nodes if "least" not in n.output or any("least" in other.input for other in nodes)]
    dims = ["N", 4, *("HWD"[: rank - 2])] if named else [2, 4, *SIZES[rank]]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, dims)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * rank)],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9 if opset < 23 else 10)


def run(made: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return the outputs, of a session without options but for its silence."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


def assert_runs(original: onnx.ModelProto, rank: int = 4) -> onnx.ModelProto:
    """Return what is made of it, which runs as the original does, and comes out again as it goes in."""
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4, *SIZES[rank])).astype(np.float32)}
    made = onnxfuse.optimize(original)
    np.testing.assert_allclose(run(made, feeds)[0], run(original, feeds)[0], rtol=1e-3, atol=1e-4)
    again = onnxfuse.optimize(made)
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    return made


# ---- all with axes, bounds, orders or repeats; of those, Pad and Resize of some axes: test_all_axes.py

FORMS: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "Slice by attributes": ((7, 9), {"op": "Slice", "starts": [1, 1], "ends": [9, 7], "axes": [2, 3]}),
    "Slice by attributes, no axes": ((7,), {"op": "Slice", "starts": [0, 0, 1, 1], "ends": [9, 8, 9, 7]}),
    "Slice, no axes": ((11, 18, 24), {"op": "Slice", "reads": (integers(0, 0, 1, 1), integers(9, 8, 9, 7))}),
    "Slice, fewer bounds": ((13,), {"op": "Slice", "reads": (integers(0, 0, 2), integers(9, 8, 9))}),
    "Slice, negative": ((13, 24), {"op": "Slice", "reads": (integers(1, 1), integers(9, 7), integers(-1, -2))}),
    "Slice, steps": (
        (13,), {"op": "Slice", "reads": (integers(-1), integers(-99), integers(2), integers(-1))},
    ),
    "Slice, steps and no axes": (
        (13, 24), {"op": "Slice", "reads": (integers(0, 0, 1, 1), integers(9, 8, 9, 7), None, integers(1, 1, 2, 1))},
    ),
    "Pad by an attribute": ((7,), {"op": "Pad", "pads": [0, 0, 1, 1, 0, 0, 2, 2], "mode": "reflect"}),
    "Pad of all": ((11, 13, 24), {"op": "Pad", "reads": (integers(0, 0, -1, 1, 0, 0, 2, -2), np.float32(0.5))}),
    "Upsample": ((9,), {"op": "Upsample", "reads": (np.array([1, 1, 2, 2], np.float32),), "mode": "nearest"}),
    "Resize of all": (
        (11, 13, 18),
        {"op": "Resize", "reads": (np.zeros(0, np.float32), np.array([1, 1, 2, 2], np.float32)), "mode": "nearest"},
    ),
    "Resize to sizes": ((13, 24), {"op": "Resize", "reads": (None, None, integers(2, 8, 17, 9)), "mode": "nearest"}),
    "Resize, aspect ratio of all": (
        (18,), {"op": "Resize", "reads": (None, None, integers(2, 8, 17, 9)), "mode": "nearest",
                "keep_aspect_ratio_policy": "not_larger"},
    ),
    "Split by an attribute": ((7, 11), {"op": "Split", "axis": 1, "split": [3, 5], "outputs": 2, "channels": 5}),
    "Split": ((13, 24), {"op": "Split", "reads": (integers(3, 5),), "axis": -3, "outputs": 2, "channels": 5}),
    "Split in a number": ((18,), {"op": "Split", "axis": 1, "num_outputs": 3, "outputs": 3, "channels": 2}),
    "Tile": ((7, 13, 24), {"op": "Tile", "reads": (integers(1, 1, 2, 3),)}),
    "Expand": ((13,), {"op": "Expand", "reads": (integers(1, 1, 1, 1),)}),
    "CumSum": ((11, 24), {"op": "CumSum", "reads": (np.array(-3),), "exclusive": 1}),
    "TopK": ((11, 24), {"op": "TopK", "reads": (integers(8),), "axis": 1, "outputs": 2, "take": 0}),
    "Gather": ((7, 13, 24), {"op": "Gather", "reads": (integers(7, 6, 5, 4, 3, 2, 1, 0),), "axis": 1}),
    "Trilu": ((14,), {"op": "Trilu", "reads": (np.array(1),)}),
    "CenterCropPad": ((18, 24), {"op": "CenterCropPad", "reads": (integers(9, 9),), "axes": [-1, -2]}),
    "CenterCropPad of all": ((18,), {"op": "CenterCropPad", "reads": (integers(2, 8, 9, 9),)}),
    "GatherElements": (
        (13,), {"op": "GatherElements", "reads": (np.random.default_rng(0).integers(0, 12, (2, 8, 12, 8)),), "axis": 2,
                "named": False},
    ),
    "ScatterElements": (
        (13, 18), {"op": "ScatterElements", "reads": (np.zeros((2, 8, 1, 8), np.int64), floats(2, 8, 1, 8)), "axis": 2,
                   "named": False},
    ),
    "ReverseSequence": (
        (10,), {"op": "ReverseSequence", "reads": (integers(*[2, 1] * 4),), "batch_axis": 1, "time_axis": 0},
    ),
    "Add of fewer axes": ((7, 24), {"op": "Add", "reads": (floats(8, 1, 1),)}),
    "Add of one axis": ((13,), {"op": "Add", "reads": (floats(8),), "named": False}),
    "PRelu": ((9, 16), {"op": "PRelu", "reads": (floats(8, 1, 1),)}),
    "MatMul": ((13,), {"op": "MatMul", "reads": (floats(8, 8),), "named": False}),
    "LayerNormalization": (
        (17,), {"op": "LayerNormalization", "reads": (floats(8, 12, 8),), "axis": 1, "named": False},
    ),
    "LpNormalization": ((13,), {"op": "LpNormalization", "axis": 1}),
    "MeanVarianceNormalization": ((13,), {"op": "MeanVarianceNormalization", "axes": [1]}),
    "Transpose": ((13,), {"op": "Transpose", "perm": [0, 1, 3, 2]}),
    "Transpose of the channels": ((13,), {"op": "Transpose", "channels": 12, "named": False, "perm": [0, 2, 1, 3]}),
    "Reshape": ((7, 13), {"op": "Reshape", "reads": (integers(0, 8, 8, 12),), "named": False}),
    "DepthToSpace": ((7, 13), {"op": "DepthToSpace", "blocksize": 2, "channels": 2}),
    "SpaceToDepth": ((13,), {"op": "SpaceToDepth", "blocksize": 2, "channels": 32}),
    **{
        f"{op} over {axis}": ((11, 13), {"op": op, "axis": axis, "named": False})
        for op in ("Softmax", "LogSoftmax", "Hardmax") for axis in (1, 3)
    },
    **{
        f"{op} by an attribute": ((7, 12), {"op": op, "axes": [2, 3]})
        for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2", "ReduceLogSumExp")
    },
    **{
        f"{op} of axes": ((18, 24), {"op": op, "reads": (integers(-1, 2),)})
        for op in ("ReduceMean", "ReduceSum", "ReduceMax", "ReduceL2", "ReduceLogSumExp")
    },
    **{f"{op} of nothing": ((18,), {"op": op, "noop_with_empty_axes": 1}) for op in ("ReduceMean", "ReduceSum")},
    **{
        f"{op} of empty axes": ((18,), {"op": op, "reads": (integers(),), "noop_with_empty_axes": 1})
        for op in ("ReduceMean", "ReduceMax")
    },
    **{f"{op} of all axes": ((7, 18), {"op": op, "channels": 1}) for op in ("ReduceMean", "ReduceMax")},
}  # fmt: skip


def forms() -> list[Any]:
    """Return each form at each of its operator sets; where it reads numbers, these also computed."""
    return [
        pytest.param(form, opset, how, id=f"{name}-{opset}-{how}")
        for name, (opsets, form) in FORMS.items()
        for opset in opsets
        for how in (("initializer", "computed") if "reads" in form and opset == opsets[-1] else ("initializer",))
    ]


@pytest.mark.parametrize(("form", "opset", "how"), forms())
def test_every_operator_with_axes(form: dict[str, Any], opset: int, how: str) -> None:
    """Between two regions, or in the middle of one: the file runs, and computes what the original does."""
    rest = {k: v for k, v in form.items() if k not in ("op", "reads")}
    if form["op"] == "Slice" and opset < 10:
        how = "initializer"
    original = model(form["op"], form.get("reads", ()), opset=opset, how=how, **rest)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4, *SIZES[4])).astype(np.float32)}
    made = onnxfuse.optimize(original)
    np.testing.assert_allclose(run(made, feeds)[0], run(original, feeds)[0], rtol=1e-3, atol=1e-4)


# ---- from one rank to another

LEAVING = {
    "Squeeze": ("Squeeze", [2], 4, 3), "Unsqueeze": ("Unsqueeze", [2], 3, 4),
    "Unsqueeze at the end": ("Unsqueeze", [-1], 3, 4), "Unsqueeze to volumes": ("Unsqueeze", [2], 4, 5),
    "ReduceMean": ("ReduceMean", [3], 4, 3), "ReduceMax of volumes": ("ReduceMax", [-1], 5, 4),
}  # fmt: skip
"""An operator, its axes, and the ranks before and behind it."""


@pytest.mark.parametrize("opset", [11, 13, 18, 24])
@pytest.mark.parametrize("case", LEAVING)
def test_what_leaves_a_rank(case: str, opset: int) -> None:
    """Convolutions of signals, images and volumes in one graph, with what takes axes out or puts them in between."""
    op, axes, before, after = LEAVING[case]
    sizes = (1, 12) if op == "Squeeze" else SIZES[before]
    moved_to_input = 13 if op in ("Squeeze", "Unsqueeze") else 18
    kept: dict[str, Any] = {"keepdims": 0} if op.startswith("Reduce") else {}
    middle = (
        helper.make_node(op, ["r", "axes"], ["m"], **kept)
        if opset >= moved_to_input
        else helper.make_node(op, ["r"], ["m"], axes=axes, **kept)
    )
    weights = {
        "w1": floats(8, 4, *(3,) * (before - 2)), "w2": floats(8, 8, *(3,) * (after - 2), seed=1),
        "axes": integers(*axes),
    }  # fmt: skip
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w1"], ["c"], pads=[1] * (2 * before - 4)),
            helper.make_node("Relu", ["c"], ["r"]),
            middle,
            helper.make_node("Conv", ["m", "w2"], ["d"], pads=[1] * (2 * after - 4)),
            helper.make_node("Relu", ["d"], ["y"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, *sizes])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * after)],
        [numpy_helper.from_array(a, n) for n, a in weights.items() if n != "axes" or opset >= moved_to_input],
    )
    original = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    feeds = {"x": np.random.default_rng(1).standard_normal((2, 4, *sizes)).astype(np.float32)}
    made = onnxfuse.optimize(original)
    np.testing.assert_allclose(run(made, feeds)[0], run(original, feeds)[0], rtol=1e-3, atol=1e-4)
