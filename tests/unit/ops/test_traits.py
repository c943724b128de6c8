"""What traits say of moving, choosing and sizing operators holds in ONNX Runtime or in onnx's schemas."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxfuse import ops
from onnxfuse.graph.meanings import computed
from onnxfuse.ops import Operator, Trait
from onnxfuse.ops.inputs import CONDITION, ELEMENTS

OPSET = 21
X = np.arange(1, 25, dtype=np.float32).reshape(2, 3, 4)
IMAGE = np.arange(1, 33, dtype=np.float32).reshape(1, 4, 2, 4)


def whole(*numbers: int) -> np.ndarray:
    """Return integers."""
    return np.array(numbers, np.int64)


SAMPLES: dict[str, tuple[list[np.ndarray], dict[str, Any]]] = {
    "Identity": ([X], {}), "Reshape": ([X, whole(4, 6)], {}), "Flatten": ([X], {}), "Squeeze": ([X[:1], whole(0)], {}),
    "Unsqueeze": ([X, whole(1)], {}), "Transpose": ([X], {}), "Concat": ([X, -X], {"axis": 1}),
    "Split": ([X, whole(1, 2)], {"axis": 1}), "Slice": ([X, whole(1), whole(3), whole(1)], {}),
    "Expand": ([X, whole(5, 2, 3, 4)], {}), "Tile": ([X, whole(1, 2, 3)], {}), "Gather": ([X, whole(1, 0, 1)], {}),
    "GatherElements": ([X, np.ones((1, 3, 4), np.int64)], {}), "GatherND": ([X, whole(1, 2)], {}),
    "DepthToSpace": ([IMAGE], {"blocksize": 2}), "SpaceToDepth": ([IMAGE], {"blocksize": 2}),
    "Compress": ([X, np.array([True, False, True])], {"axis": 1}), "Max": ([X, 30 - X], {}), "Min": ([X, 30 - X], {}),
    "Where": ([X > 7, X, -X], {}),
    "ReverseSequence": ([X, whole(2, 1, 2)], {}),
}  # fmt: skip
"""Inputs and attributes."""
UNTRIED = {"Scatter", "TensorScatter"}
"""Operators of a time before and after ONNX Runtime's kernels on the CPU."""
OF_SEQUENCES = {"ConcatFromSequence", "Optional", "OptionalGetElement", "SequenceAt", "SequenceErase"}
"""Operators whose data are no tensors."""


def run(name: str, inputs: list[np.ndarray], attributes: dict[str, Any], outputs: int = 1) -> list[np.ndarray]:
    """Return what ONNX Runtime gives."""
    read, written = [f"x{i}" for i in range(len(inputs))], [f"y{i}" for i in range(outputs)]
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), None)
             for n, x in zip(read, inputs, strict=True)]  # fmt: skip
    node = helper.make_node(name, read, written, **attributes)
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name=n) for n in written])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(zip(read, inputs, strict=True))))


@pytest.mark.parametrize("name", sorted(ops.named(Trait.CARRIES) - UNTRIED - OF_SEQUENCES))
def test_what_carries_gives_elements_of_its_data(name: str) -> None:
    """No other number, in any output."""
    inputs, attributes = SAMPLES[name]
    entry = ops.operator(name)
    assert entry is not None
    data = {float(x) for i, array in enumerate(inputs) if entry.carries(i) for x in array.reshape(-1)}
    assert data
    for result in run(name, inputs, attributes, 2 if name == "Split" else 1):
        assert result.size
        assert {float(x) for x in result.reshape(-1)} <= data


@pytest.mark.parametrize("name", sorted(ops.named(Trait.KEEPS_ELEMENTS)))
def test_what_keeps_elements_loses_none(name: str) -> None:
    """Each element of the first input is in the output."""
    inputs, attributes = SAMPLES[name]
    assert set(np.unique(run(name, inputs, attributes)[0])) == set(np.unique(inputs[0]))


@pytest.mark.parametrize("name", sorted(ops.named(Trait.EXPANDS)))
def test_what_expands_repeats_along_axes_of_one(name: str) -> None:
    """As numpy broadcasts."""
    inputs, attributes = SAMPLES[name]
    (result,) = run(name, inputs, attributes)
    np.testing.assert_array_equal(result, np.broadcast_to(inputs[0], result.shape))


@pytest.mark.parametrize("name", sorted(ops.named(Trait.IDENTITY_OF_ONE)))
def test_of_one_operand_it_is_the_identity(name: str) -> None:
    """Bit by bit."""
    (y,) = run(name, [X], {"axis": 0} if name == "Concat" else {})
    np.testing.assert_array_equal(y, X)


@pytest.mark.parametrize("name", sorted(ops.named(Trait.COMPARISON)))
def test_a_mirrored_comparison_has_its_operands_exchanged(name: str) -> None:
    """Less for Greater; every comparison has one."""
    entry = ops.operator(name)
    assert entry is not None
    a, b = np.array([1, 2, 3], np.float32), np.array([3, 2, 1], np.float32)
    np.testing.assert_array_equal(run(name, [a, b], {})[0], run(entry.mirrored, [b, a], {})[0])


