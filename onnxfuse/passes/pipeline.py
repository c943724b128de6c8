"""The whole way of a model: normalize, rewrite to a fixed point, lay out, fuse, attach the bodies, check.

`STEPS` is all that happens, beside what rule files say.
"""

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from onnx import GraphProto, ModelProto

from onnxfuse.fusion.attach import attach
from onnxfuse.fusion.fuse import fuse
from onnxfuse.fusion.region.choices import Choices
from onnxfuse.fusion.steps.k_major_weights import store_k_major
from onnxfuse.fusion.steps.padded_rows import pad_rows
from onnxfuse.fusion.undo.blame import mend
from onnxfuse.fusion.undo.unproven_ops import revert_unproven_ops
from onnxfuse.graph import normalize
from onnxfuse.graph.constant_folding import (
    common_subexpressions,
    constant_folding,
    identity_elimination,
    reuse_extents,
    sum_extents,
)
from onnxfuse.graph.graph import Graph, bodies
from onnxfuse.graph.redefined import redefined
from onnxfuse.graph.shared_weights import share_equal_weights
from onnxfuse.graph.validity import Judge, Opens
from onnxfuse.model.fused import FusedOp
from onnxfuse.model.nested import nodes_of
from onnxfuse.model.overridable import overridable
from onnxfuse.model.schema import opset_of
from onnxfuse.passes.alignment.pad_columns import pad_columns
from onnxfuse.passes.alignment.pad_heads import pad_heads
from onnxfuse.passes.alignment.pad_integer_inputs import pad_integer_inputs
from onnxfuse.passes.batching.einsum_to_matmul import einsum_to_matmul
from onnxfuse.passes.batching.matmul_transpose import absorb_matmul_transposes
from onnxfuse.passes.batching.merge_embedding_tables import merge_embedding_tables
from onnxfuse.passes.batching.merge_windows import merge_windows
from onnxfuse.passes.batching.split_matmul import split_matmul
from onnxfuse.passes.batching.unmerge_batches import unmerge_batches
from onnxfuse.passes.control_flow.constant_control_flow import constant_control_flow
from onnxfuse.passes.control_flow.constant_sequences import constant_sequences
from onnxfuse.passes.fold.common_subexpressions import common_elementwise_subexpressions, common_position_subexpressions
from onnxfuse.passes.fold.simplified_norms import expand_simplified_norms
from onnxfuse.passes.fold.standardized_weights import standardize_weights
from onnxfuse.passes.layout.all_axes import explicit_axes
from onnxfuse.passes.layout.layout_min_cut import assign_layout
from onnxfuse.passes.layout.symmetric_pads import symmetric_pads
from onnxfuse.passes.masks.shrink_masks import shrink_masks
from onnxfuse.passes.shapes.constant_reshape_targets import bypass_shared_reshapes, constant_reshape_targets
from onnxfuse.passes.shapes.constant_resizes import constant_resizes
from onnxfuse.passes.shapes.declared_extents import keep_declared_extents
from onnxfuse.passes.shapes.device_scalars import device_scalars
from onnxfuse.passes.shapes.int64_extents import int64_extents
from onnxfuse.passes.shapes.many_operands import split_many_operands
from onnxfuse.passes.views.cancel_split_concat import cancel_split_concat
from onnxfuse.passes.views.canonical_slices import canonical_slices
from onnxfuse.passes.views.elementwise_before_view import elementwise_before_view
from onnxfuse.passes.views.scatter_to_concat import scatter_to_concat
from onnxfuse.passes.views.tile_to_expand import tile_to_expand
from onnxfuse.passes.views.transposes import cast_before_transpose, merge_transposes
from onnxfuse.passes.views.unit_axes import keep_unit_axes, merge_unit_axes_into_reshapes, redundant_reshape_elimination
from onnxfuse.rules.language import pack, strict_float32
from onnxfuse.rules.language.rule_file import Rule, by_default, replacing, shipped
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.rules.rewriting.every_graph import for_every_graph
from onnxfuse.rules.rewriting.rewrite import MAX_ROUNDS, endless, settle
from onnxfuse.shapes.inference import shell

Progress = Callable[[str], None]
"""Called with the name of each phase as it starts."""

OLDEST = 7
"""The first operator set that ONNX Runtime promises to run. Before it Add and its like broadcast where an attribute
says so alone: rules mean something else there."""


@dataclass(frozen=True)
class Pass:
    """What optimizing does by itself, beside what rule files say."""

    name: str
    phase: str
    summary: str
    """One line: what is saved."""
    act: Callable[..., Any]


