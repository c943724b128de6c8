"""Which shapes each fused op sees while a model's dimensions go through their ranges."""

from typing import Any

import numpy as np
import onnx

from onnxfuse import cuda
from onnxfuse.cuda.launch_programs.cover import Domain
from onnxfuse.cuda.launch_programs.family import Key
from onnxfuse.cuda.planning.arch import H200
from onnxfuse.runtime.packing import ranges
from onnxfuse.shapes.onnx_inference import may_multiply
from tests.support import fused_models as models
from tests.support.kernels.cached_attentions import Case


def model(text: str, *ops: Any) -> onnx.ModelProto:
    return models.model(text, *ops)


def test_each_op_sees_what_follows_from_the_names() -> None:
    """Extents that never change are the family's own; the others go through all their values together."""
    found = ranges.domains(models.chain(), {"N": (2, 5)})
    (domain,) = found["BiasRelu_1"]
    assert domain.key == Key((2, 1), (None, 8, 8))
    assert domain.whole
    assert domain.extents.tolist() == [[n, 8, 8] for n in (2, 3, 4, 5)]
    (fixed,) = ranges.domains(models.chain(), {"N": (3, 3)})["Negate_3"]
    assert fixed.key == Key((2,), (3, 8))


def test_a_model_whose_extents_are_all_written_has_one_shape() -> None:
    """Also where another input has a name: the op sees no size of it."""
    text = "g (float[3, 8] x, float[N] z) => (float[3, 8] y) { y = onnxfuse.Negate_3 (x) }"
    for sizes in ({}, {"N": (1, 4)}):
        (domain,) = ranges.domains(model(text, models.NEGATE), sizes)["Negate_3"]
        assert (domain.extents.tolist(), domain.whole) == ([[3, 8]], True)


def test_a_total_length_has_its_value_as_a_shape() -> None:
    """As the engine asks for it: from the new tokens alone to all rows of the cache and these."""
    op = Case(packed=True).op()
    ranks, most = (3, 4, 4, 1, 0), 16
    rows = [[1, n, 256, *[1, 2, most, 32] * 2, 1] for n in (1, 2)]
    domain = Domain(Key(ranks, (1, None, *rows[0][2:])), np.array(rows), True)
    found = ranges.with_totals(domain, op)
    assert found.key == Key((3, 4, 4, 1, 1), (1, None, *rows[0][2:], None))
    assert found.whole
    assert found.extents.tolist() == [[*row, row[1] + n] for row in rows for n in range(most + 1)]
    many = Domain(Key(ranks, (1, None, *rows[0][2:])), np.repeat(np.array(rows), ranges.MOST_SHAPES // 20, 0), True)
    some = ranges.with_totals(many, op)
    assert not some.whole
    assert {*some.extents[:, -1].tolist()} >= {1, 2, most + 1, most + 2}
    assert cuda.plan(op, rows_of(found, 5), True, H200).output_shapes[1] == (1, 2, most, 32)


def rows_of(domain: Domain, row: int) -> tuple[tuple[int, ...], ...]:
    extents = iter(domain.extents[row].tolist())
    return tuple(tuple(next(extents) for _ in range(rank)) for rank in domain.key.ranks)


def test_computed_extents_follow() -> None:
    """Of a convolution's output, of a Reshape: by the arithmetic of their names."""
    text = """g (float[B, 3, H, 8] x, float[4, 3, 3, 3] w) => (float[a, b, c, d] y) {
      c = Conv <strides = [2, 2]> (x, w)  y = onnxfuse.Negate_3 (c) }"""
    (domain,) = ranges.domains(model(text, models.NEGATE), {"B": (1, 2), "H": (5, 9)})["Negate_3"]
    assert domain.extents.tolist() == sorted([b, 4, h, 3] for b in (1, 2) for h in (2, 3, 4))


def test_what_no_name_tells_is_inferred_at_some_sizes() -> None:
    """Where ONNX's inference knows the number and no name of it: at all sizes where these are few."""
    text = """g (float[N, 8] x) => (float[a, b] y) <float[2] third = {0.34, 1}> {
      p = Resize (x, , third)  y = onnxfuse.Negate_3 (p) }"""
    small = ranges.domains(model(text, models.NEGATE), {"N": (4, 7)})
    assert [d.extents.tolist() for d in small["Negate_3"]] == [[[1, 8], [2, 8]]]
    assert all(d.whole for d in small["Negate_3"])
    large = ranges.domains(model(text, models.NEGATE), {"N": (4, 5000)})
    (domain,) = large["Negate_3"]
    assert not domain.whole
    assert {1, 1700} <= set(domain.extents[:, 0].tolist())


def test_large_vectors_are_no_reason_to_know_nothing() -> None:
    """Inference then runs in a child, as everywhere else."""
    text = """g (float[N, 8] x, float[60000] table) => (float[a, b] y) { y = onnxfuse.Negate_3 (x) }"""
    made = model(text, models.NEGATE)
    assert may_multiply(made)
    assert ranges.domains(made, {"N": (1, 2)})["Negate_3"][0].extents.tolist() == [[1, 8], [2, 8]]


def test_of_too_many_shapes_some_are_looked_at() -> None:
    text = """g (float[A, B, C] x) => (float[A, B, C] y) { y = onnxfuse.Negate_3 (x) }"""
    (domain,) = ranges.domains(model(text, models.NEGATE), {"A": (1, 500), "B": (1, 500), "C": (1, 2**31 - 1)})[
        "Negate_3"
    ]
    assert not domain.whole
    assert len(domain.extents) <= ranges.MOST_SHAPES
    rows = {tuple(r) for r in domain.extents.tolist()}
    assert {(n, 1, 1) for n in range(1, 501)} <= rows
    assert {(1, 1, 2**k) for k in range(31)} <= rows


def test_dimensions_have_names() -> None:
    """A dimension without one is called by its place; one that is computed from others is none of its own."""
    text = """g (float[batch, past, 8] x, float[batch, past + 1, 8] k) => (float[a, b, c] y) {
      y = onnxfuse.Negate_3 (x) }"""
    made = model(text.replace("past + 1", "next"), models.NEGATE)
    made.graph.input[1].type.tensor_type.shape.dim[1].dim_param = "past + 1"
    assert ranges.dimensions(made) == {"batch": (1, 32), "past": (1, 512)}
    made.graph.input[0].type.tensor_type.shape.dim[1].Clear()
    assert ranges.dimensions(made) == {"batch": (1, 32), "x[1]": (1, 512), "past + 1": (1, 512)}


def test_ops_at_the_edges_have_other_buffers() -> None:
    """They read what the caller gave, or write what the caller holds: at any address."""
    assert ranges.outside(models.chain()) == {"BiasRelu_1", "Negate_3"}
