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

from onnxfuse.model import normalize
from onnxfuse.model.fold import drop_identities, fold_constants, share_equal, share_extents, sum_extents
from onnxfuse.model.fused import FusedOp
from onnxfuse.model.graph import Graph, bodies
from onnxfuse.model.inferred_types import shell
from onnxfuse.model.nested import nodes_of
from onnxfuse.model.overridable import overridable
from onnxfuse.model.redefined import redefined
from onnxfuse.model.schema import opset_of
from onnxfuse.model.share import share_weights
from onnxfuse.model.valid import Judge, Opens
from onnxfuse.rewrite import strict
from onnxfuse.rewrite.blame import mend
from onnxfuse.rewrite.each_graph import each_graph
from onnxfuse.rewrite.fuse.attach import attach
from onnxfuse.rewrite.fuse.choices import Choices
from onnxfuse.rewrite.fuse.fuse import fuse
from onnxfuse.rewrite.fuse.k_major_weights import store_k_major
from onnxfuse.rewrite.fuse.padded_rows import pad_rows
from onnxfuse.rewrite.language import pack
from onnxfuse.rewrite.language.rule_file import Rule, by_default, replacing, shipped
from onnxfuse.rewrite.nhwc.even_pads import even_pads
from onnxfuse.rewrite.nhwc.min_cut import lay_out
from onnxfuse.rewrite.report import Report
from onnxfuse.rewrite.simplify.all_axes import name_all_axes
from onnxfuse.rewrite.simplify.constant_shapes import fix_targets, part_reshapes
from onnxfuse.rewrite.simplify.cut_products import cut_products
from onnxfuse.rewrite.simplify.declared_extents import keep_declared_extents
from onnxfuse.rewrite.simplify.einsums import multiply_einsums
from onnxfuse.rewrite.simplify.equal_nodes import share_elementwise, share_positions
from onnxfuse.rewrite.simplify.join_tables import join_tables
from onnxfuse.rewrite.simplify.joined_parts import join_parts
from onnxfuse.rewrite.simplify.known_flow import flatten_known_flow
from onnxfuse.rewrite.simplify.known_sequences import take_known_elements
from onnxfuse.rewrite.simplify.late_views import late_views
from onnxfuse.rewrite.simplify.many_operands import group_operands
from onnxfuse.rewrite.simplify.merged_batches import unmerge_batches
from onnxfuse.rewrite.simplify.merged_windows import merge_windows
from onnxfuse.rewrite.simplify.numbers_on_gpu import numbers_on_gpu
from onnxfuse.rewrite.simplify.padded_columns import pad_columns
from onnxfuse.rewrite.simplify.padded_heads import pad_heads
from onnxfuse.rewrite.simplify.padded_numbers import pad_whole_numbers
from onnxfuse.rewrite.simplify.plain_slices import plain_slices
from onnxfuse.rewrite.simplify.resizes import fix_resizes
from onnxfuse.rewrite.simplify.rewrite import MAX_ROUNDS, endless, settle
from onnxfuse.rewrite.simplify.shrink_masks import slim_masks
from onnxfuse.rewrite.simplify.simplified_norms import plain_norms
from onnxfuse.rewrite.simplify.single_axes import drop_own_reshapes, keep_single_axes, reshape_single_axes
from onnxfuse.rewrite.simplify.spread_tiles import spread_tiles
from onnxfuse.rewrite.simplify.standardized_weights import standardize_weights
from onnxfuse.rewrite.simplify.transposes import cast_before_turning, merge_transposes
from onnxfuse.rewrite.simplify.turned_products import unturn_products
from onnxfuse.rewrite.simplify.wide_extents import widen_extents
from onnxfuse.rewrite.simplify.written_slices import write_slices
from onnxfuse.rewrite.unproven import take_back_unproven

Progress = Callable[[str], None]
"""Called with the name of each phase as it starts."""

OLDEST = 7
"""The first operator set that ONNX Runtime promises to run. Before it Add and its like broadcast where an attribute
says so alone: rules mean something else there."""


@dataclass(frozen=True)
class Step:
    """What optimizing does by itself, beside what rule files say."""

    name: str
    phase: str
    summary: str
    """One line: what is saved."""
    act: Callable[..., Any]


