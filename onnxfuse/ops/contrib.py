"""Operators of com.microsoft, ai.onnx.ml and ai.onnx.preview.training, and those that ONNX Runtime knew in the default
domain before ONNX did.
"""

from onnx import TensorProto

from onnxfuse.ops import flops, scalar
from onnxfuse.ops.definitions import activations, attention, norms
from onnxfuse.ops.definitions import products as product
from onnxfuse.ops.families import moving, pointwise
from onnxfuse.ops.inputs import (
    CONDITION,
    DATA,
    MASK,
    Axes,
    ByRank,
    Count,
    Extents,
    Fraction,
    GroupIndex,
    IfPresent,
    IndexTuples,
    Indices,
    Integer,
    LastToken,
    Length,
    Offset,
    Padding,
    StartIndex,
    TotalLength,
    data,
)
from onnxfuse.ops.reduction import normalized, rms_normalization, root_mean_square
from onnxfuse.ops.registry import MICROSOFT, Operator, Trait
from onnxfuse.ops.scalar import RowNode, Scalar, ScalarNode
from onnxfuse.ops.shapes import alike, products

__all__ = [
    "Adagrad", "Adam", "ArrayFeatureExtractor", "AttnLSTM", "BiasAdd", "BiasDropout", "BiasGelu", "BiasSplitGelu",
    "CategoryMapper", "CropAndResize", "DecoderMaskedMultiHeadAttention", "DecoderMaskedSelfAttention",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeMatMul", "EmbedLayerNormalization", "ExpandDims", "FastGelu", "FeatureVectorizer", "FusedConv",
    "FusedGemm", "FusedMatMul", "GatedAdd", "GatedRMSNorm", "GatherBlockQuantized", "GroupNorm",
    "GroupQueryAttention", "Imputer", "Inverse",
    "LabelEncoder", "LinearRegressor", "LongformerAttention", "MRotaryEmbedding", "MatMulBnb4",
    "MatMulIntegerToFloat", "MatMulNBits", "MaxpoolWithMask", "MicrosoftAttention",
    "MicrosoftGatherND", "MicrosoftGelu", "MicrosoftPad", "MicrosoftRange", "MicrosoftRotaryEmbedding",
    "MicrosoftSimplifiedLayerNormalization", "MicrosoftTrilu", "MicrosoftUnique", "MoE", "Momentum",
    "MultiHeadAttention", "NGramRepeatBlock", "Normalizer", "QAttention", "QEmbedLayerNormalization", "QMoE",
    "QuickGelu", "RelativePositionBias", "SVMRegressor", "ScaledSiLU", "Scaler", "SimplifiedLayerNormalization",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization", "SparseAttention", "TorchEmbedding",
    "TreeEnsembleClassifier", "TreeEnsembleRegressor", "WordConvEmbedding",
]  # fmt: skip

ML = "ai.onnx.ml"
TRAINING = "ai.onnx.preview.training"
_INPUTS = {"R": DATA, "T": Count(), "inputs": DATA}


def _biased(node: ScalarNode) -> Scalar:
    x, bias = node.real(0), node.optional(1)
    return x if bias is None else x + bias


def _quick_gelu(node: ScalarNode) -> Scalar:
    x = node.real(0)
    return x * scalar.sigmoid(x * node.number("alpha", 1.702))


def _scaled_silu(node: ScalarNode) -> Scalar:
    """The scale is an attribute or an input, which may be of another type."""
    x, scale = node.real(0), node.optional(1)
    if scale is None:
        return _silu(x * node.number("alpha", 1.0))
    if scale.dtype == x.dtype:
        return _silu(x * scale)
    return _silu((x.cast(TensorProto.FLOAT) * scale.cast(TensorProto.FLOAT)).cast(x.dtype))


def _silu(x: Scalar) -> Scalar:
    return x * scalar.sigmoid(x)


def _skip_layer_normalization(node: RowNode) -> tuple[Scalar, ...]:
    total = _skipped(node, node.optional(4))
    y, mean, inverse = normalized(node, total, node.term(2), node.optional(3), epsilon=1e-12)
    return y, mean, inverse, total


