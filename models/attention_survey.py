"""Which attention is found: small models of many families, as both torch exporters write them, and a table of it.

`python -m models.attention_survey FOLDER` exports into FOLDER (once: what is there already is read again), optimizes,
and prints for every export how many attentions it holds, how many were found, and why not the others. Beside it stands
what `onnxruntime.transformers.optimizer` finds when it is told the model's type. Needs the extra `survey`.
"""

# mypy: disallow-subclassing-any=False, disallow-untyped-calls=False
# (where torch is not installed, torch.nn.Module is Any)

import contextlib
import io
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
import onnx

from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language.rule_file import Rule, by_default, shipped
from onnxfuse.support.errors import DeviceError, ModelError

try:
    import timm
    import torch
    import transformers
    from torch import Tensor, nn
    from torch.nn import functional
except ModuleNotFoundError as missing:
    raise DeviceError(
        f"The survey needs {missing.name}, not installed here.", hint='pip install "onnxfuse[survey]"'
    ) from missing

ROWS, TOKENS, HIDDEN, HEADS, LAYERS, WORDS = 2, 16, 64, 4, 2, 99


@dataclass(frozen=True)
class Model:
    """One architecture: how to make it, and what is in it."""

    make: Callable[[str], tuple[nn.Module, tuple[Tensor, ...]]]
    """From the attention implementation ("eager", "sdpa") to a module and its example inputs."""
    attentions: int
    """How many attentions it computes."""
    implementations: tuple[str, ...] = ("eager", "sdpa")
    type: str = "bert"
    """What onnxruntime.transformers.optimizer is told."""
    dynamic: bool = True
    """The batch, and the sequence where there are tokens, stay open."""


class Only(nn.Module):
    """A module on positional inputs, that returns one tensor."""

    def __init__(self, inner: nn.Module, names: tuple[str, ...] = (), **fixed: Any) -> None:
        super().__init__()
        self.inner, self.names, self.fixed = inner, names, fixed

    def forward(self, *inputs: Tensor) -> Tensor:
        named = dict(zip(self.names, inputs, strict=True)) if self.names else {}
        out = self.inner(**named, **self.fixed) if self.names else self.inner(*inputs, **self.fixed)
        while not isinstance(out, Tensor):
            out = out[0]
        return out


def tokens(rows: int = ROWS, length: int = TOKENS) -> Tensor:
    """Return token ids."""
    return torch.randint(3, WORDS, (rows, length))


def padding() -> Tensor:
    """Return a mask in which the second row is shorter."""
    mask = torch.ones(ROWS, TOKENS, dtype=torch.int64)
    mask[1, TOKENS - 5 :] = 0
    return mask


def hidden(length: int = TOKENS) -> Tensor:
    """Return activations."""
    return torch.randn(ROWS, length, HIDDEN)


def image(size: int = 32) -> Tensor:
    """Return pixels."""
    return torch.randn(ROWS, 3, size, size)


BERT = {
    "vocab_size": WORDS, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": 96, "max_position_embeddings": 40,
}  # fmt: skip
VIT = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 96,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip
LLAMA = BERT | {"num_key_value_heads": 2, "pad_token_id": 0}


