"""The phases of the optimizer that are not rules, in their order."""

from dataclasses import replace

from onnx import ModelProto

from onnxfuse.fusion.attach import attach
from onnxfuse.fusion.fuse import fuse as grow
from onnxfuse.fusion.undo import unproven_ops
from onnxfuse.graph.constant_folding import (
    constant_folding,
    identity_elimination,
    reuse_extents,
    sum_extents,
)
from onnxfuse.graph.graph import Graph
from onnxfuse.passes.alignment.pad_columns import pad_columns
from onnxfuse.passes.alignment.pad_heads import pad_heads
from onnxfuse.passes.alignment.pad_integer_inputs import pad_integer_inputs
from onnxfuse.passes.batching.einsum_to_matmul import einsum_to_matmul
from onnxfuse.passes.batching.matmul_transpose import absorb_matmul_transposes
from onnxfuse.passes.batching.merge_embedding_tables import merge_embedding_tables
from onnxfuse.passes.batching.merge_windows import merge_windows
from onnxfuse.passes.batching.repeat_shared_heads import repeat_shared_heads
from onnxfuse.passes.batching.split_matmul import split_matmul
from onnxfuse.passes.batching.unmerge_batches import unmerge_batches
from onnxfuse.passes.control_flow.constant_control_flow import constant_control_flow
from onnxfuse.passes.control_flow.constant_sequences import constant_sequences
from onnxfuse.passes.definitions.expand import expand, restore
from onnxfuse.passes.fold.common_subexpressions import (
    common_elementwise_subexpressions,
    common_position_subexpressions,
    common_subexpressions,
)
from onnxfuse.passes.fold.merge_clips import merge_clips
from onnxfuse.passes.layout.all_axes import explicit_axes
from onnxfuse.passes.layout.layout_min_cut import assign_layout
from onnxfuse.passes.layout.padded_convolutions import padded_convolutions
from onnxfuse.passes.layout.symmetric_pads import symmetric_pads
from onnxfuse.passes.manager import Phase, State, model_pass, rule_pass
from onnxfuse.passes.masks.shrink_masks import shrink_masks
from onnxfuse.passes.quantization import products
from onnxfuse.passes.quantization.convolutions import quantized_padding, quantized_signals
from onnxfuse.passes.quantization.dynamic_products import dynamic_products
from onnxfuse.passes.quantization.float_weights import keep_float_weights
from onnxfuse.passes.quantization.grouped_weights import grouped_weights
from onnxfuse.passes.quantization.left_integers import report_left_integers
from onnxfuse.passes.quantization.movement import move_quantized
from onnxfuse.passes.quantization.packed_weights import pack_weights
from onnxfuse.passes.quantization.qoperators import qdq_form
from onnxfuse.passes.quantization.readers import dequantize_for_each_reader
from onnxfuse.passes.quantization.scales import quantization_scales
from onnxfuse.passes.quantization.standard_operators import standard_operators
from onnxfuse.passes.quantization.weights import dequantize_weights, quantize_weights
from onnxfuse.passes.quantization.zero_points import written_zero_points, zero_zero_points
from onnxfuse.passes.shapes import declared_extents
from onnxfuse.passes.shapes.constant_expand_targets import constant_expand_targets
from onnxfuse.passes.shapes.constant_resizes import constant_resizes
from onnxfuse.passes.shapes.device_scalars import device_scalars
from onnxfuse.passes.shapes.exact_pools import exact_pools
from onnxfuse.passes.shapes.int64_extents import int64_extents
from onnxfuse.passes.shapes.many_operands import split_many_operands
from onnxfuse.passes.views.cancel_split_concat import cancel_split_concat
from onnxfuse.passes.views.elementwise_before_view import elementwise_before_view
from onnxfuse.passes.views.scatter_to_concat import scatter_to_concat
from onnxfuse.passes.views.unit_axes import keep_unit_axes, merge_unit_axes_into_reshapes
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.rules.rewriting.normal_forms import normal_form


@model_pass
def keep_declared_extents(model: ModelProto, state: State) -> None:
    """Writes into a Reshape's target which extent it keeps, if only the exporter's declarations say so."""
    declared_extents.keep_declared_extents(model)


@rule_pass
def expand_definitions(graph: Graph, state: State) -> bool:
    """Writes operators of ONNX Runtime's own, and attention with caches, as the nodes of an export."""
    return expand(graph, state.written)


@rule_pass
def restore_originals(graph: Graph, state: State) -> bool:
    """Restores operators whose nodes no kernel took."""
    changed = restore(graph, state.written)
    if changed:
        gone = {a.op for a in state.report.applied if a.op and not any(map(graph.producer, a.outputs))}
        state.report.applied = [a for a in state.report.applied if a.op not in gone]
    return changed


