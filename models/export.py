"""The same architectures through torch.onnx: what a user's own export looks like. Needs the extra `export`.

The classes are those of `transformers`, whose ViT projects Q, K and V apart where the builder's packs them.
Importing this module raises DeviceError where torch or transformers is not installed.
"""

# mypy: disallow-subclassing-any=False
# (where torch is not installed, torch.nn.Module is Any)

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models import ARCHITECTURES, Form, Size, architecture, example_inputs, minilm
from models.bert import Bert
from models.convnext import ConvNext
from models.efficientnet import EXPANSIONS, HEAD, KERNELS, STRIDES, EfficientNet
from models.gpt2 import Gpt2
from models.lenet import LeNet5
from models.minilm import MiniLm
from models.mlp import Mlp
from models.resnet import EXPANSION, ResNet
from models.vit import Vit
from onnxfuse.support.errors import DeviceError, ModelError, UsageError

try:
    import torch
    import transformers
    from torch import Tensor, nn
except ModuleNotFoundError as missing:
    raise DeviceError(
        f"Exporting with torch.onnx needs {missing.name}, not installed here.",
        hint='pip install "onnxfuse[export]", or build the model without torch: python -m models NAME OUT.onnx',
    ) from missing

OLDEST_DYNAMO_OPSET = 18
OUTPUTS = {
    "mlp": ("y",),
    "lenet5": ("logits",),
    "resnet50": ("logits",),
    "efficientnet_b0": ("logits",),
    "convnext_tiny": ("logits",),
    "bert_base": ("last_hidden_state", "pooler_output"),
    "vit_b_16": ("logits",),
    "gpt2": ("last_hidden_state",),
    "minilm": ("sentence_embedding",),
}


def export(
    name: str,
    path: Path | str,
    *,
    dynamo: bool = False,
    dtype: str = "float32",
    batch: int | str = "batch",
    sequence: int | str = "sequence",
    opset: int | None = None,
    seed: int = 0,
    **sizes: Size,
) -> None:
    """Write the model `name` to `path` with torch.onnx, by tracing or, with `dynamo`, by torch.export.

    Its weights are where the exporter puts them: those of torch.export in `PATH.data`.

    Arguments are those of `models.build`; the opset is 17, with `dynamo` 18, when not told.
    """
    opset = opset or (OLDEST_DYNAMO_OPSET if dynamo else Form.opset)
    if not Path(path).parent.is_dir():
        raise ModelError(f"{path}: cannot be written: there is no folder {Path(path).parent}.", hint="Create it first.")
    if dynamo and importlib.util.find_spec("onnxscript") is None:
        raise DeviceError("torch.onnx with dynamo needs onnxscript, not installed here.", hint="pip install onnxscript")
    if dynamo and opset < OLDEST_DYNAMO_OPSET:
        raise UsageError(
            f"opset is {opset}, expected at least {OLDEST_DYNAMO_OPSET} with dynamo.", hint="Leave --dynamo out."
        )
    form = Form(dtype=dtype, batch=batch, sequence=sequence, opset=opset)
    module = torch_model(name, seed=seed, **sizes).to(getattr(torch, form.dtype))

    # Two rows: torch.export takes a dimension of one for a constant.
    rows, tokens = batch if isinstance(batch, int) else 2, sequence if isinstance(sequence, int) else 16
    inputs = example_inputs(name, batch=rows, sequence=tokens, dtype=dtype, seed=seed, **sizes)
    text = "input_ids" in inputs
    open_axes = {axis: size for axis, size in enumerate((batch, sequence)[: 1 + text]) if isinstance(size, str)}
    torch.onnx.export(
        module,
        tuple(torch.from_numpy(values) for values in inputs.values()),
        str(path),
        dynamo=dynamo,
        opset_version=form.opset,
        input_names=list(inputs),
        output_names=list(OUTPUTS[name]),
        dynamic_axes=None if dynamo else dict.fromkeys((*inputs, *OUTPUTS[name]), open_axes),
        dynamic_shapes=(tuple(open_axes for _ in inputs),) if dynamo else None,
    )


def torch_model(name: str, *, seed: int = 0, **sizes: Size) -> nn.Module:
    """Return the model as a torch module in evaluation mode, inputs in the order of the ONNX model's."""
    size = architecture(name, **sizes)
    torch.manual_seed(seed)
    match size:
        case Mlp():
            module = _Torch(_mlp(size))
        case LeNet5():
            module = _Torch(_lenet5(size))
        case ResNet():
            module = _Torch(_resnet(size), _logits)
        case EfficientNet():
            module = _Torch(_efficientnet(size), _logits)
        case ConvNext():
            module = _Torch(_convnext(size), _logits)
        case Vit():
            module = _Torch(_vit(size), _logits)
        case Bert():
            module = _Torch(_bert(size), _hidden_and_pooled)
        case Gpt2():
            module = _Causal(_gpt2(size))
        case MiniLm():
            return _Torch(_minilm(size), _sentence_embedding).eval()
        case _:
            raise UsageError(f"{name} has no torch twin.", hint=f"Known: {', '.join(ARCHITECTURES)}.")
    _stir(module)
    return module.eval()


class _Torch(nn.Module):
    """A module on the inputs of the ONNX model, that returns what `pick(inputs, outputs)` makes of its outputs."""

    def __init__(self, inner: nn.Module, pick: Callable[[tuple[Tensor, ...], Any], Any] | None = None) -> None:
        super().__init__()
        self.inner = inner
        self.pick = pick

    def forward(self, *inputs: Tensor) -> Any:
        outputs = self.inner(*inputs)
        return outputs if self.pick is None else self.pick(inputs, outputs)