def hf(
    name: str, config: dict[str, Any], names: tuple[str, ...], inputs: Callable[[], tuple[Tensor, ...]], **fixed: Any
) -> Callable[[str], tuple[nn.Module, tuple[Tensor, ...]]]:
    """Return what makes the `transformers` class `name`."""

    def make(implementation: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
        cls = getattr(transformers, name)
        options = cls.config_class(**config)
        module = cls._from_config(options, attn_implementation=implementation)
        return Only(_as_trained(module), names, **fixed), inputs()

    return make


def plain(make: Callable[[], nn.Module], inputs: Callable[[], tuple[Tensor, ...]], **fixed: Any) -> Any:
    """Return what makes a module that knows one way only."""
    return lambda _: (Only(_as_trained(make()), **fixed), inputs())


def _as_trained(module: nn.Module) -> nn.Module:
    """Draw the tables that start as zeros: a bias by position that adds nothing would rightly be left out."""
    for name, values in module.named_parameters():
        if "bias_table" in name:
            nn.init.normal_(values)
    return module


TEXT = ("input_ids", "attention_mask")


def text() -> tuple[Tensor, ...]:
    return tokens(), padding()


T5 = {
    "vocab_size": WORDS, "d_model": HIDDEN, "d_kv": 16, "d_ff": 96, "num_layers": LAYERS, "num_heads": HEADS,
    "decoder_start_token_id": 0, "use_cache": False,
}  # fmt: skip
BART = {
    "vocab_size": WORDS, "d_model": HIDDEN, "encoder_layers": LAYERS, "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96,
    "max_position_embeddings": 40, "use_cache": False,
}  # fmt: skip
WHISPER = BART | {
    "num_mel_bins": 8, "max_source_positions": TOKENS, "max_target_positions": 40, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "suppress_tokens": None,
    "begin_suppress_tokens": None,
}  # fmt: skip
SWIN = {
    "image_size": 32, "patch_size": 2, "embed_dim": 32, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4,
}  # fmt: skip
GPT2 = {"vocab_size": WORDS, "n_positions": 40, "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS}


class Sdpa(nn.Module):
    """Self attention written by hand around torch's own function."""

    def __init__(self, causal: bool = False, masked: bool = False, packed: bool = False) -> None:
        super().__init__()
        self.causal, self.masked, self.packed = causal, masked, packed
        apart = nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in "qkv")
        self.qkv: Any = nn.Linear(HIDDEN, 3 * HIDDEN) if packed else apart
        self.out = nn.Linear(HIDDEN, HIDDEN)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = self.qkv(x).chunk(3, -1) if self.packed else [linear(x) for linear in self.qkv]
        q, k, v = (p.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2) for p in parts)
        y: Tensor = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        made: Tensor = self.out(y.transpose(1, 2).reshape(x.shape))
        return made