STEPS = (
    Step("inputs_in_order", "normalize", "What ONNX Runtime takes is written as ONNX's own tools take it: nodes in "
         "order, domains imported, foreign functions inlined.", normalize.normalize),
    Step("keep_declared_extents", "rewrite, first", "A Reshape says itself which extent it keeps where only the "
         "exporter's declarations tell.", keep_declared_extents),
    Step("drop_identities", "rewrite", "What reads an Identity, a product with 1 or a Cast to the same type reads what "
         "it passes on.", drop_identities),
    Step("flatten_known_flow", "rewrite", "The branch that an If is known to take, and the few known trips of a Loop, "
         "stand in its place.", flatten_known_flow),
    Step("take_known_elements", "rewrite", "What is taken from a sequence by a known position is read where it was put "
         "in.", take_known_elements),
    Step("merge_transposes", "rewrite", "A Transpose of a Transpose is one, or none.", merge_transposes),
    Step("cast_before_turning", "rewrite", "A Transpose before a Cast stands behind it: products cast what they "
         "write, and heads are turned last.", cast_before_turning),
    Step("keep_single_axes", "rewrite", "Axes of extent 1 that are taken out and put in again stay.", keep_single_axes),
    Step("reshape_single_axes", "rewrite", "Axes of extent 1 that are put in or taken out beside a Reshape are the "
         "Reshape's, and are not turned.", reshape_single_axes),
    Step("fold_constants", "rewrite", "What depends on constants alone is computed once, unless that would make the "
         "file much bigger.", fold_constants),
    Step("standardize_weights", "rewrite", "Weights that are standardized by their own statistics in every run are "
         "standardized weights.", standardize_weights),
    Step("widen_extents", "rewrite", "Extents that are cast to int32 and back, as TensorFlow counts them, are not "
         "cast.", widen_extents),
    Step("sum_extents", "rewrite", "The length of a cache that the model gives out is the sum of its parts' lengths.",
         sum_extents),
    Step("share_extents", "rewrite", "An extent is read where it first appears, or is a constant where it is known.",
         share_extents),
    Step("share_positions", "rewrite", "Extents and positions that several nodes compute of the same values are one.",
         share_positions),
    Step("fix_targets", "rewrite", "The target of a Reshape or Expand that the types tell is a constant.", fix_targets),
    Step("part_reshapes", "rewrite", "A Reshape of a Reshape that other operators read reads what that one reads.",
         part_reshapes),
    Step("name_all_axes", "rewrite", "A Pad or nearest Resize of some axes beside convolutions has numbers for all: "
         "ONNX Runtime moves Transposes through these alone.", name_all_axes),
    Step("fix_resizes", "rewrite", "A Resize to computed sizes that the types tell, all but the batch, has constant "
         "scales; one to scales that not everybody rounds alike is told sizes.", fix_resizes),
    Step("plain_slices", "rewrite", "A Slice in steps of 1 says no steps, and is what the rules know.", plain_slices),
    Step("write_slices", "rewrite", "What is scattered over a slice of a value stands between the parts that stay.",
         write_slices),
    Step("join_parts", "rewrite", "Parts of a value that are put side by side again in their order are the value.",
         join_parts),
    Step("pad_whole_numbers", "rewrite", "Whole numbers that are padded by a computed amount, as ids to a multiple "
         "of a window, are put beside the padding: for their Pad there is no CUDA kernel.", pad_whole_numbers),
    Step("spread_tiles", "rewrite", "A Tile that repeats extents of 1 alone is an Expand, which the rules know.",
         spread_tiles),
    Step("group_operands", "rewrite", "A Sum, Mean, Max or Min of more values than a kernel reads is one of several, "
         "each of which grows over what computes its values.", group_operands),
    Step("plain_norms", "rewrite", "ONNX Runtime's SimplifiedLayerNormalization is the RMS norm that the rules know.",
         plain_norms),
    Step("multiply_einsums", "rewrite", "An Einsum that is a product of matrices is a MatMul, between the Transposes "
         "that its letters ask for.", multiply_einsums),
    Step("unmerge_batches", "rewrite", "Products and Transposes of batch axes that were merged for them run over the "
         "axes themselves.", unmerge_batches),
    Step("merge_windows", "rewrite", "The batch axes of an attention that has several, as of windows, are one inside.",
         merge_windows),
    Step("pad_heads", "rewrite", "Heads of an attention that no kernel takes, and keys of one whose values are wider, "
         "get zeros, in the weights that make and read them.", pad_heads),
    Step("late_views", "rewrite", "Elementwise work on what a convolution's image is reshaped to is done on the image.",
         late_views),
    Step("slim_masks", "rewrite", "A mask that is the same for all queries is not written out for each of them.",
         slim_masks),
    Step("join_tables", "rewrite", "Rows of several tables that are put side by side are read from one table.",
         join_tables),
    Step("drop_own_reshapes", "rewrite, last", "What reads a Reshape to the shape that is there reads what that one "
         "reads.", drop_own_reshapes),
    Step("cut_products", "rewrite, last", "A product whose result is cut apart is one product for each part, and "
         "nothing is copied.", cut_products),
    Step("unturn_products", "rewrite, last", "Products by weights between two Transposes run along the other axis, and "
         "nothing is turned.", unturn_products),
    Step("numbers_on_gpu", "layout", "A number computed from shapes that a kernel reads reaches the GPU without a "
         "copy, which would refuse a CUDA graph.", numbers_on_gpu),
    Step("even_pads", "layout", "A ConvTranspose that pads unlike at its ends, for which there is no CUDA kernel, pads "
         "alike, and a Slice cuts off the rest.", even_pads),
    Step("channels_last", "layout", "The regions that the rule nhwc asks for are chosen by a minimal cut, and turned.",
         lay_out),
    Step("pad_columns", "layout", "Products of columns that no kernel takes, which products alone read, get zeros, in "
         "their weights and in those.", pad_columns),
    Step("share_elementwise", "layout", "What several elementwise nodes compute of the same value is computed once, "
         "before kernels grow.", share_elementwise),
    Step("k_major_weights", "fuse", "Weights of products that a rule wants with their terms last are stored so; one "
         "read through a Transpose is read as it is stored.", store_k_major),
    Step("padded_rows", "fuse", "Rows of weights that a product has as its left factor are stored with zeros behind "
         "them, where they end off a boundary of 16 bytes.", pad_rows),
    Step("share_equal", "fuse, last", "What several nodes compute of the same values is computed once.", share_equal),
    Step("share_weights", "attach bodies", "Equal weights of several branches are kept once.", share_weights),
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
) -> Report:
    """Optimize `model` in place and return what was done. Raises ModelError for a model that is not valid.

    `choices` is what measuring decided, by default what the rules say of cost. `opens` says whether ONNX Runtime opens
    a model: it is asked of the result, and of a model that ONNX's checker does not take. `again` gives the model as it
    came: a rewrite that made it invalid is then left out. With `freeze` weights that are graph inputs, too, become
    constants. The same model, rules and choices give the same bytes, and an optimized model comes out as it went in.
    """
    rules = strict.for_model(by_default(shipped()) if rules is None else rules, model)
    report, twice = Report(before=count_ops(model)), redefined(model)
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

    def remake(without: Collection[str]) -> tuple[ModelProto, Report]:
        assert again is not None
        anew, remade = again(), Report(before=report.before)
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
    model: ModelProto, rules: Sequence[Rule], report: Report, progress: Progress, choices: Choices | None
) -> None:
    """Take a normalized model through the other phases, in place, whatever comes out, until they leave it as it is.

    What one rule fused may have been all that kept another one, or a simplification, from its nodes: optimizing the
    file again would find it. Raises RuleError for rules that never settle.
    """
    ops: dict[str, FusedOp] = {}
    for turn in range(MAX_ROUNDS):
        before, told = shell(model), Report(seconds=report.seconds)
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
    report: Report,
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
        numbers_on_gpu(graph)
        even_pads(graph)
        lay_out(graph, rules=rules, report=report)
        late_views(graph)  # volumes that are images of their layers; an image of one channel that leaves a region
        pad_columns(graph)
        share_elementwise(graph)
        reshape_single_axes(graph)  # the row of a signal that leaves a region

    def grow(graph: Graph) -> None:
        fuse(graph, proven, report, ops, choices)
        if share_equal(graph):
            graph.remove_dead()

    def simplified() -> None:
        keep_declared_extents(model)
        settle(model, simplify, rules, report, last)

    def attached() -> None:
        nonlocal proven
        attach(model, ops)
        made = {a.op: ops[a.op] for a in report.applied if a.op}  # those of earlier runs are proven
        without = take_back_unproven(model, made, rules, report)
        if without:
            proven = [r for r in rules if r.name not in without]
            each_graph(model, grow)
            attach(model, ops)

    phases: tuple[tuple[str, Callable[[], object]], ...] = (
        ("rewrite", simplified),
        ("layout", lambda: each_graph(model, place)),
        ("fuse", lambda: each_graph(model, grow)),
        ("attach bodies", attached),
    )
    for phase, act in phases:
        with _phase(report, phase, progress):
            act()
    return proven


@contextlib.contextmanager
def _phase(report: Report, name: str, progress: Progress) -> Iterator[None]:
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
