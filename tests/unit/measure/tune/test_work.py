"""The work that is measured: each once, without what the model leaves alone."""

import numpy as np
import onnx

from onnxfuse.measure.tune import candidate_times as watches
from onnxfuse.measure.tune import tune
from onnxfuse.measure.tune.work import TuningTask
from onnxfuse.rules.language import rule_file
from tests.support.tuning import by_kind, short_attention, stopwatch
from tests.unit.measure.tune.test_candidates import run

RULES = rule_file.by_default(rule_file.shipped())


def test_the_nodes_left_alone_are_those_of_the_model(works: dict[str, TuningTask]) -> None:
    """A bias that was taken out of a Gemm is in it again; a product that the library computes for an op is there."""
    assert sorted(works) == [
        "gemm: Gemm Gelu",
        "gemm: MatMul Add Relu",
        "layer_norm: Add LayerNormalization",
        "linear: Gemm Gelu",
        "linear: MatMul Add Relu",
        "plain_product: Gemm",
        "plain_product: MatMul",
    ]
    after_product = works["linear: Gemm Gelu"]
    assert [n.op_type.rpartition("_")[0] for n in after_product.fused.graph.node] == [
        "PlainProduct_Gemm", "Linear_AddGelu",
    ]  # fmt: skip
    assert [len(n.input) for n in after_product.plain.graph.node] == [3, 1]


def test_copies_share_no_value(works: dict[str, TuningTask]) -> None:
    """Each copy computes the same from inputs of its own."""
    model = works["gemm: Gemm Gelu"].fused
    many = watches.replicated(model, 3)
    onnx.checker.check_model(many, full_check=True)
    (name,) = [i.name for i in model.graph.input]
    x = watches._inputs(model)[name]
    results = run(many, {f"{name}.{n}": x * n for n in range(3)})
    for n, result in enumerate(results):
        np.testing.assert_array_equal(result, run(model, {name: x * n})[0])
    assert len({t.name for t in many.graph.initializer}) == 3 * len(model.graph.initializer)


def test_what_a_mask_is_known_to_be_it_is_in_the_work_too() -> None:
    """A causal mask that the graph computes of shapes is no input, for which any numbers would be drawn."""
    seen: list[TuningTask] = []
    tune(
        short_attention(320, causal=True),
        RULES,
        {},
        stopwatch=stopwatch(by_kind(fused=1, library=2, split=3, alone=4), seen),
    )
    work = next(w for w in seen if w.op.rule == "attention")
    for model in (work.fused, work.plain):
        assert [i.name for i in model.graph.input] == ["q", "k", "v"]
        assert "LessOrEqual" in {n.op_type for n in model.graph.node}