class Einsum(nn.Module):
    """Self attention as einsum writes it, masked with masked_fill."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN) for _ in "qkv")

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = (f(x).view(b, s, HEADS, -1) for f in (self.q, self.k, self.v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.25
        scores = scores.masked_fill(~mask, float("-inf"))
        return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).reshape(b, s, HIDDEN)


class LinearAttention(nn.Module):
    """Not scaled dot-product attention: the softmax is over the features, and nothing is quadratic."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(HIDDEN, HIDDEN) for _ in "qkv")

    def forward(self, x: Tensor) -> Tensor:
        b, s, _ = x.shape
        q, k, v = (f(x).view(b, s, HEADS, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        context = k.softmax(-2).transpose(-1, -2) @ v
        made: Tensor = (q.softmax(-1) @ context).transpose(1, 2).reshape(b, s, HIDDEN)
        return made


class Experts(nn.Module):
    """Not attention: a softmax gate over experts, and a product with it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(HIDDEN, 4), nn.ModuleList(nn.Linear(HIDDEN, HIDDEN) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        every = torch.stack([e(x) for e in self.experts], -2)
        made: Tensor = (self.gate(x).softmax(-1).unsqueeze(-2) @ every).squeeze(-2)
        return made


def encoder_layer() -> nn.Module:
    """Return torch's own encoder layer, which takes no fast path that the exporters cannot follow."""
    torch.backends.mha.set_fastpath_enabled(False)
    return nn.TransformerEncoderLayer(HIDDEN, HEADS, 96, batch_first=True)


def decoder_layer() -> nn.Module:
    torch.backends.mha.set_fastpath_enabled(False)
    return nn.TransformerDecoderLayer(HIDDEN, HEADS, 96, batch_first=True)


def mha(batch_first: bool) -> Callable[[], nn.Module]:
    torch.backends.mha.set_fastpath_enabled(False)
    return lambda: nn.MultiheadAttention(HIDDEN, HEADS, batch_first=batch_first)


class Self(nn.Module):
    """nn.MultiheadAttention on one tensor."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        torch.backends.mha.set_fastpath_enabled(False)
        self.inner = nn.MultiheadAttention(HIDDEN, HEADS, batch_first=batch_first)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.inner(x, x, x, need_weights=False)[0]
        return y


def whisper_inputs() -> tuple[Tensor, ...]:
    return torch.randn(ROWS, 8, 2 * TOKENS), tokens()


MODELS: dict[str, Model] = {
    "bert": Model(hf("BertModel", BERT, TEXT, text), LAYERS),
    "roberta": Model(hf("RobertaModel", BERT, TEXT, text), LAYERS),
    "distilbert": Model(
        hf("DistilBertModel", {"vocab_size": WORDS, "dim": HIDDEN, "n_layers": LAYERS, "n_heads": HEADS,
            "hidden_dim": 96, "max_position_embeddings": 40}, TEXT, text), LAYERS),
    "electra": Model(hf("ElectraModel", BERT | {"embedding_size": 48}, TEXT, text), LAYERS),
    "gpt2": Model(hf("GPT2Model", GPT2, TEXT, text, use_cache=False), LAYERS, type="gpt2"),
    "gpt2 unmasked": Model(
        hf("GPT2Model", GPT2, ("input_ids",), lambda: (tokens(),), use_cache=False), LAYERS, type="gpt2"),
    "gpt2 static": Model(
        hf("GPT2Model", GPT2, ("input_ids",), lambda: (tokens(),), use_cache=False), LAYERS, type="gpt2",
        dynamic=False),
    "opt": Model(
        hf("OPTModel", {"vocab_size": WORDS, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "ffn_dim": 96,
            "num_attention_heads": HEADS, "max_position_embeddings": 40, "word_embed_proj_dim": HIDDEN}, TEXT, text,
            use_cache=False), LAYERS, type="gpt2"),
    "gpt_neox": Model(hf("GPTNeoXModel", BERT, TEXT, text, use_cache=False), LAYERS, type="gpt_neox"),
    "vit": Model(hf("ViTModel", VIT, ("pixel_values",), lambda: (image(),)), LAYERS, type="vit"),
    "deit": Model(hf("DeiTModel", VIT, ("pixel_values",), lambda: (image(),)), LAYERS, type="vit"),
    "clip text": Model(hf("CLIPTextModel", BERT, TEXT, text), LAYERS, type="clip"),
    "clip vision": Model(hf("CLIPVisionModel", VIT, ("pixel_values",), lambda: (image(),)), LAYERS, type="clip"),
    "swin": Model(hf("SwinModel", SWIN, ("pixel_values",), lambda: (image(),)), 4, type="swin"),
    "t5 encoder": Model(hf("T5EncoderModel", T5, TEXT, text), LAYERS, type="t5"),
    "t5": Model(
        hf("T5Model", T5, ("input_ids", "attention_mask", "decoder_input_ids"), lambda: (*text(), tokens())),
        3 * LAYERS, type="t5"),
    "bart": Model(
        hf("BartModel", BART, ("input_ids", "attention_mask", "decoder_input_ids"), lambda: (*text(), tokens())),
        3 * LAYERS, type="bart"),
    "whisper": Model(
        hf("WhisperModel", WHISPER, ("input_features", "decoder_input_ids"), whisper_inputs), 3 * LAYERS, type="bart",
        dynamic=False),
    "llama": Model(hf("LlamaModel", LLAMA, TEXT, text, use_cache=False), LAYERS, type="gpt2"),
    "llama static": Model(
        hf("LlamaModel", LLAMA, ("input_ids",), lambda: (tokens(),), use_cache=False), LAYERS, type="gpt2",
        dynamic=False),
    "mistral": Model(
        hf("MistralModel", LLAMA | {"head_dim": 16}, TEXT, text, use_cache=False), LAYERS, type="gpt2"),
    "qwen2": Model(hf("Qwen2Model", LLAMA, TEXT, text, use_cache=False), LAYERS, type="gpt2"),
    "timm vit": Model(
        plain(lambda: timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=HIDDEN,
            depth=LAYERS, num_heads=HEADS), lambda: (image(),)), LAYERS, ("sdpa",), "vit"),
    "timm deit": Model(
        plain(lambda: timm.create_model("deit_tiny_distilled_patch16_224", img_size=32, patch_size=8,
            embed_dim=HIDDEN, depth=LAYERS, num_heads=HEADS), lambda: (image(),)), LAYERS, ("sdpa",), "vit"),
    "timm swin": Model(
        plain(lambda: timm.create_model("swin_tiny_patch4_window7_224", img_size=32, patch_size=2, window_size=4,
            embed_dim=32, depths=(2, 2), num_heads=(2, 4)), lambda: (image(),)), 4, ("sdpa",), "swin"),
    "mha": Model(plain(lambda: Self(True), lambda: (hidden(),)), 1, ("sdpa",)),
    "mha sequence first": Model(plain(lambda: Self(False), lambda: (hidden(),)), 1, ("sdpa",)),
    "encoder layer": Model(plain(encoder_layer, lambda: (hidden(),)), 1, ("sdpa",)),
    "decoder layer": Model(plain(decoder_layer, lambda: (hidden(), hidden(11))), 2, ("sdpa",), dynamic=False),
    "sdpa": Model(plain(Sdpa, lambda: (hidden(),)), 1, ("sdpa",)),
    "sdpa causal": Model(plain(lambda: Sdpa(causal=True), lambda: (hidden(),)), 1, ("sdpa",)),
    "sdpa packed": Model(plain(lambda: Sdpa(packed=True), lambda: (hidden(),)), 1, ("sdpa",)),
    "sdpa bool mask": Model(
        plain(lambda: Sdpa(masked=True), lambda: (hidden(), padding().bool()[:, None, None, :])), 1, ("sdpa",),
        dynamic=False),
    "einsum": Model(
        plain(Einsum, lambda: (hidden(), padding().bool()[:, None, None, :])), 1, ("eager",), dynamic=False),
    "linear attention": Model(plain(LinearAttention, lambda: (hidden(),)), 0, ("eager",)),
    "experts": Model(plain(Experts, lambda: (hidden(),)), 0, ("eager",)),
    "convnext": Model(
        plain(lambda: timm.create_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 8, 16, 16)),
            lambda: (image(),)), 0, ("eager",), "vit"),
}  # fmt: skip


@dataclass(frozen=True)
class Way:
    """One way to export."""

    dynamo: bool
    opset: int
    dtype: str = "float16"
    """What the module is of; "converted" is float32 made float16 after the export, as onnxruntime.transformers does."""

    def __str__(self) -> str:
        return f"{'dynamo' if self.dynamo else 'trace'} {self.opset} {self.dtype}"


WAYS = (Way(False, 17), Way(False, 17, "converted"), Way(True, 18), Way(False, 17, "float32"))
EXTRA = {
    "bert": (Way(False, 11), Way(False, 14), Way(False, 20), Way(True, 23), Way(False, 17, "bfloat16"),
             Way(True, 18, "float32")),
    "vit": (Way(False, 12), Way(True, 23)),
    "gpt2": (Way(False, 13), Way(True, 23)),
    "gpt2 unmasked": (Way(False, 11), Way(True, 23)),
    "llama": (Way(False, 14), Way(True, 23), Way(True, 18, "bfloat16")),
    "t5": (Way(False, 11), Way(True, 23)),
    "mha": (Way(False, 11), Way(False, 13), Way(True, 20), Way(True, 23)),
    "mha sequence first": (Way(False, 11), Way(False, 13), Way(True, 23)),
    "sdpa": (Way(False, 14), Way(False, 16), Way(True, 20), Way(True, 23)),
    "sdpa causal": (Way(True, 23),),
    "sdpa packed": (Way(True, 23),),
    "sdpa bool mask": (Way(True, 23),),
    "timm vit": (Way(False, 11), Way(True, 23)),
}  # fmt: skip
"""What is exported besides WAYS."""

FAILURES = (RuntimeError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError, AssertionError)
"""What the exporters raise where they cannot write a model."""


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    model: str
    way: str
    attentions: int
    found: int | None
    """None where the export failed."""
    theirs: str
    reasons: str


def export(model: Model, implementation: str, way: Way, path: Path) -> None:
    """Write one export to `path`; raises what the exporter raises."""
    torch.manual_seed(0)
    module, inputs = model.make(implementation)
    element = getattr(torch, way.dtype.replace("converted", "float32"))
    module = module.to(element).eval()
    inputs = tuple(x.to(element) if x.is_floating_point() else x for x in inputs)
    axes = [{i: f"{'bs'[i]}" for i in range(min(2 if x.ndim < 4 else 1, 2))} for x in inputs] if model.dynamic else []
    names = [f"x{i}" for i in range(len(inputs))]
    dims = {"b": torch.export.Dim("b", min=2), "s": torch.export.Dim("s", min=2, max=40)}
    shapes = tuple({i: dims[d] for i, d in a.items()} for a in axes)
    options: dict[str, Any] = {"verbose": False} if way.dynamo else {}
    torch.onnx.export(
        module, inputs, str(path), dynamo=way.dynamo, external_data=False, opset_version=way.opset,
        input_names=names, output_names=["y"],
        dynamic_axes=dict(zip(names, axes, strict=True)) if axes and not way.dynamo else None,
        dynamic_shapes=(shapes,) if axes and way.dynamo else None, **options,
    )  # fmt: skip
    if way.dtype == "converted":
        from onnxruntime.transformers.float16 import convert_float_to_float16

        onnx.save(convert_float_to_float16(onnx.load(path)), path)


def theirs(path: Path, model: Model) -> str:
    """Return the attention ops that onnxruntime.transformers.optimizer writes, or why it stopped."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            options = FusionOptions(model.type)
            made = optimizer.optimize_model(
                str(path), model.type, num_heads=HEADS, hidden_size=HIDDEN, optimization_options=options, opt_level=0
            )
    except (*FAILURES, IndexError) as error:
        return type(error).__name__
    counts = Counter(n.op_type for n in made.model.graph.node if n.op_type.endswith("Attention") and n.domain)
    return ", ".join(f"{count} {op}" for op, count in counts.items()) or "0"


@cache
def rules() -> tuple[Rule, ...]:
    """Return the shipped rules that apply without being asked for, read once."""
    return by_default(shipped())


def ours(path: Path) -> tuple[int | None, str]:
    """Return how many attentions are found, and the reasons for the others."""
    model = onnx.load(path)
    try:
        report = pipeline.run(model, rules())
    except ModelError as error:
        return None, f"the exporter wrote an invalid model: {error}"[:150]
    kinds = fused_ops(model)
    found = sum(n.domain == DOMAIN and kinds[n.op_type].rule == "attention" for n in model.graph.node)
    stops = Counter(f"{near.refusal.node.rsplit('/', 1)[-1]}: {near.refusal.reason}"
                    for near in report.near if near.rule == "attention" and near.refusal.depth > 3)  # fmt: skip
    return found, "; ".join(f"{count} x {reason}" for reason, count in stops.most_common(2))


def survey(folder: Path, only: tuple[str, ...], *, exporting: bool) -> Iterator[Row]:
    """Yield a row for every export."""
    for name, model in MODELS.items():
        if only and name not in only:
            continue
        for way in (*WAYS, *EXTRA.get(name, ())):
            for implementation in model.implementations:
                shown = f"{way} {implementation}"
                path = folder / f"{name} {shown}.onnx".replace(" ", "_")
                failed = path.with_suffix(".failed")
                if not path.exists() and not failed.exists() and exporting:
                    try:
                        export(model, implementation, way, path)
                    except FAILURES as error:
                        failed.write_text(f"{type(error).__name__}: {error}".strip().splitlines()[0][:150])
                if failed.exists():
                    yield Row(name, shown, model.attentions, None, "", f"no export: {failed.read_text()}")
                elif path.exists():
                    note = path.with_suffix(".theirs")
                    if not note.exists():
                        note.write_text(theirs(path, model))
                    found, reasons = ours(path)
                    reasons = "" if found == model.attentions else reasons
                    yield Row(name, shown, model.attentions, found, note.read_text(), reasons)


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", "only", multiple=True, help="Only these models.")
@click.option("--export/--no-export", "exporting", default=True, help="Export what is not in FOLDER yet.")
def main(folder: Path, only: tuple[str, ...], exporting: bool) -> None:
    """Export models, look for attention in them and print the table."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    click.echo(
        "| model | exporter, opset, type, implementation | attentions | found | transformers.optimizer | reason |"
    )
    click.echo("|---|---|---|---|---|---|")
    rows = []
    for row in survey(folder, only, exporting=exporting):
        rows.append(row)
        found = "-" if row.found is None else row.found
        click.echo(f"| {row.model} | {row.way} | {row.attentions} | {found} | {row.theirs} | {row.reasons} |")
    halves = [r for r in rows if r.found is not None and "float32" not in r.way]
    whole = sum(r.found == r.attentions for r in halves)
    models = len({r.model for r in halves})
    click.echo(
        f"\n{len(halves)} exports of {models} models in half precision: in {whole} every attention is found and nothing"
        f" else, {len(halves) - whole} miss some."
        f" {sum(r.found is None for r in rows)} could not be exported. Float32 is left: the op is slower there."
    )


if __name__ == "__main__":
    main()