STEPS = (
    Pass("normalize", "normalize", "Sorts nodes, imports missing domains and inlines foreign functions.",
         normalize.normalize),
    Pass("keep_declared_extents", "rewrite, first", "Writes into a Reshape's target which extent it keeps, where only "
         "the exporter's declarations tell.", keep_declared_extents),
    Pass("identity_elimination", "rewrite", "Removes Identity, products with 1 and Casts to the same type.",
         identity_elimination),
    Pass("constant_control_flow", "rewrite", "Inlines the branch that an If is known to take, and Loops with few known "
         "trips.", constant_control_flow),
    Pass("constant_sequences", "rewrite", "Replaces reads of a sequence at a known index by the value inserted there.",
         constant_sequences),
    Pass("merge_transposes", "rewrite", "Merges a Transpose of a Transpose into one, or none.", merge_transposes),
    Pass("cast_before_transpose", "rewrite", "Moves a Cast above a Transpose, so that the product writes the narrow "
         "type.", cast_before_transpose),
    Pass("keep_unit_axes", "rewrite", "Keeps axes of extent 1 that are squeezed and unsqueezed again.", keep_unit_axes),
    Pass("merge_unit_axes_into_reshapes", "rewrite", "Merges Squeeze, Unsqueeze and Transposes of unit axes into the "
         "adjacent Reshape.", merge_unit_axes_into_reshapes),
    Pass("constant_folding", "rewrite", "Computes what depends on constants alone, unless the file would grow much.",
         constant_folding),
    Pass("standardize_weights", "rewrite", "Folds the standardization of weights by their own statistics.",
         standardize_weights),
    Pass("int64_extents", "rewrite", "Removes casts of extents to int32 and back, as TensorFlow writes them.",
         int64_extents),
    Pass("sum_extents", "rewrite", "Replaces the length of a growing cache by the sum of its parts' lengths.",
         sum_extents),
    Pass("reuse_extents", "rewrite", "Reads an extent from the first value that has it, or from a constant.",
         reuse_extents),
    Pass("common_position_subexpressions", "rewrite", "Merges nodes that compute the same extents and positions.",
         common_position_subexpressions),
    Pass("constant_reshape_targets", "rewrite", "Replaces computed targets of Reshape and Expand by constants where "
         "the types tell them.", constant_reshape_targets),
    Pass("bypass_shared_reshapes", "rewrite", "Lets a Reshape of a shared Reshape read that one's input.",
         bypass_shared_reshapes),
    Pass("explicit_axes", "rewrite", "Gives Pad and nearest Resize numbers for all axes next to convolutions, so that "
         "ONNX Runtime moves Transposes through them.", explicit_axes),
    Pass("constant_resizes", "rewrite", "Replaces computed sizes of a Resize by constant scales, or scales that round "
         "differently by sizes.", constant_resizes),
    Pass("canonical_slices", "rewrite", "Removes steps of 1 from Slices, the form that rules match.", canonical_slices),
    Pass("scatter_to_concat", "rewrite", "Rewrites ScatterND over a contiguous slice as Concat(before, update, after).",
         scatter_to_concat),
    Pass("cancel_split_concat", "rewrite", "Replaces a Concat of adjacent parts of a value by the value.",
         cancel_split_concat),
    Pass("pad_integer_inputs", "rewrite", "Rewrites a computed Pad of integers as a Concat: its Pad has no CUDA "
         "kernel.", pad_integer_inputs),
    Pass("tile_to_expand", "rewrite", "Rewrites a Tile that repeats only unit axes as an Expand.", tile_to_expand),
    Pass("split_many_operands", "rewrite", "Splits a Sum, Mean, Max or Min of many operands into several that fuse "
         "with their producers.", split_many_operands),
    Pass("expand_simplified_norms", "rewrite", "Rewrites ONNX Runtime's SimplifiedLayerNormalization as the RMS norm "
         "that rules match.", expand_simplified_norms),
    Pass("einsum_to_matmul", "rewrite", "Rewrites an Einsum that is a matrix product as MatMul and Transposes.",
         einsum_to_matmul),
    Pass("unmerge_batches", "rewrite", "Runs products and Transposes over the batch axes that a Reshape merged.",
         unmerge_batches),
    Pass("merge_windows", "rewrite", "Merges several batch axes of an attention, as of windows, into one.",
         merge_windows),
    Pass("pad_heads", "rewrite", "Pads attention heads to a size that a kernel takes, in the weights around them.",
         pad_heads),
    Pass("elementwise_before_view", "rewrite", "Moves elementwise nodes above a Reshape of a convolution's image.",
         elementwise_before_view),
    Pass("shrink_masks", "rewrite", "Replaces a mask that is equal for all queries by one row.", shrink_masks),
    Pass("merge_embedding_tables", "rewrite", "Merges Gathers from several concatenated tables into one.",
         merge_embedding_tables),
    Pass("redundant_reshape_elimination", "rewrite, last", "Removes Reshapes to the shape that is already there.",
         redundant_reshape_elimination),
    Pass("split_matmul", "rewrite, last", "Splits a product whose columns are sliced apart into one product per slice.",
         split_matmul),
    Pass("absorb_matmul_transposes", "rewrite, last", "Runs products between two Transposes along the other axis, "
         "without the Transposes.", absorb_matmul_transposes),
    Pass("device_scalars", "layout", "Passes shape-derived scalars as launch arguments instead of copying them to the "
         "device.", device_scalars),
    Pass("symmetric_pads", "layout", "Rewrites a ConvTranspose with asymmetric pads, which has no CUDA kernel, as a "
         "symmetric one and a Slice.", symmetric_pads),
    Pass("channels_last", "layout", "Chooses channels-last regions by a minimal cut and rewrites them.",
         assign_layout),
    Pass("pad_columns", "layout", "Pads the columns of products to a size that kernels take, in the weights on both "
         "sides.", pad_columns),
    Pass("common_elementwise_subexpressions", "layout", "Merges equal elementwise nodes before kernels grow.",
         common_elementwise_subexpressions),
    Pass("k_major_weights", "fuse", "Stores weights K-major where a rule asks for it.", store_k_major),
    Pass("padded_rows", "fuse", "Pads rows of a left factor's weights to 16 bytes.", pad_rows),
    Pass("common_subexpressions", "fuse, last", "Merges nodes that compute the same of the same values.",
         common_subexpressions),
    Pass("share_equal_weights", "attach bodies", "Stores equal weights of several branches once.",
         share_equal_weights),
)  # fmt: skip
"""All of them, in their order. That of `rewrite, first` goes once; those of `rewrite` go before the rules' rewrites,
again and again until nothing changes; those of `rewrite, last` once the rules have nothing more to say, and what they
change goes through them again; those of `fuse` while a kernel grows, and that of `fuse, last` once all have. All but
`normalize` then go on until they leave the model as it is: a file that is optimized again is the same."""