@pytest.mark.parametrize("name", sorted(ops.named(Trait.SIZE_FROM_DATA) - {"NonMaxSuppression"}))
def test_the_size_depends_on_the_data(name: str) -> None:
    """Inputs of one shape, results of two."""
    few, many = np.array([0, 0, 1, 0], np.float32), np.array([0, 3, 1, 2], np.float32)
    feeds = [[X.reshape(-1)[:4], x > 0] if name == "Compress" else [x] for x in (few, many)]
    assert len({run(name, feed, {})[0].size for feed in feeds}) == 2


@pytest.mark.parametrize("name", sorted(ops.named(Trait.READS_SHAPE)))
def test_the_shape_alone_is_read(name: str) -> None:
    """Not a number of the input."""
    np.testing.assert_array_equal(run(name, [X], {})[0], run(name, [-X], {})[0])


def test_windows_are_those_with_a_kernel() -> None:
    """An operator slides a window if, and only if, its newest schema has a kernel's shape and strides."""
    schemas = [s for s in onnx.defs.get_all_schemas() if not s.domain]
    assert ops.named(Trait.SLIDES) == {s.name for s in schemas if {"kernel_shape", "strides"} <= {*s.attributes}}


def test_a_trait_entails_others() -> None:
    """A reshape is a view, keeps all elements, and carries them."""
    entry = ops.operator("Reshape")
    assert entry is not None
    assert entry.traits >= {Trait.RESHAPE, Trait.VIEW, Trait.KEEPS_ELEMENTS, Trait.CARRIES}


@pytest.mark.parametrize("name", sorted(ops.named(Trait.SHAPES_ON_CUDA)))
def test_what_reads_shapes_on_cuda_says_what_its_inputs_are(name: str) -> None:
    """Else nobody would know which of them it reads on the host."""
    entry = ops.operator(name)
    assert entry is not None
    assert entry.inputs
    integers = {"tensor(int32)", "tensor(int64)"}
    schema = onnx.defs.get_schema(name)
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    for position, value in enumerate(schema.inputs):
        if not isinstance(entry.role(position), ELEMENTS):
            assert allowed.get(value.type_str, {value.type_str}) & integers


def test_casts_keep_numbers() -> None:
    """Cast and CastLike: the same integers in another type."""
    narrow = X.astype(np.float16)
    for name in sorted(ops.named(Trait.CASTS)):
        feeds: list[np.ndarray] = [X] if name == "Cast" else [X, narrow[:1]]
        attributes = {"to": TensorProto.FLOAT16} if name == "Cast" else {}
        np.testing.assert_array_equal(run(name, feeds, attributes)[0], narrow)


WITH_NEUTRAL = [e for e in ops.ENTRIES.values() if e.neutral is not None]


@pytest.mark.parametrize("entry", WITH_NEUTRAL, ids=str)
def test_with_the_neutral_operand_the_other_one_is_the_result(entry: Operator) -> None:
    """As the second operand, and as the first one if the operator commutes; no other number is neutral."""
    x = X > 7 if entry.role(0) == CONDITION else X
    for position in range(2):
        neutral, other = (np.array(n, x.dtype) for n in (entry.neutral, not entry.neutral))
        ours, theirs = ([x, n] if position else [n, x] for n in (neutral, other))
        alike = entry.neutral_at(position) is not None
        assert np.array_equal(run(entry, ours, {})[0], x) == alike
        assert not np.array_equal(run(entry, theirs, {})[0], x)


WHOLE = np.array([[3, -2], [5, 7]], np.int64)
INTEGERS: dict[str, tuple[list[np.ndarray], dict[str, Any]]] = {
    "Cast": ([WHOLE], {"to": TensorProto.INT32}), "CastLike": ([WHOLE, WHOLE[:1].astype(np.int32)], {}),
    "Abs": ([WHOLE], {}), "Neg": ([WHOLE], {}), "Mod": ([WHOLE, WHOLE[:1]], {}), "BitwiseAnd": ([WHOLE, WHOLE[:1]], {}),
    "BitwiseOr": ([WHOLE, WHOLE[:1]], {}), "BitwiseXor": ([WHOLE, WHOLE[:1]], {}),
    **{n: ([WHOLE, WHOLE[:1]], {}) for n in ops.named(Trait.ARITHMETIC)},
    **{n: ([WHOLE], {}) for n in ops.named(Trait.REDUCTION) & ops.named(Trait.INTEGRAL)},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(ops.named(Trait.NONZERO) - ops.named(Trait.CARRIES)))
def test_of_integers_other_than_zero_come_others(name: str) -> None:
    """What carries elements does so anyway."""
    assert run(name, *INTEGERS[name])[0].all()


