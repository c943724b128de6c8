"""What is measured: parts with rows, each of which one process prepares, and measures when it is its turn."""

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import numpy as np

import bench.start as starts
from bench import converted, rivals, shapes, speed
from bench.apart import Turn, at_once
from bench.race import against, race
from models import vision
from onnxfuse.api.optimize.optimizing import optimize
from onnxfuse.api.request.options import Options
from onnxfuse.files import io
from onnxfuse.measure.timing.binding import ON_GPU
from onnxfuse.measure.timing.contenders import Contender
from onnxfuse.measure.timing.settings import CUDA_GRAPH, DEFAULT

ROOT = Path(__file__).parents[2]
Values = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """Rows that one function measures."""

    rows: Mapping[str, Mapping[str, Any]]
    """By their names, what the function is called with."""
    measure: Callable[..., Values]
    """Prepares, calls its `turn`, and times: before that others prepare beside it, after it nothing else runs."""
    prepares: float
    """Seconds at most before the turn of a row that was never measured, beside others."""
    times: float
    """Seconds at most after it."""


def model_row(
    name: str,
    dtype: str,
    batch: int,
    sequence: int = 128,
    *,
    launches: bool = True,
    card: int = 0,
    providers: Sequence[str] = ON_GPU,
    turn: Turn = at_once,
) -> Values:
    """Return the microseconds of a model at ONNX Runtime's settings and fused, and with `launches` those of a run."""
    found = speed.compare(name, dtype, batch, sequence, providers, kernels=launches, turn=turn)
    counted = [None if k is None else sum(count for count, _ in k.values()) for k in found.kernels]
    return {
        "settings": found.medians,
        "fused": found.fused.p50,
        "between": [found.fused.low, found.fused.high],
        "launches": counted,
        "bodies": list(found.raced.bodies),
    }


def compiled_row(
    name: str, dtype: str, batch: int, sequence: int = 128, *, card: int = 0, turn: Turn = at_once
) -> Values:
    """Return the microseconds of the model's torch twin under torch.compile, by setting."""
    return rivals.compiled(name, dtype, batch, sequence, turn=turn)


def strict_row(
    name: str, batch: int, *, card: int = 0, providers: Sequence[str] = ON_GPU, turn: Turn = at_once
) -> Values:
    """Return the microseconds of a float32 model with TF32 off on both sides."""
    with tempfile.TemporaryDirectory() as folder:
        original, fused = (Path(folder) / f"{which}.onnx" for which in ("original", "fused"))
        feeds = speed.write(name, "float32", batch, 128, original)
        io.save(optimize(original, Options(strict_fp32=True)).model, fused)
        exact = DEFAULT.with_options({"use_tf32": "0"})
        block = race(against(original, fused, providers, exact), feeds, providers, turn).block
    return {"original": block.best("original").timing.p50, "fused": block.best("fused").timing.p50}


def start_row(name: str, *, card: int = 0, turn: Turn = at_once) -> Values:
    """Return the seconds from nothing to the first answer, by what is on disk."""
    found = starts.compare(name, "float16", 32, 128, 1, card, turn)
    return {kind: one.total for kind, one in found.items()}


def shapes_row(name: str, *, card: int = 0, turn: Turn = at_once) -> Values:
    """Return what the first run of each of a thousand shapes takes longer than the second: milliseconds, kernels."""
    found = {}
    for kind, one in shapes.streams(name, card=card, turn=turn).streams.items():
        extra = 1e3 * np.asarray(one.extra)
        found[kind] = {
            "median": float(np.median(extra)),
            "99%": float(np.percentile(extra, 99)),
            "99.9%": float(np.percentile(extra, 99.9)),
            "most": float(extra.max()),
            "sum": float(extra.sum()),
            "again": 1e3 * one.again,
            "compiled": one.compiled,
        }
    return found