def _skip_simplified_layer_normalization(node: RowNode) -> tuple[Scalar, ...]:
    total = _skipped(node, node.optional(3))
    y, inverse = root_mean_square(node, total, node.term(2), 1e-12)
    return y, inverse, inverse, total


def _skipped(node: ScalarNode, bias: Scalar | None) -> Scalar:
    total = node.term(0) + node.term(1)
    return total if bias is None else total + bias


BiasGelu = pointwise(
    "BiasGelu",
    lambda node: scalar.gelu(_biased(node)),
    Trait.KEEPS_TYPE,
    Trait.ORT_FUSION,
    flops=6,
    domain=MICROSOFT,
    definition=activations.gelu,
)
FastGelu = pointwise(
    "FastGelu",
    lambda node: scalar.gelu_tanh(_biased(node)),
    Trait.KEEPS_TYPE,
    Trait.ORT_FUSION,
    flops=8,
    domain=MICROSOFT,
    definition=activations.fast_gelu,
)
MicrosoftGelu = pointwise(
    "Gelu",
    lambda node: scalar.gelu(node.real(0)),
    Trait.KEEPS_TYPE,
    flops=5,
    domain=MICROSOFT,
    definition=activations.gelu,
)
QuickGelu = pointwise(
    "QuickGelu", _quick_gelu, Trait.KEEPS_TYPE, flops=5, domain=MICROSOFT, definition=activations.quick_gelu
)
ScaledSiLU = pointwise("ScaledSiLU", _scaled_silu, Trait.KEEPS_TYPE, flops=6, domain=MICROSOFT)

