"""Models whose operators are replaced by what they are defined by, and the comparison of what both compute."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto

from onnxfuse.graph.defined import write_definition
from tests.support.small import graph_of, parse, run

HEADER = '<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>'


def model_of(text: str, opset: int = 17) -> ModelProto:
    """Return the model of a text, with ONNX Runtime's own operators."""
    return parse(HEADER.format(opset=opset) + text)


def at_opsets(*families: tuple[Mapping[str, str], tuple[int, ...]]) -> list[Any]:
    """Return each text of each family at each of its operator sets, as arguments of a test."""
    return [
        pytest.param(text, opset, id=f"{name}-{opset}")
        for family, opsets in families
        for name, text in family.items()
        for opset in opsets
    ]


def written(model: ModelProto) -> tuple[ModelProto, list[str]]:
    """Return the model with what its operators are defined by, and the operators that had a definition."""
    copy = ModelProto()
    copy.CopyFrom(model)
    found = list[str]()
    for _ in range(3):  # one may be defined by another
        graph, constants = graph_of(copy), dict[bytes, str]()
        found += [f"{n.domain} {n.op}" for n in list(graph.nodes) if write_definition(graph, n, constants)]
        graph.commit()
    return copy, found


def inputs_of(model: ModelProto) -> dict[str, np.ndarray]:
    """Return one array for each input: T is 8, five new positions behind three."""
    extents, random = {"N": 3, "S": 5, "T": 8}, np.random.default_rng(3)
    found = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [d.dim_value or extents[d.dim_param] for d in tensor.shape.dim]
        drawn = np.asarray(random.normal(size=shape))
        found[value.name] = {1: drawn.astype(np.float32)}.get(
            tensor.elem_type,
            np.asarray(np.abs(drawn * 7), {6: np.int32, 7: np.int64}.get(tensor.elem_type, np.float32)),
        )
    return found


def assert_it_computes_what_the_kernel_does(
    text: str, opset: int, more: Mapping[str, np.ndarray] | None = None
) -> None:
    """Compare a model of operators that are defined with ONNX Runtime's kernels, in float32, with all outputs."""
    model = model_of(text, opset)
    made, found = written(model)
    assert found
    assert not {f"{n.domain} {n.op_type}" for n in made.graph.node} & {*found} - {" Attention"}
    inputs = {**inputs_of(model), **(more or {})}
    for before, after in zip(run(model, inputs), run(made, inputs), strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=3e-5 * max(1.0, np.abs(before).max()))


def assert_it_stays(text: str, opset: int = 17) -> None:
    """Check that nothing is written for a form that a definition does not know."""
    model = model_of(text, opset)
    made, found = written(model)
    assert not found
    assert [n.op_type for n in made.graph.node] == [n.op_type for n in model.graph.node]
