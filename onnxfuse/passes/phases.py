"""All that happens to a model beside what rule files say, in this order."""

from onnx import ModelProto

from onnxfuse.fusion.attach import attach
from onnxfuse.fusion.fuse import fuse
from onnxfuse.fusion.undo.unproven_ops import revert_unproven_ops
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
from onnxfuse.passes.batching.split_matmul import split_matmul
from onnxfuse.passes.batching.unmerge_batches import unmerge_batches
from onnxfuse.passes.control_flow.constant_control_flow import constant_control_flow
from onnxfuse.passes.control_flow.constant_sequences import constant_sequences
from onnxfuse.passes.fold.common_subexpressions import (
    all_common_subexpressions,
    common_elementwise_subexpressions,
    common_position_subexpressions,
)
from onnxfuse.passes.fold.simplified_norms import expand_simplified_norms
from onnxfuse.passes.fold.standardized_weights import standardize_weights
from onnxfuse.passes.layout.all_axes import explicit_axes
from onnxfuse.passes.layout.layout_min_cut import assign_layout
from onnxfuse.passes.layout.symmetric_pads import symmetric_pads
from onnxfuse.passes.manager import ModelPass, Pass, Phase, State
from onnxfuse.passes.masks.shrink_masks import shrink_masks
from onnxfuse.passes.shapes.constant_reshape_targets import bypass_shared_reshapes, constant_reshape_targets
from onnxfuse.passes.shapes.constant_resizes import constant_resizes
from onnxfuse.passes.shapes.declared_extents import keep_declared_extents
from onnxfuse.passes.shapes.device_scalars import device_scalars
from onnxfuse.passes.shapes.exact_pools import exact_pools
from onnxfuse.passes.shapes.int64_extents import int64_extents
from onnxfuse.passes.shapes.many_operands import split_many_operands
from onnxfuse.passes.views.cancel_split_concat import cancel_split_concat
from onnxfuse.passes.views.canonical_slices import canonical_slices
from onnxfuse.passes.views.elementwise_before_view import elementwise_before_view
from onnxfuse.passes.views.scatter_to_concat import scatter_to_concat
from onnxfuse.passes.views.tile_to_expand import tile_to_expand
from onnxfuse.passes.views.transposes import cast_before_transpose, merge_transposes
from onnxfuse.passes.views.unit_axes import keep_unit_axes, merge_unit_axes_into_reshapes, redundant_reshape_elimination


def _keep_declared_extents(model: ModelProto, state: State) -> None:
    keep_declared_extents(model)


def _assign_layout(graph: Graph, state: State) -> bool:
    return assign_layout(graph, rules=state.rules, report=state.report)


def _fuse(graph: Graph, state: State) -> bool:
    return fuse(graph, state.rules, state.report, state.ops, state.choices)


def _attach(model: ModelProto, state: State) -> None:
    attach(model, state.ops)


def _revert_unproven(model: ModelProto, state: State) -> None:
    """Revert unproven ops and fuse once more without their rules. Ops of earlier iterations are proven."""
    made = {a.op: state.ops[a.op] for a in state.report.applied if a.op}
    without = revert_unproven_ops(model, made, state.rules, state.report)
    if without:
        state.rules = [r for r in state.rules if r.name not in without]
        FUSE.run(model, state)
        attach(model, state.ops)


