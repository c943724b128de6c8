"""Every operator has one entry, and what entries say holds in onnx's reference implementation and inference."""

import copy
import importlib
import pickle
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from onnxfuse import ops
from onnxfuse.ops import Operator, Trait
from onnxfuse.ops.inputs import TruthValues
from onnxfuse.ops.registry import MICROSOFT, TENSORRT, registry

KNOWN = sorted({s.name for s in onnx.defs.get_all_schemas_with_history() if not s.domain})


@pytest.mark.parametrize("name", KNOWN)
def test_every_operator_of_onnx_has_an_entry(name: str) -> None:
    """One that is not understood yet says OPAQUE."""
    assert ops.operator(name) is not None


FAMILIES = [
    module
    for path in Path(ops.__file__).parent.glob("*.py")
    if hasattr(module := importlib.import_module(f"onnxfuse.ops.{path.stem}"), "__all__")
]


def test_families_export_their_entries_alone() -> None:
    """`ops.X` is an operator: no helper of a family's module comes with them."""
    for module in FAMILIES:
        assert {*module.__all__} == {name for name, value in vars(module).items() if isinstance(value, Operator)}
    assert {name for module in FAMILIES for name in module.__all__} == {
        name for name, value in vars(ops).items() if isinstance(value, Operator)
    }
    own = {"ENTRIES", "Operator", "Trait", "named", "operator", "registry", "with_traits"}
    modules = {name for name, value in vars(ops).items() if isinstance(value, ModuleType)}
    assert {n for n in vars(ops) if not n.startswith("__")} <= {n for m in FAMILIES for n in m.__all__} | own | modules


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


# ---- inputs

FLOATS = {"tensor(float)", "tensor(float16)", "tensor(double)", "tensor(bfloat16)"}
INTEGERS = {"tensor(int32)", "tensor(int64)"}
TRUTH = {"tensor(bool)"}


def schemas_of(entry: Operator) -> list[onnx.defs.OpSchema]:
    """Return the schemas of an operator's versions, of ONNX or of ONNX Runtime."""
    every = (*get_all_operator_schema(), *onnx.defs.get_all_schemas_with_history())
    found = {s.since_version: s for s in every if (s.domain, s.name) == (entry.domain, entry)}
    return [one for _, one in sorted(found.items())]


def names_of(schema: onnx.defs.OpSchema) -> list[str]:
    """Return the names of a schema's inputs."""
    return [p.name for p in schema.inputs]


WITH_INPUTS = [one for one in ops.ENTRIES.values() if one.inputs and one.domain != TENSORRT]
"""TensorRT publishes no schemas."""
OF_ONNX = [one for one in WITH_INPUTS if one.domain != MICROSOFT]


@pytest.mark.parametrize("entry", WITH_INPUTS, ids=str)
def test_inputs_are_called_as_in_the_schema(entry: Operator) -> None:
    """All of them, in the order of one version; where another version has them, they stand at the same positions.

    But for Resize in operator set 10, which had no region yet, and Scan from 9 on, which has no lengths.
    """
    versions = schemas_of(entry)
    assert [*entry.inputs] in [names_of(s) for s in versions]
    for schema in versions:
        for position, name in enumerate(names_of(schema)):
            if name in entry.inputs and not (entry == ops.Resize and schema.since_version == 10):
                dropped = entry == ops.Scan and schema.since_version > 8
                assert entry.position(name) == position + dropped, schema.since_version


@pytest.mark.parametrize("entry", WITH_INPUTS, ids=str)
def test_roles_name_inputs_of_their_operator(entry: Operator) -> None:
    """An index into an input that there is not would be found out only when somebody feeds it."""
    waiting: list[Any] = [*entry.inputs.values()]
    while waiting:
        role = waiting.pop()
        for key, value in vars(role).items():
            if key in ("of", "part", "depth", "input"):
                assert value in entry.inputs
        waiting += [
            *getattr(role, "ranks", {}).values(),
            *(vars(role).get(k) for k in ("role", "other") if hasattr(role, k)),
        ]


def defaults(role: object) -> list[tuple[str, int]]:
    """Return the attributes with their defaults that a role reads."""
    return [v for v in vars(role).values() if isinstance(v, tuple)]


@pytest.mark.parametrize("entry", OF_ONNX, ids=str)
def test_defaults_of_axes_are_the_schemas(entry: Operator) -> None:
    """A role may depend on an attribute: its default is that of the newest version."""
    schema = schemas_of(entry)[-1]
    for name, default in (pair for role in entry.inputs.values() for pair in defaults(role)):
        assert name in schema.attributes
        stated = schema.attributes[name].default_value
        assert default == (helper.get_attribute_value(stated) if stated.type else 0)


