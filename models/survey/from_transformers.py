"""Every architecture of transformers, made small: its config class with few layers, narrow, and a small vocabulary.

Nothing here knows an architecture by name. A config is shrunk by what its fields are called, less and less until the
model can be made and runs; its inputs are found the same way, by what its `forward` takes.
"""

# mypy: disallow-untyped-calls=False
# (transformers and torch say little of their types)

import copy
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from models.survey import REFUSALS, Made, Subject
from models.survey.modules import ROWS, Flat, stirred, tensors
from models.survey.shrink import LEVELS, WORDS, shrunk

TOKENS, PAST = 16, 12
LARGEST = 60_000_000
"""Parameters that a model may have: what cannot be made smaller is told, and left out."""

EXPERTS = "batched_mm"
"""How a mixture of experts is computed."""

WITH_TEXT = ("input_ids", "attention_mask", "bbox")
"""Inputs that have one value a token."""

CACHED = "+cache"
"""After an architecture's name: one step of decoding, with the keys and values of the tokens before it."""


def subjects() -> Iterator[Subject]:
    """Yield every architecture, and each decoder again with its cache."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_MAPPING_NAMES

    for kind in MODEL_MAPPING_NAMES:
        yield Subject(f"transformers:{kind}", f"transformers {kind}")
    for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        if kind in MODEL_MAPPING_NAMES:
            yield Subject(f"transformers:{kind}{CACHED}", f"transformers {kind}")


def make(name: str, side: int, attention: str) -> Made:
    """Return the smallest model of an architecture that can be made and runs; raises what the widest one raised.

    `attention` is eager or sdpa; an architecture that has it not gets its own.
    """
    kind = name.removesuffix(CACHED)
    last: Exception | None = None
    for level in LEVELS:
        try:
            module = _module(kind, level, attention, decoder=name.endswith(CACHED))
        except REFUSALS as error:
            last = error
            continue
        refused: Exception | None = None
        for inputs, axes, fixed in _inputs(module, cached=name.endswith(CACHED)):
            flat = Flat(module, tuple(inputs), **fixed) if not name.endswith(CACHED) else _step(module, inputs)
            try:
                with torch.no_grad():
                    out = flat(*inputs.values())
            except REFUSALS as error:
                refused = refused or error  # the fullest inputs say most
                continue
            if any(x.is_floating_point() for x in out):
                return Made(flat, inputs, axes)
        last = refused or last
    raise last or ValueError(f"{name}: no inputs are known for it")


def _module(kind: str, level: int, attention: str, *, decoder: bool) -> torch.nn.Module:
    import transformers

    config = shrunk(transformers.CONFIG_MAPPING[kind](), level)
    # Each token by its own experts' weights: the default counts the tokens of each, by what has no ONNX operator.
    config._experts_implementation = EXPERTS
    if decoder and hasattr(config, "is_decoder"):  # an encoder that can be one keeps no cache without
        config.is_decoder = True
    with torch.device("meta"):
        count = sum(p.numel() for p in transformers.AutoModel.from_config(copy.deepcopy(config)).parameters())
    config._attn_implementation = attention
    if count > LARGEST:
        raise ValueError(f"{kind} has {count:,} parameters, expected at most {LARGEST:,}")
    torch.manual_seed(0)
    try:
        made = transformers.AutoModel.from_config(copy.deepcopy(config), attn_implementation=attention)
    except (ValueError, ImportError):  # it does not know this one
        made = transformers.AutoModel.from_config(copy.deepcopy(config), attn_implementation="eager")
    return stirred(made)


Inputs = tuple[dict[str, Tensor], dict[str, dict[int, str]], dict[str, Any]]


def _inputs(module: torch.nn.Module, *, cached: bool) -> Iterator[Inputs]:
    """Yield inputs that a model may take, the fullest first: tensors, open axes, and what else is passed."""
    config: Any = module.config
    takes = inspect.signature(module.forward).parameters
    fixed: dict[str, Any] = {"use_cache": False} if "use_cache" in takes else {}
    if "return_dict" in takes:
        fixed["return_dict"] = True
    if cached:
        yield from _with_past(module)
        return
    known = {n: v for n, v in _known(config).items() if n in takes}
    target = {n: v for n, v in known.items() if n.startswith("decoder_")}
    text = {n: v for n, v in known.items() if n in WITH_TEXT and "input_ids" in known}
    rest = {n: v for n, v in known.items() if n not in WITH_TEXT and n not in target}
    main = getattr(module, "main_input_name", "input_ids")
    for medium in [*([{}] if main == "input_ids" else []), *_media(rest, main)]:
        for words in ([text, _without(text, "attention_mask")] if text else []) + [{}]:
            for given in [{**words, **medium, **target}, {**medium, **words}]:
                if given:
                    tensors_ = {n: v() for n, v in given.items()}
                    yield tensors_, {n: _axes(n) for n in given}, fixed


def _media(rest: Mapping[str, Any], main: str) -> Iterator[dict[str, Any]]:
    """Yield images, sounds and series in each form that they may have."""
    for name in sorted(rest, key=lambda n: n != main):
        for form in rest[name]:
            yield {name: form}


def _known(config: Any) -> dict[str, Any]:
    """Return what makes each input that we know."""
    side, channels, mels = _image_side(config), _found(config, "num_channels", "in_channels", default=3), _mels(config)
    patch = _found(config, "patch_size", default=8)
    patch = patch if isinstance(patch, int) else 8
    frames = _found(config, "num_frames", "frames_per_clip", default=4)
    hidden = _found(config, "hidden_size", "d_model", default=64)

    def ids() -> Tensor:
        return torch.randint(3, WORDS - 40, (ROWS, TOKENS))

    def mask() -> Tensor:
        made = torch.ones(ROWS, TOKENS, dtype=torch.int64)
        made[1, TOKENS - 5 :] = 0
        return made

    def drawn(*shape: int) -> Any:
        return lambda: torch.randn(ROWS, *shape)

    def boxes() -> Tensor:
        return torch.tensor([1, 2, 30, 40]).expand(ROWS, TOKENS, 4).contiguous()

    image = [drawn(channels, side, side)]
    clip = [drawn(frames, channels, side, side), drawn(channels, frames, side, side)]
    frame_counts = (2 * _found(config, "max_source_positions", default=64), 64, 128, 1024)
    sound = [drawn(*shape) for n in frame_counts for shape in ((mels, n), (n, mels))]
    wave = [drawn(8000), drawn(1, 8000), *sound]
    length, series = _found(config, "context_length", default=64), _found(config, "num_input_channels", default=1)
    return {
        "input_ids": ids, "attention_mask": mask, "bbox": boxes, "decoder_input_ids": ids,
        "pixel_values": image + clip, "pixel_values_videos": clip, "input_features": sound, "input_values": wave,
        "past_values": [drawn(length, series), drawn(length)], "spectrogram": sound, "audio_values": wave,
        "inputs_embeds": [drawn(TOKENS, hidden)], "hidden_states": [drawn(TOKENS, hidden)],
        "codes": [lambda: torch.randint(0, 8, (ROWS, 4, TOKENS))],
        "audio_codes": [lambda: torch.randint(0, 8, (ROWS, 4, TOKENS))],
        "flattened_patches": [drawn(TOKENS, patch * patch * channels + 2)],
    }  # fmt: skip


def _without(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {n: v for n, v in given.items() if n != name}


def _axes(name: str) -> dict[int, str]:
    if name in ("input_ids", "attention_mask", "bbox"):
        return {0: "batch", 1: "sequence"}
    return {0: "batch", 1: "target"} if name == "decoder_input_ids" else {0: "batch"}


def _found(config: Any, *names: str, default: int) -> Any:
    """Return the first of the fields that a config, or one of the configs in it, has."""
    for one in (config, *(v for v in vars(config).values() if hasattr(v, "to_dict"))):
        for name in names:
            value = getattr(one, name, None)
            if isinstance(value, int) and not isinstance(value, bool):
                return value
    return default


def _image_side(config: Any) -> int:
    for one in (config, *(v for v in vars(config).values() if hasattr(v, "to_dict"))):
        size = getattr(one, "image_size", None)
        if isinstance(size, list | tuple) and size:
            size = size[0]
        if isinstance(size, int):
            return size
    return 64


def _mels(config: Any) -> int:
    return int(_found(config, "num_mel_bins", "n_mels", "feature_size", "input_feat_per_channel", default=80))


# ---- one step of decoding


def _with_past(module: torch.nn.Module) -> Iterator[Inputs]:
    """Yield one new token, the mask over all, and the keys and values of the tokens before."""
    before = torch.randint(3, WORDS - 40, (ROWS, PAST))
    with torch.no_grad():
        cache: Any = module(input_ids=before, use_cache=True).past_key_values
    inputs = {
        "input_ids": torch.randint(3, WORDS - 40, (ROWS, 1)),
        "attention_mask": torch.ones(ROWS, PAST + 1, dtype=torch.int64),
    }
    axes: dict[str, dict[int, str]] = {"input_ids": {0: "batch"}, "attention_mask": {0: "batch", 1: "total"}}
    for number, layer in enumerate(cache.layers):
        for what in ("keys", "values"):
            inputs[f"past_{what}_{number}"] = getattr(layer, what).clone()
            axes[f"past_{what}_{number}"] = {0: "batch", 2: "past"}
    yield inputs, axes, {}


def _step(module: torch.nn.Module, inputs: Mapping[str, Tensor]) -> Flat:
    return _Step(module, tuple(inputs))


class _Step(Flat):
    """One new token through a decoder: hidden state, and the keys and values of all tokens."""

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        ids, mask, *past = inputs
        cache = DynamicCache()
        for layer in range(len(past) // 2):
            cache.update(past[2 * layer], past[2 * layer + 1], layer)
        out = self.inner(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
        kept = [t for layer in out.past_key_values.layers for t in (layer.keys, layer.values)]
        return (out.last_hidden_state, *tensors(kept))