@pytest.mark.parametrize("name", sorted(ops.named(Trait.INTEGRAL) - ops.named(Trait.CARRIES)))
def test_integers_of_a_wider_type_give_the_same(name: str) -> None:
    """By the entry's meaning: ONNX Runtime has not all of them on the CPU for int32."""
    entry, (inputs, attributes) = ops.operator(name), INTEGERS[name]
    assert entry is not None
    narrow = [x.astype(np.int32) for x in inputs]
    if entry.meaning is None:
        results = [reduced(name, x) for x in (narrow[0], inputs[0])]
    else:
        results = [computed(entry, OPSET, x, attributes)[0] for x in (narrow, inputs)]
        assert [r.dtype for r in results] == [np.int32, np.int64]
    mine, theirs = results
    np.testing.assert_array_equal(mine, theirs)


def reduced(name: str, x: np.ndarray) -> np.ndarray:
    """Return the reduction of all axes in onnx's reference."""
    node, imports = helper.make_node(name, ["x"], ["y"]), [helper.make_opsetid("", OPSET)]
    function = helper.make_function("f", "f", ["x"], ["y"], [node], imports)
    (found,) = ReferenceEvaluator(function).run(None, {"x": x}, attributes={})
    return np.asarray(found)


@pytest.mark.parametrize("name", sorted(ops.named(Trait.UNIT_AXES)))
def test_axes_of_one_come_and_go(name: str) -> None:
    """The other extents stay, in order."""
    (inputs, attributes) = SAMPLES[name]
    before, after = inputs[0].shape, run(name, inputs, attributes)[0].shape
    assert before != after
    assert [n for n in before if n != 1] == [n for n in after if n != 1]


def axes_named(name: str, axis: int) -> tuple[list[np.ndarray], dict[str, Any]]:
    """Return operands and attributes, of three axes, with which an operator works along one of them."""
    along = np.eye(3, dtype=np.int64)[axis]
    more = {
        "Concat": [X], "Split": [], "Softmax": [], "LogSoftmax": [], "Slice": [whole(1), whole(3), whole(axis)],
        "Pad": [np.concatenate([along, 2 * along])], "Resize": [X[:0, 0, 0], (1 + along).astype(np.float32)],
    }.get(name)  # fmt: skip
    if more is None:
        return [X, whole(axis)], {}
    named = "axis" in onnx.defs.get_schema(name).attributes
    return [X, *more], ({"axis": axis} if named else {}) | ({"num_outputs": 2} if name == "Split" else {})


@pytest.mark.parametrize("name", sorted(ops.named(Trait.NAMES_AXES) - {"Upsample"}))
def test_with_permuted_axes_permuted_data_give_the_same(name: str) -> None:
    """The last two axes change places, and the operator works along the other one."""
    inputs, attributes = axes_named(name, 1)
    turned, others = axes_named(name, 2)
    operands = [x.transpose(0, 2, 1) if x is X else x for x in turned]
    outputs = 2 if name == "Split" else 1
    for one, other in zip(run(name, inputs, attributes, outputs), run(name, operands, others, outputs), strict=True):
        assert one.shape != X.shape or "oftmax" in name
        np.testing.assert_allclose(one, other.transpose(0, 2, 1), rtol=1e-6)


@pytest.mark.parametrize("entry", [e for e in ops.ENTRIES.values() if e.reduction], ids=str)
def test_a_global_pool_is_a_reduction(entry: Operator) -> None:
    """Over the axes after the channels."""
    (pooled,), (reduced,) = run(entry, [IMAGE], {}), run(entry.reduction, [IMAGE, whole(2, 3)], {})
    np.testing.assert_allclose(pooled, reduced, rtol=1e-6)


@pytest.mark.parametrize("entry", [e for e in ops.ENTRIES.values() if e.cell], ids=str)
def test_cells_have_these_gates_states_and_activations(entry: Operator) -> None:
    """ONNX Runtime takes weights of as many gates, returns as many states, and the activations are the default."""
    assert entry.cell is not None
    rng = np.random.default_rng(0)
    rows = 5 * entry.cell.gates
    x, w, r = (rng.standard_normal(s).astype(np.float32) for s in ((3, 2, 4), (1, rows, 4), (1, rows, 5)))
    outputs = 1 + entry.cell.states
    usual = run(entry, [x, w, r], {"hidden_size": 5}, outputs)
    stated = run(entry, [x, w, r], {"hidden_size": 5, "activations": [*entry.cell.activations]}, outputs)
    np.testing.assert_array_equal(usual[0], stated[0])


def test_pools_and_convolutions_slide_windows() -> None:
    """A convolution has a weight, a pool none."""
    for name in ops.named(Trait.POOL, Trait.CONVOLUTION):
        inputs = [p.name for p in onnx.defs.get_schema(name).inputs]
        assert name in ops.named(Trait.SLIDES)
        assert inputs[1:2] == (["W"] if name in ops.named(Trait.CONVOLUTION) else [])


def test_what_computes_with_quantized_values_takes_no_floats() -> None:
    """Its first input is of 8 bits."""
    for name in ops.named(Trait.QUANTIZED):
        schema = onnx.defs.get_schema(name)
        allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
        assert all("8" in t for t in allowed[schema.inputs[0].type_str])
