"""Make a config of transformers small by what its fields are called."""

# mypy: disallow-untyped-calls=False
# (transformers says little of its types)

import re
from typing import Any

WORDS = 99
"""The vocabulary."""

LEVELS = (0, 1, 2, 3)
"""0: few layers, narrow, few heads. 1: lists of widths stay as they are. 2: all widths stay. 3: only fewer layers."""

HIDDEN, HEADS, FEW_HEADS, BETWEEN, HEAD, LAYERS, SIDE, PATCH, EXPERTS = 64, 4, 2, 96, 16, 2, 64, 16, 4

LAYER_FIELDS = re.compile(
    r"^(num|n)_.*(layers?|blocks)$|^n_layers?$|^(en|de)coder_layers$|^(decoder_|encoder_)?depth$|^num_layers"
    r"|^layers$|_num_hidden_layers$|_layers$"
)
NOT_LAYERS = re.compile(
    r"adapter|feat_extract|norm|drop|return|skip|idx|index|fullatt|full_att|window|step|share|moe_l"
)
HEAD_FIELDS = re.compile(r"^(num|n)_.*heads?$|_attention_heads$|^n_head$|^attention_heads$|_num_heads$|^num_heads")
KV_FIELDS = re.compile(r"key_value|kv|query_groups")
WIDTH_FIELDS = re.compile(
    r"(^|_)(hidden_size|d_model|n_embd|embed_dim|embedding_size|hidden_dim|word_embed_proj_dim|projection_dim|dim|"
    r"embedding_dim|output_dim|d_embed|emb_dim|out_hidden_size|encoder_dim|decoder_dim|width|channels_dim)$"
)
BETWEEN_FIELDS = re.compile(r"intermediate|ffn_dim|d_ff$|n_inner|ffn_hidden|mlp_dim|feedforward|dim_ff|ffn_size")
HEAD_DIM_FIELDS = re.compile(r"head_dim$|^d_kv$|kv_channels|rotary_dim$|attention_head_size|^d_head|head_size")
RANK_FIELDS = re.compile(r"lora_rank$")
POSITION_FIELDS = re.compile(r"^(max_position_embeddings|n_positions|n_ctx|max_source_positions|max_target_positions)$")


def shrunk(config: Any, level: int) -> Any:
    """Return the config, shrunk in place, with the configs inside it."""
    for name, value in list(vars(config).items()):
        if hasattr(value, "to_dict"):
            shrunk(value, level)
        elif isinstance(value, bool) or value is None or name.startswith("_"):
            continue
        elif isinstance(value, int):
            _set(config, name, _number(name, value, level))
        elif isinstance(value, list | tuple) and value and all(type(v) is int for v in value):
            _set(config, name, type(value)(_numbers(name, list(value), level)))
    _kinds_of_layers(config)
    return config


def _set(config: Any, name: str, value: Any) -> None:
    if getattr(config, name) != value:
        setattr(config, name, value)


def _number(name: str, value: int, level: int) -> int:
    """Return the field's smaller value."""
    wide = level < 2
    if name.endswith(("_token_id", "_token_index", "_token_ids")) or name in ("image_token", "video_token"):
        return value if 0 <= value < WORDS else WORDS - 1 - sum(map(ord, name)) % 30
    if level < 3 and "vocab_size" in name:
        return min(value, WORDS)
    if LAYER_FIELDS.search(name) and not NOT_LAYERS.search(name):
        return min(value, LAYERS)
    if level < 3 and re.search(r"num_experts$|n_routed_experts|num_local_experts|moe_num_experts", name):
        return min(value, EXPERTS)
    if level < 3 and re.search(r"experts_per_tok|top_k$|moe_k$|topk_group$|^n_group$|num_selected", name):
        return min(value, 2 if "group" not in name else 1)
    if level < 3 and name == "image_size":
        return min(value, SIDE)
    if level < 3 and name == "patch_size" and value > PATCH // 2:
        return PATCH
    if level < 3 and POSITION_FIELDS.search(name):
        return min(value, 64)
    if not wide:
        return value
    if KV_FIELDS.search(name) and HEAD_FIELDS.search(name):
        return min(value, FEW_HEADS)
    if HEAD_FIELDS.search(name):
        return min(value, HEADS)
    if HEAD_DIM_FIELDS.search(name):
        return min(value, HEAD)
    if RANK_FIELDS.search(name):
        return min(value, 32)
    if BETWEEN_FIELDS.search(name):
        return min(value, BETWEEN)
    return min(value, HIDDEN) if WIDTH_FIELDS.search(name) else value


def _numbers(name: str, values: list[int], level: int) -> list[int]:
    """Return the smaller values of a field that has several: one per stage."""
    if re.search(r"depths|num_layers|layers$|blocks$", name) and max(values) < 64 and not NOT_LAYERS.search(name):
        return [min(v, 1 if len(values) > 2 else 2) for v in values]
    if name == "image_size" and level < 3:
        return [min(v, SIDE) for v in values]
    if level < 1 and min(values) >= 32 and re.search(r"hidden_sizes|dims?$|channels|widths|embed", name):
        factor = max(values) / 128
        return [max(16, 16 * round(v / factor / 16)) for v in values]
    return values


def _kinds_of_layers(config: Any) -> None:
    """Cut the lists that say what each layer is to the number of layers, so that each kind is there."""
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and value and all(isinstance(v, str) for v in value) and "layer" in name:
            count = getattr(config, "num_hidden_layers", LAYERS)
            distinct = list(dict.fromkeys(value))
            kept = (distinct + value)[: max(count, len(distinct))]
            if hasattr(config, "num_hidden_layers") and len(kept) != count:
                config.num_hidden_layers = len(kept)
            setattr(config, name, kept)
