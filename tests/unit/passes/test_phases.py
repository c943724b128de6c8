"""The pipeline is the visible list of all that happens: every pass is in it once, in an order that ends."""

import importlib
import pkgutil
from collections import Counter

import pytest
from onnx import ModelProto

import onnxfuse.passes
from onnxfuse.graph.graph_pass import Pass
from onnxfuse.passes import phases
from onnxfuse.passes.manager import ModelPass, RulePass, State
from onnxfuse.rules.match.report import Applied, OptimizeReport
from tests.support.small import graph_of, optimize, parse

PASSES = [one for phase in phases.PIPELINE for one, _ in phase.listed()]


def test_every_pass_of_the_package_is_in_the_pipeline() -> None:
    """A module whose pass nobody lists does nothing; one by another name is that of another phase."""
    listed = {id(one) for one in PASSES} | {one.name for one in PASSES}
    missing = []
    for module in pkgutil.walk_packages(onnxfuse.passes.__path__, "onnxfuse.passes."):
        for name, one in vars(importlib.import_module(module.name)).items():
            if isinstance(one, Pass | RulePass | ModelPass) and id(one) not in listed and one.name not in listed:
                missing.append(f"{module.name}.{name}")
    assert missing == []


def test_names_are_unique_and_summaries_are_one_sentence() -> None:
    """`onnxfuse rules` lists them, `--dump` names its files by them."""
    assert [name for name, count in Counter(one.name for one in PASSES).items() if count > 1] == []
    for one in PASSES:
        assert one.summary.endswith("."), one.name
        assert "\n" not in one.summary, one.name
        assert one.summary[0].isupper(), one.name


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("expand_definitions", "standard_operators"),
        ("record_quantized_products", "constant_folding"),
        ("identity_elimination", "constant_folding"),
        ("constant_folding", "split_matmul"),
        ("explain_quantized_products", "dequantize_weights"),
        ("symmetric_pads", "channels_last"),
        ("padded_convolutions", "channels_last"),
        ("channels_last", "fuse"),
        ("fuse", "restore_originals"),
        ("restore_originals", "common_subexpressions"),
        ("fuse", "attach_bodies"),
        ("attach_bodies", "revert_unproven_ops"),
    ],
)
def test_what_one_pass_needs_another_did_before(earlier: str, later: str) -> None:
    """Reasons are those of the file's own nodes, layouts are chosen for what remains, ops are made before bodies."""
    order = [one.name for one in PASSES]
    assert order.index(earlier) < order.index(later)


def test_an_operator_that_no_kernel_took_is_restored_with_its_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was fused of its nodes is gone from the report, as it is from the model."""
    graph = graph_of(parse("g (float[N,8] x) => (float[N,8] y) { a = Exp (x) y = Neg (a) }"))
    gone = Applied("r", "onnxfuse:gone", ("Exp e",), outputs=("nowhere",))
    kept = Applied("r", "onnxfuse:kept", ("Neg n",), outputs=("y",))
    rewritten = Applied("rewrite", "", ("Cast c",), outputs=("nowhere",))
    state = State((), OptimizeReport(applied=[gone, kept, rewritten]))
    assert phases.restore_originals.run(graph, state) is False
    assert state.report.applied == [gone, kept, rewritten], "nothing was restored"
    monkeypatch.setattr(phases, "restore", lambda graph, written: True)
    assert phases.restore_originals.run(graph, state) is True
    assert state.report.applied == [kept, rewritten]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[N,8] x) => (float[N,8] y) { a = Exp (x) b = Neg (a) y = Softmax (b) }",
        "g (float[N,8] x) => (float[N,8] y) <float k = {2}> { a = Identity (x) b = Mul (a, k) y = Add (b, a) }",
    ],
)
def test_a_second_run_changes_nothing(text: str) -> None:
    """The phases are run to a fixed point."""
    made, _ = optimize(parse(text))
    again, report = optimize(made)
    assert again.SerializeToString(deterministic=True) == made.SerializeToString(deterministic=True)
    assert isinstance(again, ModelProto)
    assert report.applied == []