def run(
    model: ModelProto,
    rules: Sequence[Rule] | None = None,
    progress: Progress = lambda _: None,
    choices: Choices | None = None,
    *,
    opens: Opens | None = None,
    again: Callable[[], ModelProto] | None = None,
    freeze: bool = False,
) -> OptimizeReport:
    """Optimize `model` in place and return what was done. Raises ModelError for a model that is not valid.

    `choices` is what measuring decided, by default what the rules say of cost. `opens` says whether ONNX Runtime opens
    a model: it is asked of the result, and of a model that ONNX's checker does not take. `again` gives the model as it
    came: a rewrite that made it invalid is then left out. With `freeze` weights that are graph inputs, too, become
    constants. The same model, rules and choices give the same bytes, and an optimized model comes out as it went in.
    """
    rules = strict_float32.for_model(by_default(shipped()) if rules is None else rules, model)
    report, twice = OptimizeReport(before=count_ops(model)), redefined(model)
    with _phase(report, "normalize", progress):
        normalize.normalize(model, freeze=freeze)
        judge = Judge(model, opens)
    opset = opset_of(model)
    if opset >= OLDEST:
        _optimize(model, rules, report, progress, choices)
    elif any(not n.domain for n in nodes_of(model.graph)):
        report.notes.append(
            f"opset {opset} is older than what ONNX Runtime promises to run, {OLDEST}: nothing is done. Export it with "
            "a newer one, or convert it: onnx.version_converter.convert_version(model, 17)"
        )

    def remake(without: Collection[str]) -> tuple[ModelProto, OptimizeReport]:
        assert again is not None
        anew, remade = again(), OptimizeReport(before=report.before)
        normalize.normalize(anew, freeze=freeze)
        _optimize(anew, [r for r in rules if r.name not in without], remade, progress, choices)
        return anew, remade

    with _phase(report, "check", progress):
        said = judge.wrong(model)
        if said is not None:
            mended = mend(model, report, rules, said, judge.wrong, None if again is None else remake, again)
            if mended.model is not model:
                model.CopyFrom(mended.model)
            report = mended.report
    pack.record(model, [r for r in rules if r.name in report.by_rule()])
    report.notes += judge.notes()
    report.notes += [
        f"{r.path} takes the place of the rule {r.name} that comes with onnxfuse" for r in replacing(rules)
    ]
    if twice:
        others = f", and {len(twice) - 1} more" if twice[1:] else ""
        report.notes.append(f"'{twice[0]}' is defined more than once{others}: the last is taken, as ONNX Runtime does")
    if weights := overridable(model):
        report.notes.append(
            f"weights that are graph inputs, too ({len(weights)}, as '{weights[0]}'), may be replaced by a caller: "
            "nothing is done that takes them for constants. With --freeze-initializers they are constants"
        )
    report.after = count_ops(model)
    return report


