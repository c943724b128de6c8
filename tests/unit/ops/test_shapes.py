"""Shape functions of entries give the shapes of onnx's node tests, whose outputs are computed by NumPy."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfuse import ops
from onnxfuse.ops import Operator
from onnxfuse.shapes.onnx_inference import infer_node
from onnxfuse.shapes.output_shapes import results_of
from onnxfuse.shapes.types import Dim, Shape, type_of
from onnxfuse.shapes.value_facts import ValueFacts
from onnxfuse.symbolic.integer import Int

SHAPED = [e for (domain, _), e in ops.ENTRIES.items() if not domain and e.shape is not None]

UNTESTED = {"SimplifiedLayerNormalization", "GlobalLpPool", "RandomNormalLike", "RandomUniformLike"}
"""Operators without a node test: of ONNX Runtime alone, older than the newest operator set, or random."""

UNTOLD = {"Einsum", "Range", "Resize"}
"""Operators with forms that are not told: an ellipsis, numbers that are no integers, regions and kept ratios."""


@dataclass(frozen=True)
class Case:
    """One node with the arrays that it reads and gives."""

    node: NodeProto
    opset: int
    arrays: Mapping[str, np.ndarray]
    """Inputs by name."""
    outputs: Mapping[str, np.ndarray]

    def known(self, *, named: bool) -> ValueFacts:
        """Return what inference knows: all shapes, or a name for each extent but 1; and small integer tensors."""
        facts = ValueFacts(self.opset, {})
        for name, array in self.arrays.items():
            facts.remember(name, numpy_helper.from_array(array))
            if named:
                facts.shapes[name] = self.declared(array)
        return facts

    @staticmethod
    def declared(array: np.ndarray) -> tuple[int | Int, ...]:
        """Return a shape with names for extents, equal ones for equal extents."""
        return tuple(n if n == 1 else Int.name(f"n{n}") for n in array.shape)


@cache
def cases() -> Mapping[str, Sequence[Case]]:
    """Return the node tests of onnx that are one node on tensors, by operator."""
    from onnx.backend.test.loader import load_model_tests

    found: dict[str, list[Case]] = defaultdict(list)
    with np.errstate(all="ignore"):
        tests = load_model_tests(kind="node")
    for test in tests:
        assert test.model is not None
        graph, opset = test.model.graph, next((o.version for o in test.model.opset_import if not o.domain), 0)
        if len(graph.node) != 1 or graph.node[0].domain:
            continue
        for inputs, outputs in test.data_sets or ():
            if not any(isinstance(value, list | dict) or value is None for value in (*inputs, *outputs)):
                arrays = dict(zip([i.name for i in graph.input], map(array_of, inputs), strict=False))
                results = dict(zip([o.name for o in graph.output], map(array_of, outputs), strict=False))
                found[graph.node[0].op_type].append(Case(graph.node[0], opset, arrays, results))
    return found


def array_of(value: np.ndarray | TensorProto) -> np.ndarray:
    """Return an input or output of a test."""
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def told(case: Case, shapes: Sequence[Shape]) -> Iterator[tuple[Dim, int]]:
    """Yield each extent that is told, and the true one."""
    for name, shape in zip(case.node.output, shapes, strict=False):
        if name and shape is not None:
            yield from zip(shape, case.outputs[name].shape, strict=True)


@pytest.mark.parametrize("entry", SHAPED, ids=str)
def test_shapes_are_those_of_the_results(entry: Operator) -> None:
    """Nothing is unknown where all shapes and small integers are known; extents with names are those of the results.

    Where ONNX's inference knows an extent for named ones, it agrees.
    """
    found = cases().get(entry, ())
    assert bool(found) != (entry in UNTESTED)
    for case in found:
        sizes = {f"n{n}": n for a in case.arrays.values() for n in a.shape}
        shapes = results_of(case.known(named=False), case.node)[0]
        assert shapes or entry in UNTOLD, case.node
        for extent, true in told(case, shapes):
            assert extent == true, case.node
        named = results_of(case.known(named=True), case.node)[0]
        for extent, true in told(case, named):
            assert extent is None or (extent.substitute(**sizes) if isinstance(extent, Int) else extent) == true
        inferred = of_onnx(case)
        for name, mine in zip(case.node.output, named, strict=False):
            other = inferred.get(name)
            for a, b in zip(mine or (), other or (), strict=other is not None and mine is not None):
                assert not (isinstance(a, int) and isinstance(b, int)) or a == b


def of_onnx(case: Case) -> Mapping[str, Shape]:
    """Return the shapes that ONNX infers for named extents."""
    types = {
        name: helper.make_tensor_type_proto(
            helper.np_dtype_to_tensor_dtype(a.dtype), [str(n) if isinstance(n, Int) else n for n in case.declared(a)]
        )
        for name, a in case.arrays.items()
    }
    small = {name: numpy_helper.from_array(a) for name, a in case.arrays.items() if a.size <= 64 and a.ndim < 2}
    return {name: type_of(t).shape for name, t in infer_node(case.node, types, small, case.opset).items()}


COMPUTED = [e for e in SHAPED if e.value is not None or e.meaning is not None or e.reduced is not None]


@pytest.mark.parametrize("entry", COMPUTED, ids=str)
def test_elements_are_those_of_the_results(entry: Operator) -> None:
    """Of small tensors of integers, where they are told."""
    for case in cases().get(entry, ()):
        _, found = results_of(case.known(named=False), case.node)
        true = case.outputs[case.node.output[0]]
        if found is not None and true.dtype.kind in "iub":
            for element, number in zip(found.array.reshape(-1), true.reshape(-1).tolist(), strict=True):
                assert element is None or element == number, case.node