REWRITE = Phase(
    "rewrite",
    (
        ModelPass("keep_declared_extents", "Writes into a Reshape's target which extent it keeps, where only the "
             "exporter's declarations tell.", _keep_declared_extents, "first"),
        Pass("identity_elimination", "Removes Identity, products with 1 and Casts to the same type.",
             identity_elimination),
        Pass("constant_control_flow", "Inlines the branch that an If is known to take, and Loops with few known "
             "trips.", constant_control_flow),
        Pass("constant_sequences", "Replaces reads of a sequence at a known index by the value inserted there.",
             constant_sequences),
        Pass("merge_transposes", "Merges a Transpose of a Transpose into one, or none.", merge_transposes),
        Pass("cast_before_transpose", "Moves a Cast above a Transpose, so that the product writes the narrow type.",
             cast_before_transpose),
        Pass("keep_unit_axes", "Keeps axes of extent 1 that are squeezed and unsqueezed again.", keep_unit_axes),
        Pass("merge_unit_axes_into_reshapes", "Merges Squeeze, Unsqueeze and Transposes of unit axes into the "
             "adjacent Reshape.", merge_unit_axes_into_reshapes),
        Pass("constant_folding", "Computes what depends on constants alone, unless the file would grow much.",
             constant_folding),
        Pass("standardize_weights", "Folds the standardization of weights by their own statistics.",
             standardize_weights),
        Pass("int64_extents", "Removes casts of extents to int32 and back, as TensorFlow writes them.", int64_extents),
        Pass("sum_extents", "Replaces the length of a growing cache by the sum of its parts' lengths.", sum_extents),
        Pass("reuse_extents", "Reads an extent from the first value that has it, or from a constant.", reuse_extents),
        Pass("common_position_subexpressions", "Merges nodes that compute the same extents and positions.",
             common_position_subexpressions),
        Pass("constant_reshape_targets", "Replaces computed targets of Reshape and Expand by constants where the "
             "types tell them.", constant_reshape_targets),
        Pass("bypass_shared_reshapes", "Lets a Reshape of a shared Reshape read that one's input.",
             bypass_shared_reshapes),
        Pass("explicit_axes", "Gives Pad and nearest Resize numbers for all axes next to convolutions, so that ONNX "
             "Runtime moves Transposes through them.", explicit_axes),
        Pass("constant_resizes", "Replaces computed sizes of a Resize by constant scales, or scales that round "
             "differently by sizes.", constant_resizes),
        Pass("exact_pools", "Gives pools explicit pads where ONNX's inference counts other windows than ONNX Runtime "
             "computes.", exact_pools),
        Pass("canonical_slices", "Removes steps of 1 from Slices, the form that rules match.", canonical_slices),
        Pass("scatter_to_concat", "Rewrites ScatterND over a contiguous slice as Concat(before, update, after).",
             scatter_to_concat),
        Pass("cancel_split_concat", "Replaces a Concat of adjacent parts of a value by the value.",
             cancel_split_concat),
        Pass("pad_integer_inputs", "Rewrites a computed Pad of integers as a Concat: its Pad has no CUDA kernel.",
             pad_integer_inputs),
        Pass("tile_to_expand", "Rewrites a Tile that repeats only unit axes as an Expand.", tile_to_expand),
        Pass("split_many_operands", "Splits a Sum, Mean, Max or Min of many operands into several that fuse with "
             "their producers.", split_many_operands),
        Pass("expand_simplified_norms", "Rewrites ONNX Runtime's SimplifiedLayerNormalization as the RMS norm that "
             "rules match.", expand_simplified_norms),
        Pass("einsum_to_matmul", "Rewrites an Einsum that is a matrix product as MatMul and Transposes.",
             einsum_to_matmul),
        Pass("unmerge_batches", "Runs products and Transposes over the batch axes that a Reshape merged.",
             unmerge_batches),
        Pass("merge_windows", "Merges several batch axes of an attention, as of windows, into one.", merge_windows),
        Pass("pad_heads", "Pads attention heads to a size that a kernel takes, in the weights around them.", pad_heads),
        Pass("elementwise_before_view", "Moves elementwise nodes above a Reshape of a convolution's image.",
             elementwise_before_view),
        Pass("shrink_masks", "Replaces a mask that is equal for all queries by one row.", shrink_masks),
        Pass("merge_embedding_tables", "Merges Gathers from several concatenated tables into one.",
             merge_embedding_tables),
        Pass("redundant_reshape_elimination", "Removes Reshapes to the shape that is already there.",
             redundant_reshape_elimination, "last"),
        Pass("split_matmul", "Splits a product whose columns are sliced apart into one product per slice.",
             split_matmul, "last"),
        Pass("absorb_matmul_transposes", "Runs products between two Transposes along the other axis, without the "
             "Transposes.", absorb_matmul_transposes, "last"),
    ),
    settles=True,
)  # fmt: skip

LAYOUT = Phase(
    "layout",
    (
        Pass("device_scalars", "Passes shape-derived scalars as launch arguments instead of copying them to the "
             "device.", device_scalars),
        Pass("symmetric_pads", "Rewrites a ConvTranspose with asymmetric pads, which has no CUDA kernel, as a "
             "symmetric one and a Slice.", symmetric_pads),
        Pass("channels_last", "Chooses channels-last regions by a minimal cut and rewrites them.",
             _assign_layout, reads_rules=True),
        Pass("late_elementwise_before_view", "Moves elementwise nodes above a Reshape of an image that left a "
             "channels-last region.", elementwise_before_view),
        Pass("pad_columns", "Pads the columns of products to a size that kernels take, in the weights on both sides.",
             pad_columns),
        Pass("common_elementwise_subexpressions", "Merges equal elementwise nodes before kernels grow.",
             common_elementwise_subexpressions),
        Pass("late_merge_unit_axes", "Merges unit axes into a Reshape of a signal that left a channels-last region.",
             merge_unit_axes_into_reshapes),
    ),
)  # fmt: skip

FUSE = Phase(
    "fuse",
    (
        Pass("fuse", "Grows the rules' anchors into fused ops, each with a kernel that is proven to exist.", _fuse,
             reads_rules=True),
        Pass("common_subexpressions", "Merges nodes that compute the same of the same values.",
             all_common_subexpressions),
    ),
)  # fmt: skip

ATTACH = Phase(
    "attach bodies",
    (
        ModelPass("attach_bodies", "Writes the bodies of fused ops as model-local functions, and equal weights of "
                  "several branches once.", _attach),
        ModelPass("revert_unproven_ops", "Reverts fused ops whose library form cannot be proven from the file.",
                  _revert_unproven),
    ),
)  # fmt: skip

PIPELINE = (REWRITE, LAYOUT, FUSE, ATTACH)
"""The phases, run to a fixed point: optimizing an optimized file changes nothing."""