SimplifiedLayerNormalization = Operator(
    "SimplifiedLayerNormalization",
    Trait.KEEPS_TYPE,
    defaults={"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    rows=rms_normalization,
    flops=flops.per_input(5),
    definition=norms.simplified_layer_normalization,
)

MicrosoftSimplifiedLayerNormalization = Operator(
    "SimplifiedLayerNormalization",
    Trait.KEEPS_TYPE,
    domain=MICROSOFT,
    rows=rms_normalization,
    flops=flops.per_input(5),
    definition=norms.simplified_layer_normalization,
)
MicrosoftRotaryEmbedding = Operator(
    "RotaryEmbedding",
    Trait.KEEPS_TYPE,
    domain=MICROSOFT,
    inputs={
        "input": DATA,
        "position_ids": ByRank({1: StartIndex("cos_cache", 0, "input", -2)}, Indices("cos_cache", 0)),
        **data("cos_cache", "sin_cache"),
    },
    definition=attention.rotary_embedding,
)
BiasSplitGelu = Operator(
    "BiasSplitGelu",
    Trait.ORT_FUSION,
    domain=MICROSOFT,
    inputs=data("X", "bias"),
    alike=alike.halved,
    definition=activations.bias_split_gelu,
)
GatedRMSNorm = Operator(
    "GatedRMSNorm",
    Trait.KEEPS_TYPE,
    domain=MICROSOFT,
    inputs=data("X", "scale", "gate"),
    flops=flops.per_input(8),
    definition=norms.gated_rms_norm,
)
GatedAdd = Operator(
    "GatedAdd",
    Trait.KEEPS_TYPE,
    domain=MICROSOFT,
    inputs=data("X", "Y", "gate"),
    flops=flops.per_input(2),
    definition=norms.gated_add,
)
MoE = Operator("MoE", Trait.KEEPS_TYPE, domain=MICROSOFT)
QMoE = Operator(
    "QMoE",
    Trait.KEEPS_TYPE,
    domain=MICROSOFT,
    left="stays with ONNX Runtime: no kernel chooses the weights in few bits that each row is multiplied by",
)
BiasDropout = Operator("BiasDropout", Trait.KEEPS_TYPE, Trait.ORT_FUSION, domain=MICROSOFT)
GroupNorm = Operator("GroupNorm", Trait.KEEPS_TYPE, domain=MICROSOFT)
BiasAdd = Operator("BiasAdd", Trait.KEEPS_TYPE, domain=MICROSOFT, definition=activations.bias_add)
Inverse = Operator("Inverse", Trait.KEEPS_TYPE, domain=MICROSOFT)

Imputer = Operator("Imputer", Trait.KEEPS_TYPE, domain="ai.onnx.ml")

FusedMatMul = Operator(
    "FusedMatMul",
    Trait.CONTRACTION,
    Trait.ORT_FUSION,
    domain=MICROSOFT,
    flops=flops.matmul,
    alike=alike.fused_product,
    definition=product.fused_matmul,
)
FusedConv = Operator(
    "FusedConv",
    Trait.CONTRACTION,
    Trait.ORT_FUSION,
    domain=MICROSOFT,
    flops=flops.convolution,
    alike=alike.known_as("Conv", 3, "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    definition=product.fused_conv,
)
MatMulNBits = Operator(
    "MatMulNBits",
    Trait.CONTRACTION,
    domain=MICROSOFT,
    defaults={"bits": 4, "accuracy_level": 0, "weight_prepacked": 0},
    inputs=data("A", "B", "scales", "zero_points") | {"g_idx": GroupIndex(), "bias": DATA},
    shape=products.packed,
    flops=flops.packed,
    alike=alike.packed_product,
)

MicrosoftAttention = Operator(
    "Attention",
    Trait.ATTENTION,
    Trait.ORT_FUSION,
    domain=MICROSOFT,
    inputs={
        **data("input", "weights", "bias"),
        "mask_index": ByRank({1: Length("input", 1)}, MASK),
        **data("past", "attention_bias"),
        "past_sequence_length": StartIndex("past", 3, "input", 1),
    },
    alike=alike.packed_attention,
    definition=attention.packed_attention,
)
MultiHeadAttention = Operator(
    "MultiHeadAttention",
    Trait.ATTENTION,
    domain=MICROSOFT,
    flops=flops.multi_head_attention,
    inputs={
        **data("query", "key", "value", "bias"),
        "key_padding_mask": ByRank({1: Length("key", 1)}, MASK),
        **data("attention_bias", "past_key", "past_value"),
        "past_sequence_length": StartIndex("past_key", 2, "query", 1),
        "cache_indirection": Indices("cache_indirection", 1),
    },
    alike=alike.multi_head_attention,
    definition=attention.multi_head_attention,
)
GroupQueryAttention = Operator(
    "GroupQueryAttention",
    Trait.ATTENTION,
    domain=MICROSOFT,
    inputs={
        **data("query", "key", "value", "past_key", "past_value"),
        "seqlens_k": LastToken(),
        "total_sequence_length": TotalLength(),
        **data("cos_cache", "sin_cache"),
        "position_ids": IfPresent("cos_cache", Indices("cos_cache", 0), Count()),
        **data("attention_bias", "head_sink", "k_scale", "v_scale", "q_norm_weight", "k_norm_weight"),
    },
    alike=alike.grouped_attention,
)

SkipLayerNormalization = Operator(
    "SkipLayerNormalization",
    Trait.OPAQUE,
    Trait.ORT_FUSION,
    domain=MICROSOFT,
    rows=_skip_layer_normalization,
    flops=flops.per_input(9),
    alike=alike.same((0, 0), (3, 0)),
    definition=norms.skip_layer_normalization,
)
SkipSimplifiedLayerNormalization = Operator(
    "SkipSimplifiedLayerNormalization",
    Trait.OPAQUE,
    domain=MICROSOFT,
    rows=_skip_simplified_layer_normalization,
    flops=flops.per_input(6),
    alike=alike.same((0, 0), (3, 0)),
    definition=norms.skip_simplified_layer_normalization,
)

MicrosoftGatherND = moving(
    "GatherND", Trait.SELECTS, Trait.CARRIES, domain=MICROSOFT, inputs={"data": DATA, "indices": IndexTuples("data")}
)
MicrosoftPad = moving(
    "Pad", Trait.CARRIES_SOME, domain=MICROSOFT, inputs={"data": DATA, "pads": Padding(), "value": DATA}
)
MicrosoftRange = moving("Range", domain=MICROSOFT)
MicrosoftTrilu = moving(
    "Trilu", Trait.KEEPS_SHAPE, Trait.CARRIES_SOME, domain=MICROSOFT, inputs={"X": DATA, "k": Offset(-2, 2)}
)
MicrosoftUnique = moving("Unique", domain=MICROSOFT)
QAttention = Operator(
    "QAttention",
    domain=MICROSOFT,
    inputs={
        **data("input", "weight", "bias", "input_scale", "weight_scale"),
        "mask_index": ByRank({1: Length("input", 1)}, MASK),
        **data("input_zero_point", "weight_zero_point", "past"),
    },
    left="stays with ONNX Runtime: no kernel computes a projection of 8 bits and its attention in one operator",
)
DecoderMaskedMultiHeadAttention = Operator(
    "DecoderMaskedMultiHeadAttention",
    domain=MICROSOFT,
    inputs={
        **data("query", "key", "value"),
        "mask_index": MASK,
        **data("attention_bias", "past_key", "past_value"),
        "past_sequence_length": StartIndex("past_key", 2, "query", 1),
        "beam_width": Count(1, 1),
        "cache_indirection": Indices("cache_indirection", 1),
        "bias": DATA,
    },
)
DecoderMaskedSelfAttention = Operator(
    "DecoderMaskedSelfAttention",
    domain=MICROSOFT,
    inputs={
        **data("input", "weights", "bias"),
        "mask_index": MASK,
        **data("past", "attention_bias"),
        "past_sequence_length": StartIndex("past", 3, "input", 1),
        "beam_width": Count(1, 1),
        "cache_indirection": Indices("cache_indirection", 1),
    },
)
LongformerAttention = Operator(
    "LongformerAttention",
    domain=MICROSOFT,
    inputs={
        **data("input", "weight", "bias", "mask", "global_weight", "global_bias"),
        "global": MASK,
    },
)
SparseAttention = Operator(
    "SparseAttention",
    domain=MICROSOFT,
    inputs={
        **data("query", "key", "value", "past_key", "past_value", "block_row_indices", "block_col_indices"),
        "total_sequence_length": Integer("past_key", 2),
        "key_total_sequence_lengths": Length("past_key", 2),
        **data("cos_cache", "sin_cache"),
    },
)
RelativePositionBias = Operator(
    "RelativePositionBias",
    domain=MICROSOFT,
    inputs={"bias_table": DATA, "query_length": Count(4, 4), "key_length": Count(4, 4)},
)
MRotaryEmbedding = Operator(
    "MRotaryEmbedding",
    domain=MICROSOFT,
    inputs={"input": DATA, "position_ids": Indices("cos_cache", 0), **data("cos_cache", "sin_cache")},
)
EmbedLayerNormalization = Operator(
    "EmbedLayerNormalization",
    Trait.ORT_FUSION,
    domain=MICROSOFT,
    inputs={
        "input_ids": Indices("word_embedding", 0),
        "segment_ids": Indices("segment_embedding", 0),
        **data("word_embedding", "position_embedding", "segment_embedding", "gamma", "beta"),
        "mask": MASK,
        "position_ids": Indices("position_embedding", 0),
    },
    alike=alike.looked_up,
    definition=norms.embed_layer_normalization,
)
QEmbedLayerNormalization = Operator(
    "QEmbedLayerNormalization",
    domain=MICROSOFT,
    inputs={
        "input_ids": Indices("word_embedding_quant", 0),
        "segment_ids": Indices("segment_embedding", 0),
        **data("word_embedding_quant", "position_embedding_quant", "segment_embedding", "gamma_quant", "beta_quant"),
        "mask": MASK,
        **data(
            "word_embedding_scale",
            "position_embedding_scale",
            "segment_embedding_scale",
            "gamma_scale",
            "beta_scale",
            "word_embedding_zero_point",
            "position_embedding_zero_point",
            "segment_embedding_zero_point",
            "gamma_zero_point",
            "beta_zero_point",
        ),
    },
)
TorchEmbedding = Operator(
    "TorchEmbedding",
    domain=MICROSOFT,
    inputs={
        "weight": DATA,
        "indices": Indices("weight", 0),
        "padding_idx": Offset(0, 0),
        "scale_grad_by_freq": CONDITION,
    },
)
WordConvEmbedding = Operator(
    "WordConvEmbedding", domain=MICROSOFT, inputs={"Sequence": Indices("C", 0), **data("W", "B", "C")}
)
GatherBlockQuantized = Operator(
    "GatherBlockQuantized",
    domain=MICROSOFT,
    inputs={"data": DATA, "indices": Indices("data", ("gather_axis", 0)), **data("scales", "zero_points")},
    alike=alike.of_rank(2, None),
    left="stays with ONNX Runtime, which gathers numbers in few bits and dequantizes them in one kernel",
)
NGramRepeatBlock = Operator(
    "NGramRepeatBlock", domain=MICROSOFT, inputs={"input_ids": Indices("scores", 1), "scores": DATA}
)
AttnLSTM = Operator(
    "AttnLSTM",
    domain=MICROSOFT,
    inputs={
        **data("X", "W", "R", "B"),
        "sequence_lens": Length("X", 0),
        **data("initial_h", "initial_c", "P", "QW", "MW", "V", "M"),
        "memory_seq_lens": Length("M", 1),
        "AW": DATA,
    },
)
DynamicQuantizeLSTM = Operator(
    "DynamicQuantizeLSTM",
    domain=MICROSOFT,
    inputs={
        **data("X", "W", "R", "B"),
        "sequence_lens": Length("X", 0),
        **data("initial_h", "initial_c", "P", "W_scale", "W_zero_point", "R_scale", "R_zero_point"),
    },
    left="stays with ONNX Runtime: no kernel quantizes the state of a layer at each step",
)
CropAndResize = Operator(
    "CropAndResize",
    domain=MICROSOFT,
    inputs={"X": DATA, "rois": Fraction(), "batch_indices": Indices("X", 0), "crop_size": Extents()},
    alike=alike.of_rank(0, 4),
)
MaxpoolWithMask = Operator("MaxpoolWithMask", domain=MICROSOFT, inputs={"X": DATA, "M": MASK})
ExpandDims = Operator("ExpandDims", Trait.VIEW, domain=MICROSOFT, inputs={"X": DATA, "axis": Axes("X")})
ArrayFeatureExtractor = Operator("ArrayFeatureExtractor", domain=ML, inputs={"X": DATA, "Y": Indices("X", -1)})
CategoryMapper = Operator("CategoryMapper", domain=ML, inputs=data("X"))
LabelEncoder = Operator("LabelEncoder", domain=ML, inputs=data("X"))
Adagrad = Operator("Adagrad", domain=TRAINING, inputs=_INPUTS)
Adam = Operator("Adam", domain=TRAINING, inputs=_INPUTS)
Momentum = Operator("Momentum", domain=TRAINING, inputs=_INPUTS)

# ---- whose types alone are known

MatMulBnb4 = Operator(
    "MatMulBnb4",
    domain=MICROSOFT,
    alike=alike.packed_product,
    left="stays with ONNX Runtime: no kernel reads numbers of 4 bits that stand for entries of a table",
)
FusedGemm = Operator(
    "FusedGemm",
    Trait.ORT_FUSION,
    domain=MICROSOFT,
    alike=alike.known_as("Gemm", 3, "alpha", "beta", "transA", "transB"),
    definition=product.fused_gemm,
)
MatMulIntegerToFloat = Operator("MatMulIntegerToFloat", domain=MICROSOFT, alike=alike.scaled_product)
DynamicQuantizeMatMul = Operator("DynamicQuantizeMatMul", domain=MICROSOFT, alike=alike.quantizing_product)
FeatureVectorizer = Operator("FeatureVectorizer", domain=ML, alike=alike.scores(lambda _: None))
Scaler = Operator("Scaler", domain=ML, alike=alike.as_float)
Normalizer = Operator("Normalizer", domain=ML, alike=alike.as_float)
LinearRegressor = Operator(
    "LinearRegressor", domain=ML, alike=alike.scores(lambda known: alike.number(known, "targets", 1))
)
SVMRegressor = Operator("SVMRegressor", domain=ML, alike=alike.scores(lambda _: 1))
TreeEnsembleRegressor = Operator(
    "TreeEnsembleRegressor", domain=ML, alike=alike.scores(lambda known: alike.number(known, "n_targets"))
)
TreeEnsembleClassifier = Operator("TreeEnsembleClassifier", domain=ML, alike=alike.scores(alike.classes, label=True))
