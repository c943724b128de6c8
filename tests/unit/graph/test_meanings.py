"""What an entry says that its operator computes, evaluated by NumPy, is what ONNX Runtime computes."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from onnxfuse import ops
from onnxfuse.graph.meanings import computed
from onnxfuse.ops import Operator, Trait, scalar
from onnxfuse.ops.arrays import NUMPY
from onnxfuse.ops.scalar import Function

ATTRIBUTES: dict[str, dict[str, Any]] = {"Cast": {"to": 1}, "BitShift": {"direction": "LEFT"}}

INTEGERS = (np.int32, np.int64)

EXACT = {np.float64: 1e-12, np.float32: 1e-6, np.float16: 2e-3}
"""Of the element types, the relative difference of a result that ONNX Runtime rounds at each step."""

FLOAT32_INSIDE = ("FastGelu", "HardSwish", "Shrink")
"""Operators whose attributes or constants ONNX Runtime has in float32, where they are no attributes in float32 here."""


def operands(entry: Operator, dtype: type, rng: np.random.Generator) -> list[np.ndarray]:
    """Return operands of an operator that broadcast; none are outside its domain. A scale is one number."""
    if Trait.QUANTIZES in entry.traits:
        steps = rng.integers(-128, 128, (4, 2, 3)).astype(np.int8)
        x = steps if entry == ops.DequantizeLinear else (rng.standard_normal((4, 2, 3)) * 9).astype(dtype)
        return [x, np.asarray(0.1, dtype)]
    known = onnx.defs.has(entry, entry.domain)
    count = (
        onnx.defs.get_schema(entry, entry.domain).min_input if known else 2 if entry.startswith(("Bias", "Fast")) else 1
    )
    count = 3 if entry in ("Sum", "Max", "Min", "Mean") else max(count, 1)
    shapes = ((2, 3), (3,) if entry.domain or entry == ops.PRelu else (4, 2, 3), (1, 3))[:count]
    arrays: list[np.ndarray] = [(rng.standard_normal(shape) * 3).astype(dtype) for shape in shapes]
    if entry == ops.Where:
        arrays[0] = arrays[0] > 0
    if entry == ops.Pow:
        arrays[0] = np.abs(arrays[0])
    if entry in (ops.Mod, ops.Div) and dtype in INTEGERS:
        arrays[1] = np.where(arrays[1] == 0, 1, arrays[1])
    return [a.astype(np.uint32) % 5 for a in arrays] if entry == ops.BitShift else arrays


def in_runtime(node: onnx.NodeProto, feeds: dict[str, np.ndarray], opset: int) -> np.ndarray | None:
    """Return what ONNX Runtime computes, None if it has no kernel for these types."""
    infos = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), None) for n, a in feeds.items()]
    graph = helper.make_graph([node], "g", infos, [onnx.ValueInfoProto(name="y")])
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    except Exception:  # whose class ONNX Runtime does not say
        return None
    (found,) = session.run(None, feeds)
    return np.asarray(found)


@pytest.mark.parametrize("entry", [e for e in ops.ENTRIES.values() if e.meaning is not None], ids=str)
def test_a_meaning_is_what_onnx_runtime_computes(entry: Operator) -> None:
    """At old and new operator sets, in each type that both know."""
    rng, compared = np.random.default_rng(0), 0
    for opset in (9, 13, 18, 23):
        for dtype in (*EXACT, *INTEGERS, np.bool_):
            arrays = operands(entry, dtype, rng)
            attributes = ATTRIBUTES.get(entry, {"fmod": 1} if entry == ops.Mod and dtype in EXACT else {})
            node = helper.make_node(
                entry, [f"x{n}" for n in range(len(arrays))], ["y"], domain=entry.domain, **attributes
            )
            expected = in_runtime(node, {f"x{n}": a for n, a in enumerate(arrays)}, opset)
            if expected is None:
                continue
            (found,) = computed(entry, opset, arrays, attributes)
            assert found.dtype == expected.dtype
            near = (
                EXACT.get(expected.dtype.type, 0)
                if entry not in FLOAT32_INSIDE
                else 2e-3
                if dtype is np.float16
                else 1e-6
            )
            np.testing.assert_allclose(found, expected, rtol=near, atol=near, err_msg=f"opset {opset}, {dtype}")
            compared += 1
    assert compared or entry == ops.Swish  # which ONNX Runtime does not know yet


ROWS = {
    ops.Softmax: ((2, 3, 4),), ops.LogSoftmax: ((2, 3, 4),), ops.LpNormalization: ((2, 3, 4),),
    ops.LayerNormalization: ((2, 3, 4), (4,), (4,)), ops.RMSNormalization: ((2, 3, 4), (4,)),
    ops.SimplifiedLayerNormalization: ((2, 3, 4), (4,)),
    ops.SkipLayerNormalization: ((2, 3, 4), (2, 3, 4), (4,), (4,), (4,)),
    ops.SkipSimplifiedLayerNormalization: ((2, 3, 4), (2, 3, 4), (4,), (4,)),
    ops.GlobalAveragePool: ((2, 3, 4, 5),), ops.GlobalMaxPool: ((2, 3, 4, 5),),
}  # fmt: skip
"""Shapes of the operands of operators that reduce within rows."""


@pytest.mark.parametrize("entry", [e for e in ops.ENTRIES.values() if e.rows is not None], ids=str)
def test_a_norm_is_what_onnx_runtime_computes(entry: Operator) -> None:
    """At old and new operator sets; before 13 Softmax flattened all axes after the first into a row."""
    rng, compared = np.random.default_rng(0), 0
    for opset in (11, 13, 17, 23):
        arrays = [rng.standard_normal(shape).astype(np.float32) for shape in ROWS[entry]]
        node = helper.make_node(entry, [f"x{n}" for n in range(len(arrays))], ["y"], domain=entry.domain, epsilon=0.1)
        if "Norm" not in entry or entry == ops.LpNormalization:
            del node.attribute[:]
        expected = in_runtime(node, {f"x{n}": a for n, a in enumerate(arrays)}, opset)
        if expected is not None:
            attributes = {"epsilon": 0.1} if node.attribute else {}
            found, *_ = computed(entry, opset, arrays, attributes)
            np.testing.assert_allclose(found, expected, rtol=2e-6, atol=2e-6)
            compared += 1
    assert compared or (entry, entry.domain) == ("SimplifiedLayerNormalization", "com.microsoft")


FUNCTIONS = [f for f in (*vars(scalar).values(), *scalar.REAL_POWERS.values()) if isinstance(f, Function)]


@pytest.mark.parametrize("function", FUNCTIONS, ids=str)
def test_a_scalar_function_has_one_definition(function: Function) -> None:
    """A formula of others, or NumPy's; a conversion is neither."""
    assert (function.formula is not None) + (function in NUMPY) == (function not in (scalar.cast, scalar.retype))
