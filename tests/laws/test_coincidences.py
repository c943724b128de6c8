"""Axes of equal sizes are no equal axes: which sizes a run brings changes no fused op, and none is without a plan."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import onnx
import pytest

import models
from models.survey.samples import FOLDER, SUFFIX, unpacked
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import A10, H200
from onnxfuse.graph import concrete_shapes
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.shapes import inference, types
from onnxfuse.shapes.extent_values import extent_value
from tests.support.small import parse

SIZES = ((1,), (2,), (4,), (12,), (64,), (7, 11, 13, 5), (1, 7, 3), (7, 1, 3), (9, 1, 1), (1, 1, 9))
"""What open extents are, a row at a time, each name taking one of it: all the same, as many as there are heads or
channels; all different; a one here and there."""

POOLED = """g (float[B,S,48] x, float[B,S,48] weight) => (float[B,48] y)
<int64[1] axes = {1}, float least = {0.01}> {
  h = Tanh (x)
  kept = MatMul (h, square)
  count = ReduceSum <keepdims = 0> (weight, axes)
  some = Clip (count, least)
  sum = ReduceSum <keepdims = 0> (kept, axes)
  y = Div (sum, some)
}"""


def pooled() -> onnx.ModelProto:
    """Return the mean of a product's rows by weights: two sums of [batch, sequence, 48] that share no value."""
    weight = onnx.numpy_helper.from_array(np.eye(48, dtype=np.float32), "square")
    model = parse(POOLED)
    model.graph.initializer.append(weight)
    return model


def gpt2() -> onnx.ModelProto:
    """Return a layer with four heads of 12."""
    return models.build("gpt2", layers=1, hidden=48, heads=4, vocabulary=97, positions=40)


SAMPLES = ("conformer", "deberta-v2", "gpt2+cache")


def planned(model: onnx.ModelProto) -> Iterator[tuple[str, str | None]]:
    """Plan every fused op at every sizes for the GPUs whose limits differ most; yield its name and why it has none.

    What a session leaves to the library, because its kernel may not take such shapes, has no plan to be asked for.
    """
    known = concrete_shapes.every_type(inference.infer(model).graph)
    for name, nodes in concrete_shapes.fused_nodes(model.graph).items():
        op = fused_ops(model)[name]
        for given in {tuple(known.get(v) for v in node.input) for node in nodes}:
            told = [None if t is None else t.shape for t in given]
            archs = [a for a in (A10, H200) if cuda.fits(op, told, a) is None]
            for sizes in SIZES if cuda.is_template(op.template) else ():
                shapes = shapes_at(given, sizes)
                if shapes is not None and all(n for shape in shapes for n in shape):
                    cases = [(arch, aligned) for arch in archs for aligned in (True, False)]
                    yield name, cuda.unplanned(op, shapes, cases)


def shapes_at(given: tuple[types.ValueType | None, ...], sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """Return the shapes where each name has one of `sizes`; None where one is not known."""
    chosen: dict[str, int] = {}

    def of(name: str) -> int:
        return chosen.setdefault(name, sizes[len(chosen) % len(sizes)])

    shapes = [None if t is None or t.shape is None else [extent_value(d, of) for d in t.shape] for t in given]
    if any(s is None or None in s for s in shapes):
        return None
    return tuple(tuple(n for n in s if n is not None) for s in shapes if s is not None)


def stopped_without_a_kernel(report: OptimizeReport) -> list[str]:
    """Return the reasons of what was not made because it has no plan."""
    reasons = [s.reason for a in report.applied for s in a.stops] + [n.refusal.reason for n in report.near]
    return [r for r in reasons if "there is no kernel" in r]


def all_planned(model: onnx.ModelProto) -> None:
    report = pipeline.run(model)
    assert stopped_without_a_kernel(report) == []
    outcomes = list(planned(model))
    assert len(outcomes) >= len(SIZES)
    assert [(name, why) for name, why in outcomes if why is not None] == []


@pytest.mark.parametrize("build", [pooled, gpt2])
def test_every_op_of_a_model_has_a_plan_whatever_sizes_coincide(build: Callable[..., Any]) -> None:
    """Batch, sequence, heads and what a head holds may all be one number; so may all be ones."""
    all_planned(build())


@pytest.mark.parametrize("name", SAMPLES)
def test_every_op_of_an_export_has_a_plan_whatever_sizes_coincide(name: str) -> None:
    (file,) = FOLDER.glob(f"*-{name}-*{SUFFIX}")
    all_planned(unpacked(file.read_bytes()))
