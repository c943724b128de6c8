"""Models that are neither samples nor nets of a package by name, at the sizes that people serve: for `bench.speed`.

Super-resolution, vocoders, recurrent nets, recommendation, encoders of text, decoders with and without their cache, of
classes in `models.survey.plain` and transformers, with weights that are drawn. Needs torch; transformers for its own.

>>> module, inputs = make("workload:bilstm", batch=8)
"""

# mypy: disallow-untyped-calls=False
# (torch and transformers say little of their types)

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from onnxfuse.support.errors import DeviceError, UsageError

PREFIX = "workload:"


def is_workload(name: str) -> bool:
    """Return whether a name is one of a model of this module."""
    return name.startswith(PREFIX)


def make(name: str, batch: int) -> tuple[Any, dict[str, Any]]:
    """Return the model as a torch module in evaluation mode, in float32, and tensors for it.

    Raises UsageError for a name that does not exist, DeviceError where torch or transformers is missing.
    """
    try:
        import torch
    except ModuleNotFoundError as missing:
        raise DeviceError("These models are made by torch, not installed here.", hint="pip install torch") from missing
    inner = name.removeprefix(PREFIX)
    if inner not in WORKLOADS:
        raise UsageError(f"{name}: there is no such model.", hint=f"Known: {', '.join(WORKLOADS)}.")
    torch.manual_seed(0)
    try:
        from models.survey.modules import Flat, stirred

        module, inputs = WORKLOADS[inner](batch)
    except ModuleNotFoundError as missing:
        raise DeviceError(
            f"{name} needs {missing.name}, not installed here.", hint=f"pip install {missing.name}"
        ) from missing
    named = tuple(inputs) if inner in NAMED else ()
    return stirred(Flat(module, named)), inputs


def inputs(name: str, dtype: str, batch: int) -> dict[str, np.ndarray[Any, Any]]:
    """Return the arrays of `make`, floating-point ones in `dtype`."""
    return {n: x.numpy().astype(dtype) if x.is_floating_point() else x.numpy() for n, x in make(name, batch)[1].items()}


def export(name: str, path: Path | str, *, dtype: str, batch: int, opset: int = 17) -> dict[str, Any]:
    """Write a model to `path`, batch open, by tracing, on the GPU where there is one; return what it was given."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    element = getattr(torch, dtype)
    module, given = make(name, batch)
    taken = {n: x.to(device, element) if x.is_floating_point() else x.to(device) for n, x in given.items()}
    with torch.no_grad():
        torch.onnx.export(
            module.to(device, element), tuple(taken.values()), str(path), dynamo=False, opset_version=opset,
            input_names=list(taken), dynamic_axes={n: {0: "batch"} for n in taken},
        )  # fmt: skip
    arrays = {n: x.cpu().numpy() for n, x in taken.items()}
    del module, taken
    torch.cuda.empty_cache()  # torch keeps what the run took, and does nothing more; without a GPU it has nothing
    return arrays


# ---- what they are made of

Made = tuple[Any, dict[str, Any]]


def _rrdb(batch: int) -> Made:
    import torch

    from models.survey.plain import Rrdb

    return Rrdb(64, 32), {"image": torch.randn(batch, 3, 128, 128)}


def _hifi_gan(batch: int) -> Made:
    import torch
    from transformers import SpeechT5HifiGan, SpeechT5HifiGanConfig

    return SpeechT5HifiGan(SpeechT5HifiGanConfig()), {"mel": torch.randn(batch, 128, 80)}


def _bilstm(batch: int) -> Made:
    import torch

    from models.survey.plain import BiLstm

    return BiLstm(10_000, 256), {"ids": torch.randint(0, 10_000, (batch, 128))}


def _dlrm(batch: int) -> Made:
    import torch

    from models.survey.plain import Dlrm

    return Dlrm(26, 64), {"dense": torch.randn(batch, 13), "sparse": torch.randint(0, 50, (batch, 26))}


def _r3d(batch: int) -> Made:
    import torch
    from torchvision.models.video import r3d_18

    return r3d_18(weights=None), {"clip": torch.randn(batch, 3, 16, 112, 112)}


def _wav2vec2(batch: int) -> Made:
    import torch

    return _transformer("wav2vec2"), {"input_values": torch.randn(batch, 16_000)}


def _segformer(batch: int) -> Made:
    import torch

    return _transformer("segformer"), {"pixel_values": torch.randn(batch, 3, 512, 512)}


def _decode(batch: int) -> Made:
    import torch

    from models.survey.plain import Decode

    layers, heads, groups, size, before = 4, 16, 4, 128, 1023
    past = {
        f"past_{what}_{n}": torch.randn(batch, groups, before, size)
        for n in range(layers) for what in ("keys", "values")
    }  # fmt: skip
    ids, position = torch.randint(0, 99, (batch, 1)), torch.full((batch, 1), before)
    return Decode(heads * size, heads, groups, layers), {"ids": ids, "position": position, **past}


def _denoiser(batch: int) -> Made:
    import torch

    from models.survey.diffusion import Denoiser

    inputs = {"latent": torch.randn(batch, 4, 64, 64), "step": torch.full((batch,), 500)}
    return Denoiser((320, 640), heads=8, text=768), {**inputs, "text": torch.randn(batch, 77, 768)}


def _text(kind: str, length: int, **fields: int) -> Callable[[int], Made]:
    """Return what makes a decoder or encoder of transformers with its tokens and mask."""

    def made(batch: int) -> Made:
        import torch

        mask = torch.ones(batch, length, dtype=torch.int64)
        ids = torch.randint(0, 1000, (batch, length))
        return _transformer(kind, vocab_size=1000, **fields), {"input_ids": ids, "attention_mask": mask}

    return made


def _transformer(kind: str, **fields: int) -> Any:
    """Return the model of an architecture of transformers, of its default size where no field says another."""
    import transformers

    config = transformers.CONFIG_MAPPING[kind](**fields)
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"):
        if hasattr(config, name) and "vocab_size" in fields:
            setattr(config, name, 0)
    config.use_cache = False
    return transformers.AutoModel.from_config(config, attn_implementation="eager")


LLAMA = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 4,
    "num_hidden_layers": 4,
}  # fmt: skip
BASE = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
"""Of which the published base size is not the class's default."""

WORKLOADS: Mapping[str, Callable[[int], Made]] = {
    "rrdb": _rrdb,
    "hifi_gan": _hifi_gan,
    "wav2vec2": _wav2vec2,
    "r3d_18": _r3d,
    "segformer": _segformer,
    "denoiser": _denoiser,
    "bilstm": _bilstm,
    "dlrm": _dlrm,
    "llama_decode": _decode,
    "llama_prefill": _text("llama", 512, **LLAMA),
    "bloom": _text("bloom", 512, hidden_size=1024, n_head=16, n_layer=8),
    "modernbert": _text("modernbert", 512),
    "bert": _text("bert", 128),
    "electra": _text("electra", 128),
    "mpnet": _text("mpnet", 128),
    "deberta_v2": _text("deberta-v2", 128, **BASE),
}
"""By name, what makes a module of so many rows, and its inputs."""

NAMED = frozenset({
    "wav2vec2", "segformer", "llama_prefill", "bloom", "modernbert", "bert", "electra", "mpnet", "deberta_v2",
})  # fmt: skip
"""Whose modules take their inputs by name: those of transformers' `AutoModel`."""