def _optimize(
    model: ModelProto, rules: Sequence[Rule], report: OptimizeReport, progress: Progress, choices: Choices | None
) -> None:
    """Take a normalized model through the other phases, in place, whatever comes out, until they leave it as it is.

    What one rule fused may have been all that kept another one, or a simplification, from its nodes: optimizing the
    file again would find it. Raises RuleError for rules that never settle.
    """
    ops: dict[str, FusedOp] = {}
    for turn in range(MAX_ROUNDS):
        before, told = shell(model), OptimizeReport(seconds=report.seconds)
        proven = _optimize_once(model, rules, told, _silently if turn else progress, choices, ops)
        changed = shell(model) != before
        if changed or not turn:
            report.add(told)
        if not changed:
            return
        # What measuring decided is of the first turn's ops: there, no rule fuses what was left to stand alone.
        rules = proven if choices is None else [r for r in proven if r.fuse is None]
    raise endless(told.applied, f"optimizing what was optimized {MAX_ROUNDS} times changes it still")


def _silently(phase: str) -> None:
    """Tell nobody of a phase that each model goes through again."""


def _optimize_once(
    model: ModelProto,
    rules: Sequence[Rule],
    report: OptimizeReport,
    progress: Progress,
    choices: Choices | None,
    ops: dict[str, FusedOp],
) -> Sequence[Rule]:
    """Take a model through the phases; return the rules without those whose ops the file does not prove.

    `ops` are the fused ops that were made so far.
    """
    simplify, last = ([s.act for s in STEPS if s.phase == phase] for phase in ("rewrite", "rewrite, last"))
    proven = rules

    def place(graph: Graph) -> None:
        device_scalars(graph)
        symmetric_pads(graph)
        assign_layout(graph, rules=rules, report=report)
        elementwise_before_view(
            graph
        )  # volumes that are images of their layers; an image of one channel that leaves a region
        pad_columns(graph)
        common_elementwise_subexpressions(graph)
        merge_unit_axes_into_reshapes(graph)  # the row of a signal that leaves a region

    def grow(graph: Graph) -> None:
        fuse(graph, proven, report, ops, choices)
        if common_subexpressions(graph):
            graph.eliminate_dead_code()

    def simplified() -> None:
        keep_declared_extents(model)
        settle(model, simplify, rules, report, last)

    def attached() -> None:
        nonlocal proven
        attach(model, ops)
        made = {a.op: ops[a.op] for a in report.applied if a.op}  # those of earlier runs are proven
        without = revert_unproven_ops(model, made, rules, report)
        if without:
            proven = [r for r in rules if r.name not in without]
            for_every_graph(model, grow)
            attach(model, ops)

    phases: tuple[tuple[str, Callable[[], object]], ...] = (
        ("rewrite", simplified),
        ("layout", lambda: for_every_graph(model, place)),
        ("fuse", lambda: for_every_graph(model, grow)),
        ("attach bodies", attached),
    )
    for phase, act in phases:
        with _phase(report, phase, progress):
            act()
    return proven


@contextlib.contextmanager
def _phase(report: OptimizeReport, name: str, progress: Progress) -> Iterator[None]:
    """Say which phase begins, and keep the time that it takes."""
    progress(name)
    start = time.perf_counter()
    yield
    report.seconds[name] = report.seconds.get(name, 0.0) + time.perf_counter() - start


def count_ops(model: ModelProto) -> Counter[str]:
    """Return how often each operator stands in the model, the bodies of If, Loop and Scan included."""

    def walk(graph: GraphProto) -> Iterator[str]:
        for node in graph.node:
            yield f"{node.domain}:{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
            for body in bodies(node):
                yield from walk(body)

    return Counter(walk(model.graph))