def test_every_integer_input_has_a_role() -> None:
    """Of every input of every operator of onnx that takes integers or truth values, and no floats, it is said what it
    means: one that is data says so."""
    missing = []
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.deprecated:
            continue
        entry = ops.operator(schema.name, schema.domain)
        allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
        for position, value in enumerate(schema.inputs):
            types = allowed.get(value.type_str, {value.type_str})
            if not types & (INTEGERS | TRUTH) or types & FLOATS:
                continue
            if entry is None or position >= len(entry.inputs):
                missing.append(f"{schema.domain} {schema.name}-{schema.since_version}: {value.name} ({position})")
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("entry", OF_ONNX, ids=str)
def test_truth_values_are_truth_values(entry: Operator) -> None:
    """An input is a condition where, and only where, the newest schema takes nothing but bool."""
    schema = schemas_of(entry)[-1]
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    for position, value in enumerate(schema.inputs):
        takes = allowed.get(value.type_str, {value.type_str})
        assert isinstance(entry.role(position), TruthValues) == (takes == TRUTH), value.name


def moved_by_schemas(name: str) -> dict[str, int]:
    """Return the attributes that are inputs in the newest version, and the first version in which they are."""
    versions = schemas_of(Operator(name))
    inputs = names_of(versions[-1])
    stated = {a for s in versions for a in s.attributes if a in inputs}
    return {a: min(s.since_version for s in versions if a not in s.attributes and s.since_version > 1) for a in stated}


@pytest.mark.parametrize("name", KNOWN)
def test_attributes_that_became_inputs(name: str) -> None:
    """Each under its own name, with the operator set of the change; what ONNX renamed on the way is not among them."""
    entry = ops.operator(name)
    assert entry is not None
    assert entry.moved == moved_by_schemas(name)
    assert {*entry.moved} <= {*entry.inputs}


# ---- traits


def result(name: str, *arrays: np.ndarray, **attributes: Any) -> np.ndarray:
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


SCALE = np.full((), 0.5, np.float32)
OTHERS: dict[str, tuple[tuple[np.ndarray, ...], dict[str, Any]]] = {
    "Cast": ((), {"to": TensorProto.FLOAT16}),
    "QuantizeLinear": ((SCALE, np.full((), 7, np.uint8)), {}),
    "DequantizeLinear": ((SCALE, np.full((), 7, np.int8)), {}),
}
"""Operands and attributes without which an operator is none."""


@pytest.mark.parametrize("name", sorted(ops.named(Trait.FINITE_FROM_ZERO)))
def test_zeros_stay_finite(name: str) -> None:
    """However often it is applied, with its default attributes where it has them; the shape is the input's."""
    others, attributes = OTHERS.get(name, ((), {}))
    x = np.zeros((2, 3), np.int8 if name == ops.DequantizeLinear else np.float32)
    for _ in range(8):
        x = result(name, x, *others, **attributes).astype(x.dtype)
        assert x.shape == (2, 3)
        assert np.isfinite(x).all()


@pytest.mark.parametrize("name", sorted(ops.named(Trait.COMMUTATIVE)))
def test_operands_of_commutative_operators_swap(name: str) -> None:
    """To the last bit, and the result has the shape that both broadcast to."""
    rng = np.random.default_rng(0)
    a: np.ndarray = rng.standard_normal((2, 1, 5)).astype(np.float32)
    b: np.ndarray = rng.standard_normal((4, 1)).astype(np.float32)
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
    attributes: dict[str, Any] = {
        k: v for k, v in wanted.items() if k in schema.attributes and schema.attributes[k].required
    }
    node = helper.make_node(name, read, written, **attributes)
    for dtype in (TensorProto.FLOAT, TensorProto.BOOL, TensorProto.INT64):
        infos = [helper.make_tensor_value_info("x0", dtype, ["N", 3, "H", 8])]
        output = helper.make_tensor_value_info("y0", TensorProto.UNDEFINED, None)
        model = helper.make_model(helper.make_graph([node], "g", infos, [output]))
        inferred = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type
        if inferred.HasField("shape"):
            assert [d.dim_param or d.dim_value for d in inferred.shape.dim] == ["N", 3, "H", 8]


@pytest.mark.parametrize("entry", [e for e in ops.ENTRIES.values() if e.meaning or e.reduced or e.rows], ids=str)
def test_what_computes_is_counted(entry: Operator) -> None:
    """An entry that says what its operator computes says what that costs: the profiler has no other source."""
    assert entry.flops is not None