def precision_row(name: str, *, card: int = 0, turn: Turn = at_once) -> Values:
    """Return the microseconds of a float32 file in ONNX Runtime, of its float16 twin fused, and of it converted.

    With them how many of its nodes are kept in float32, and of how many.
    """
    with tempfile.TemporaryDirectory() as folder:
        made = converted.prepared(name, "float16", Path(folder))
        turn()
        (setting, best), native, lowered = converted.raced(name, Path(folder))
    return {"settings": {setting: best}, "native": native, "fused": lowered, "kept": [made.kept, made.nodes]}


def rules_row(
    name: str,
    batch: int,
    sequence: int = 128,
    *,
    card: int = 0,
    providers: Sequence[str] = ON_GPU,
    turn: Turn = at_once,
) -> Values:
    """Return the microseconds of a fused model, and of the same without each of the rules that applied."""
    dtype, setting = ("float16", CUDA_GRAPH) if tuple(providers) == ON_GPU else ("float32", DEFAULT)
    with tempfile.TemporaryDirectory() as folder:
        original = Path(folder) / "original.onnx"
        feeds = speed.write(name, dtype, batch, sequence, original)
        whole = optimize(original)
        applied = sorted(whole.report.by_rule())
        contenders = []
        for number, skipped in enumerate(["", *applied]):
            path = Path(folder) / f"{number}.onnx"
            io.save(optimize(original, Options(skip=(skipped,))).model if skipped else whole.model, path)
            contenders.append(Contender("fused", path, replace(setting, name=skipped)))
        rows = race(contenders, feeds, providers, turn).block.rows
    times = {row.setting: row.timing.p50 for row in rows}
    return {"fused": times.pop(""), "without": times}