def _mlp(size: Mlp) -> nn.Module:
    hidden = size.hidden
    return nn.Sequential(nn.Linear(1, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))


def _lenet5(size: LeNet5) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, size.classes)),
    )


def _resnet(size: ResNet) -> nn.Module:
    widths = [size.width * EXPANSION * 2**stage for stage in range(len(size.stages))]
    options = {"embedding_size": size.width, "hidden_sizes": widths, "depths": list(size.stages)}
    options |= {"num_labels": size.classes}
    return transformers.ResNetForImageClassification(transformers.ResNetConfig.from_dict(options))


def _efficientnet(size: EfficientNet) -> nn.Module:
    # `transformers` has the channels of B0 in it, and scales all of them by one factor.
    scale, stages = size.width / EfficientNet.width, len(size.stages)
    options = {
        "width_coefficient": scale, "depth_coefficient": 1.0, "depth_divisor": 1, "depthwise_padding": [],
        "in_channels": [round(c / scale) for c in (size.width, *size.channels[:-1])],
        "out_channels": [round(c / scale) for c in size.channels],
        "num_block_repeats": list(size.stages), "kernel_sizes": list(KERNELS[:stages]),
        "strides": list(STRIDES[:stages]), "expand_ratios": list(EXPANSIONS[:stages]),
        "hidden_dim": HEAD * size.width, "image_size": size.image, "num_labels": size.classes,
    }  # fmt: skip
    return transformers.EfficientNetForImageClassification(transformers.EfficientNetConfig.from_dict(options))


def _convnext(size: ConvNext) -> nn.Module:
    widths = [size.width * 2**stage for stage in range(len(size.stages))]
    options = {"depths": list(size.stages), "hidden_sizes": widths, "num_stages": len(widths)}
    options |= {"num_labels": size.classes, "layer_scale_init_value": 0.3, "image_size": size.image}
    return transformers.ConvNextForImageClassification(transformers.ConvNextConfig.from_dict(options))


def _vit(size: Vit) -> nn.Module:
    options = _encoder_options(size) | {"image_size": size.image, "patch_size": size.patch, "num_labels": size.classes}
    return transformers.ViTForImageClassification(transformers.ViTConfig.from_dict(options))


def _bert(size: Bert) -> nn.Module:
    options = _encoder_options(size) | {"vocab_size": size.vocabulary, "max_position_embeddings": size.positions}
    return transformers.BertModel(transformers.BertConfig.from_dict(options))


def _gpt2(size: Gpt2) -> nn.Module:
    options: dict[str, Any] = {
        "n_layer": size.layers,
        "n_embd": size.hidden,
        "n_head": size.heads,
        "n_inner": size.intermediate,
    }
    options |= {"vocab_size": size.vocabulary, "n_positions": size.positions, "use_cache": False}
    options |= {"attn_implementation": "eager"}
    return transformers.GPT2Model(transformers.GPT2Config.from_dict(options))


class _Causal(_Torch):
    """A decoder that is given its mask: the one that it would make itself cannot be traced."""

    own_mask = True
    """Whether it is; without one the decoder's attention must hide later keys by itself."""

    def forward(self, *inputs: Tensor) -> Any:
        (ids,) = inputs
        if not self.own_mask:
            return self.inner(ids)[0]
        like = next(self.inner.parameters())
        scores = torch.zeros((1, 1, ids.shape[1], ids.shape[1]), dtype=like.dtype, device=like.device)
        later = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return self.inner(ids, attention_mask=scores.masked_fill(later, torch.finfo(scores.dtype).min))[0]


def _encoder_options(size: Bert | Vit) -> dict[str, Any]:
    """Return what the two transformers have in common, in the words of `transformers`."""
    return {
        "num_hidden_layers": size.layers,
        "hidden_size": size.hidden,
        "num_attention_heads": size.heads,
        "intermediate_size": size.intermediate,
        "attn_implementation": "eager",
    }


def _minilm(size: MiniLm) -> nn.Module:
    return transformers.BertModel.from_pretrained(
        minilm.files(), num_hidden_layers=size.layers, attn_implementation="eager", local_files_only=True
    )


def _logits(inputs: tuple[Tensor, ...], outputs: Any) -> Any:
    return outputs.logits


def _hidden_and_pooled(inputs: tuple[Tensor, ...], outputs: Any) -> Any:
    return outputs.last_hidden_state, outputs.pooler_output


def _sentence_embedding(inputs: tuple[Tensor, ...], outputs: Any) -> Tensor:
    """Return the mean over the tokens that are not padding, scaled to length 1, as sentence-transformers has it."""
    (_, mask, _), hidden = inputs, outputs.last_hidden_state
    weight = mask.unsqueeze(-1).expand(hidden.size()).to(hidden.dtype)
    mean = (hidden * weight).sum(1) / weight.sum(1).clamp(min=1e-9)
    return nn.functional.normalize(mean, p=2.0, dim=1)


def _stir(module: nn.Module) -> None:
    """Move biases, scales and running statistics off 0 and 1, so that a model that loses one gives other numbers."""
    for values in module.state_dict().values():
        if values.is_floating_point() and values.ndim == 1:
            values.add_(0.1 * torch.randn_like(values))