@rule_pass
def record_quantized_products(graph: Graph, state: State) -> bool:
    """Records the products and convolutions of quantized activations, for the report; changes nothing."""
    products.record(graph, state.report, state.nodes)
    return False


@rule_pass
def explain_quantized_products(graph: Graph, state: State) -> bool:
    """Reports which of those sum integers, and why others stay floating-point; changes nothing."""
    products.explain(graph, state.report, state.rules)
    return False


@rule_pass
def channels_last(graph: Graph, state: State) -> bool:
    """Chooses channels-last regions by a minimal cut and rewrites them."""

    def fuse(trial: Graph) -> bool:
        return grow(trial, state.rules, OptimizeReport(), dict(state.ops), state.choices)

    return assign_layout(graph, state.rules, state.report, fuse)


@rule_pass
def fuse(graph: Graph, state: State) -> bool:
    """Grows the rules' anchors into fused ops, each with a kernel that is proven to exist."""
    return grow(graph, state.rules, state.report, state.ops, state.choices)


@rule_pass
def explain_left_integers(graph: Graph, state: State) -> bool:
    """Reports why operators remain, if their entries say it and no rule does; changes nothing."""
    report_left_integers(graph, state.report)
    return False


@model_pass
def attach_bodies(model: ModelProto, state: State) -> None:
    """Writes the bodies of fused ops as model-local functions, and equal weights of several branches once."""
    attach(model, state.ops)


@model_pass
def revert_unproven_ops(model: ModelProto, state: State) -> None:
    """Reverts fused ops whose library form cannot be proven from the file."""
    # Fused once more without their rules. Ops of earlier iterations are proven.
    applied = {a.op: state.ops[a.op] for a in state.report.applied if a.op}
    without = unproven_ops.revert_unproven_ops(model, applied, state.rules, state.report)
    if without:
        state.rules = [r for r in state.rules if r.name not in without]
        FUSE.run(model, state)
        attach(model, state.ops)


REWRITE = Phase(
    "rewrite",
    (
        keep_declared_extents,
        expand_definitions,
        standard_operators,
        normal_form("spelled_quantization"),
        qdq_form,
        dynamic_products,
        quantize_weights,
        quantization_scales,
        zero_zero_points,
        quantized_signals,
        quantized_padding,
        move_quantized,
        record_quantized_products,
        normal_form("identities"),
        identity_elimination,
        constant_control_flow,
        constant_sequences,
        normal_form("merge_transposes"),
        normal_form("cast_before_transpose"),
        normal_form("packed_indices"),
        keep_unit_axes,
        merge_unit_axes_into_reshapes,
        constant_folding,
        normal_form("standardized_weights"),
        int64_extents,
        sum_extents,
        reuse_extents,
        common_position_subexpressions,
        normal_form("constant_reshape_targets"),
        constant_expand_targets,
        normal_form("bypass_shared_reshapes"),
        explicit_axes,
        constant_resizes,
        exact_pools,
        normal_form("canonical_slices"),
        scatter_to_concat,
        cancel_split_concat,
        pad_integer_inputs,
        normal_form("tile_to_expand"),
        merge_clips,
        split_many_operands,
        einsum_to_matmul,
        unmerge_batches,
        merge_windows,
        repeat_shared_heads,
        pad_heads,
        elementwise_before_view,
        shrink_masks,
        merge_embedding_tables,
    ),
    last=(normal_form("redundant_reshape_elimination"), split_matmul, absorb_matmul_transposes),
    settles=True,
)

LAYOUT = Phase(
    "layout",
    (
        explain_quantized_products,
        dequantize_weights,
        grouped_weights,
        pack_weights,
        device_scalars,
        symmetric_pads,
        padded_convolutions,
        channels_last,
        replace(
            elementwise_before_view,
            name="late_elementwise_before_view",
            summary="Moves elementwise nodes above a Reshape of an image that left a channels-last region.",
        ),
        replace(
            split_matmul,
            name="late_split_matmul",
            summary="Splits the products of 1x1 convolutions whose channels are split: a gate and what it gates.",
        ),
        pad_columns,
        common_elementwise_subexpressions,
        replace(
            merge_unit_axes_into_reshapes,
            name="late_merge_unit_axes",
            summary="Merges unit axes into a Reshape of a signal that left a channels-last region.",
        ),
        dequantize_for_each_reader,
    ),
)

FUSE = Phase(
    "fuse",
    (
        written_zero_points,
        keep_float_weights,
        fuse,
        restore_originals,
        common_subexpressions,
        explain_left_integers,
    ),
)

ATTACH = Phase("attach bodies", (attach_bodies, revert_unproven_ops))

PIPELINE = (REWRITE, LAYOUT, FUSE, ATTACH)
"""The phases, run to a fixed point: optimizing an optimized file changes nothing."""