def printed_row(command: str, *, card: int = 0, turn: Turn = at_once) -> Values:
    """Return what a command prints, in a folder of its own."""
    turn()
    words = shlex.split(command)
    words = [sys.executable, *(words[1:] if words[0] == "python" else ["-m", *words])]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path, "COLUMNS": "120"}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False
        )
    if done.returncode != 0:
        raise click.ClickException(f"{command}: ends with {done.returncode}")
    return {"command": command, "text": "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())}


def _images(name: str, dtype: str, batch: int) -> tuple[str, Mapping[str, Any]]:
    return f"{name} {dtype}, {batch} image{'s' * (batch > 1)}", {"name": name, "dtype": dtype, "batch": batch}


def _tokens(name: str, batch: int, sequence: int) -> tuple[str, Mapping[str, Any]]:
    size = {"name": name, "dtype": "float16", "batch": batch, "sequence": sequence}
    return f"{name} float16, {batch}x{sequence} tokens", size


SCRIPTS = (
    "bandwidth", "products", "convolutions --net resnet50", "depthwise", "attentions", "attention_kernels", "general",
)  # fmt: skip

MODELS: Mapping[str, Mapping[str, Any]] = dict([
    _images("resnet50", "float16", 32), _images("resnet50", "float16", 1), _images("resnet50", "float32", 32),
    _images("efficientnet_b0", "float16", 32), _images("efficientnet_b0", "float16", 1),
    _images("convnext_tiny", "float16", 32), _images("convnext_tiny", "float16", 1),
    _tokens("bert_base", 32, 128), _tokens("bert_base", 1, 128),
    _images("vit_b_16", "float16", 32), _images("vit_b_16", "float16", 1), _tokens("gpt2", 8, 512),
    ("mlp float16, 4096 rows", {"name": "mlp", "dtype": "float16", "batch": 4096}),
])  # fmt: skip


def _others(name: str, batch: int, rows: str = "images", *, dtype: str = "float16") -> tuple[str, Mapping[str, Any]]:
    return f"{name}, {batch} {rows if batch > 1 else rows.removesuffix('s')}", {
        "name": name, "dtype": dtype, "batch": batch,
    }  # fmt: skip


def _floats(name: str, *batches: int, rows: str = "images") -> list[tuple[str, Mapping[str, Any]]]:
    return [_others(name, batch, rows, dtype="float32") for batch in batches]


OTHERS: Mapping[str, Mapping[str, Any]] = dict([
    _others("timm:resnest50d", 32), _others("timm:pvt_v2_b1", 32), _others("workload:segformer", 8),
    _others("timm:coatnet_0_rw_224", 32), _others("torchvision:maxvit_t", 32), _others("timm:levit_256", 32),
    _others("timm:mixer_b16_224", 32), _others("workload:rrdb", 8), _others("workload:r3d_18", 8, "clips"),
    _others("workload:hifi_gan", 1, "spectrograms"), _others("workload:hifi_gan", 8, "spectrograms"),
    _others("workload:wav2vec2", 1, "seconds"), _others("workload:bilstm", 8, "texts"),
    _others("workload:dlrm", 2048, "rows"), _others("workload:dlrm", 256, "rows"),
    _others("workload:llama_decode", 1, "tokens"), _others("workload:llama_decode", 8, "tokens"),
    _others("workload:llama_prefill", 4, "texts"), _others("workload:bloom", 4, "texts"),
    _others("workload:modernbert", 8, "texts"), _others("workload:denoiser", 1), _others("workload:denoiser", 8),
])  # fmt: skip
"""Models of other kinds, of which each has shown something that was slow."""

FLOATS: Mapping[str, Mapping[str, Any]] = dict([
    *_floats("timm:hrnet_w18", 32, 1), *_floats("timm:seresnext50_32x4d", 32, 1), *_floats("workload:segformer", 8, 1),
    *_floats("timm:deit_small_patch16_224", 32, 1), *_floats("timm:swin_tiny_patch4_window7_224", 32, 1),
    *_floats("timm:mobilevit_s", 32, 1), *_floats("timm:res2net50_26w_4s", 32), *_floats("timm:convnextv2_nano", 32),
    *_floats("timm:efficientnetv2_rw_t", 32), *_floats("timm:poolformer_s12", 32),
    *_floats("timm:xcit_small_12_p16_224", 32), *_floats("workload:bert", 32, 1, rows="texts"),
    *_floats("workload:electra", 32, rows="texts"), *_floats("workload:mpnet", 32, rows="texts"),
    *_floats("workload:deberta_v2", 8, rows="texts"),
])  # fmt: skip
"""Files in float32 as they are exported, of models that are in no other table."""

PARTS: Mapping[str, Part] = {
    "models": Part(MODELS, model_row, 60, 7),
    "cnns": Part(
        {name: {"name": name, "dtype": "float16", "batch": 32, "launches": False} for name in vision.TEMPLATES},
        model_row, 60, 6,
    ),
    "start": Part({name: {"name": name} for name in ("bert_base", "resnet50", "vit_b_16", "gpt2")}, start_row, 60, 6),
    "shapes": Part({"bert_base": {"name": "bert_base"}}, shapes_row, 60, 35),
    "compiled": Part(MODELS, compiled_row, 90, 4),
    "precision": Part({name: {"name": name} for name in converted.SIZES}, precision_row, 170, 25),
    "strict": Part({"resnet50, 32 images": {"name": "resnet50", "batch": 32}}, strict_row, 30, 10),
    "others": Part({name: {**row, "launches": False} for name, row in OTHERS.items()}, model_row, 90, 7),
    "others_compiled": Part(OTHERS, compiled_row, 120, 4),
    "floats": Part({name: {**row, "launches": False} for name, row in FLOATS.items()}, model_row, 90, 7),
    "floats_compiled": Part(FLOATS, compiled_row, 120, 4),
    "rules": Part(
        {
            "resnet50, 32 images": {"name": "resnet50", "batch": 32},
            "efficientnet_b0, 32 images": {"name": "efficientnet_b0", "batch": 32},
            "convnext_tiny, 32 images": {"name": "convnext_tiny", "batch": 32},
            "bert_base, 32x128 tokens": {"name": "bert_base", "batch": 32},
            "vit_b_16, 32 images": {"name": "vit_b_16", "batch": 32},
            "gpt2, 8x512 tokens": {"name": "gpt2", "batch": 8, "sequence": 512},
        },
        rules_row, 60, 15,
    ),
    "kernels": Part({s: {"command": f"python -m bench.kernels.{s}"} for s in SCRIPTS}, printed_row, 5, 90),
}  # fmt: skip
"""In the order in which they are measured, after the rows of README's table: what a reader looks at first."""
