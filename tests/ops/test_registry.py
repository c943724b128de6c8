"""Every operator has one entry, and what entries say holds in onnx's reference implementation and inference."""

import copy
import pickle
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from onnxfuse import ops
from onnxfuse.ops import Operator, Trait
from onnxfuse.ops.registry import registry

KNOWN = sorted({s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain})


@pytest.mark.parametrize("name", KNOWN)
def test_every_operator_of_onnx_has_an_entry(name: str) -> None:
    """One that is not understood yet says OPAQUE."""
    assert ops.operator(name) is not None


def test_no_entry_is_of_an_operator_that_nobody_knows() -> None:
    """But for those that ONNX Runtime has in the default domain alone."""
    extra = {name for domain, name in ops.ENTRIES if not domain} - {*KNOWN}
    assert extra == {"SimplifiedLayerNormalization"}


def test_an_operator_has_one_entry() -> None:
    """Two would be two homes of one fact."""
    with pytest.raises(ValueError, match="two entries for :Add"):
        registry(SimpleNamespace(Add=Operator("Add"), Sum=Operator("Add", Trait.COMMUTATIVE)))


def test_an_operator_is_its_name() -> None:
    """In comparisons, in nodes and in copies; a copy is a plain string."""
    node = helper.make_node(ops.Transpose, ["x"], ["y"])
    assert node.op_type == ops.Transpose == "Transpose"
    assert type(copy.deepcopy(ops.Add)) is type(pickle.loads(pickle.dumps(ops.Add))) is str


@pytest.mark.parametrize("entry", ops.ENTRIES.values(), ids=str)
def test_an_entry_is_called_as_its_operator(entry: Operator) -> None:
    """`ops.Gelu` is ONNX's; `ops.MicrosoftGelu` that of com.microsoft, where a name has two."""
    assert entry in (getattr(ops, entry), getattr(ops, f"Microsoft{entry}", None))
    assert getattr(ops, entry).domain == "" or ("", str(entry)) not in ops.ENTRIES


def result(name: str, *arrays: np.ndarray, **attributes: object) -> np.ndarray:
    """Return what an operator of the newest version gives."""
    inputs = [f"x{n}" for n in range(len(arrays))]
    feeds = dict(zip(inputs, arrays, strict=True))
    infos = [
        helper.make_tensor_value_info(i, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for i, a in feeds.items()
    ]
    out = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    graph = helper.make_graph([helper.make_node(name, inputs, ["y"], **attributes)], "g", infos, [out])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", onnx.defs.onnx_opset_version() - 1)])
    (found,) = ReferenceEvaluator(model).run(None, feeds)
    return np.asarray(found)


@pytest.mark.parametrize("name", sorted(ops.named(Trait.FINITE_FROM_ZERO)))
def test_zeros_stay_finite(name: str) -> None:
    """However often it is applied, with its default attributes; the shape is the input's."""
    x = np.zeros((2, 3), np.float32)
    for _ in range(8):
        x = result(name, x)
        assert x.shape == (2, 3)
        assert np.isfinite(x).all()


@pytest.mark.parametrize("name", sorted(ops.named(Trait.COMMUTATIVE)))
def test_operands_of_commutative_operators_swap(name: str) -> None:
    """To the last bit, and the result has the shape that both broadcast to."""
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 1, 5)).astype(np.float32), rng.standard_normal((4, 1)).astype(np.float32)
    if name in ("And", "Or", "Xor"):
        a, b = a > 0, b > 0
    if name.startswith("Bitwise"):
        a, b = (a * 9).astype(np.int32), (b * 9).astype(np.int32)
    kind = helper.np_dtype_to_tensor_dtype(a.dtype)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node(name, ["a", "b"], ["y"])],
            "g",
            [helper.make_tensor_value_info(n, kind, None) for n in "ab"],
            [helper.make_tensor_value_info("y", TensorProto.BOOL if name == "Equal" else kind, None)],
        ),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    one, other = (session.run(None, feeds)[0] for feeds in ({"a": a, "b": b}, {"a": b, "b": a}))
    np.testing.assert_array_equal(one, other)
    assert one.shape == (2, 4, 5)


KEEPING = sorted(ops.named(Trait.KEEPS_SHAPE) & {*KNOWN} - {"Scatter"})


@pytest.mark.parametrize("name", KEEPING)
def test_what_keeps_its_shape_does_so_in_onnx(name: str) -> None:
    """Where onnx's own inference gives the output a shape, it is that of the first input."""
    schema = onnx.defs.get_schema(name)
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    read = [f"x{n}" for n, p in enumerate(schema.inputs) if p.option == single]
    written = [f"y{n}" for n in range(schema.min_output)]
    wanted = {"to": TensorProto.FLOAT, "num_groups": 1, "size": 1}
    attributes = {k: v for k, v in wanted.items() if k in schema.attributes and schema.attributes[k].required}
    node = helper.make_node(name, read, written, **attributes)
    for dtype in (TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64):
        infos = [helper.make_tensor_value_info("x0", dtype, ["N", 3, "H", 8])]
        output = helper.make_tensor_value_info("y0", TensorProto.UNDEFINED, None)
        model = helper.make_model(helper.make_graph([node], "g", infos, [output]))
        inferred = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type
        if inferred.HasField("shape"):
            assert [d.dim_param or d.dim_value for d in inferred.shape.dim] == ["N", 3, "H", 8]
