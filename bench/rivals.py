"""What else makes a sample model fast: `onnxruntime.transformers.optimizer`, and torch.compile on the torch twin.

`python -m bench.rivals bert_base --dtype float16 --batch 32` prints the medians of torch.compile in microseconds as
JSON. It is a process of its own: two users of one GPU's memory and profiler do not get into each other's way.
"""

import contextlib
import importlib.util
import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx

import models
from bench.apart import Turn, at_once
from models import vision, workloads
from models.bert import Bert
from models.gpt2 import Gpt2
from models.minilm import MiniLm
from models.torch_compiled import by_layout
from models.vit import Vit
from onnxfuse.measure.timing.stopwatch import timed, warm
from onnxfuse.options.functions import ROUNDS, RUNS

UNMASKED = "sdpa_unmasked"
"""torch's SDPA as transformers calls it, under a name for which transformers makes no mask.

Under torch.compile transformers (5.17, 5.23) makes one where the model is given none: for ViT one that hides nothing,
for GPT-2 what SDPA's own `is_causal` hides. With a mask SDPA leaves FlashAttention: ViT-B/16, 32 images, float16, H200
6273 us, without one 3357 (torch 2.11, 2026-11).
"""
TWINS = {"vit_b_16": ("torchvision",), "efficientnet_b0": ("torchvision",)}
"""Who else has the same architecture: each is timed, too, where it is installed."""
INSTEAD = frozenset({"efficientnet_b0"})
"""Of which transformers' own is not timed then: under torch.compile it takes 33 ms (32 images, H200, torch 2.11)."""
TYPES: dict[type, str] = {Bert: "bert", MiniLm: "bert", Vit: "vit", Gpt2: "gpt2"}
"""What `onnxruntime.transformers.optimizer` calls the architectures that it knows."""


def optimized(path: Path, name: str, out: Path) -> str | None:
    """Write to `out` what `onnxruntime.transformers.optimizer` makes of a model; return why not, or None.

    It is told the model's type, heads and width, and optimizes for the GPU. Where it cannot run, its error is raised: a
    race without it would say too much.
    """
    size: Any = models.ARCHITECTURES.get(name)
    if type(size) not in TYPES:
        return "no type of model that it knows"
    from onnxruntime.transformers import optimizer

    encoder = size.encoder if isinstance(size, MiniLm) else size
    with contextlib.redirect_stdout(io.StringIO()):
        made = optimizer.optimize_model(
            str(path), TYPES[type(size)], num_heads=encoder.heads, hidden_size=encoder.hidden, opt_level=0, use_gpu=True
        )
    if all(o.domain != "com.microsoft" for o in made.model.opset_import):
        made.model.opset_import.add(domain="com.microsoft", version=1)
    onnx.save(made.model, out)
    return None


# ---- torch.compile


def compiled_apart(name: str, dtype: str, batch: int, sequence: int) -> dict[str, float] | str:
    """Return the medians of torch.compile by mode, measured in a process of its own, or why there are none."""
    command = [sys.executable, "-m", "bench.rivals", name, "--dtype", dtype]
    command += ["--batch", str(batch), "--sequence", str(sequence)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        lines = ran.stderr.strip().splitlines()
        return lines[-1] if lines else f"it ended with {ran.returncode}"
    found: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return found


def compiled(
    name: str, dtype: str, batch: int, sequence: int, device: str = "cuda", runs: int = RUNS, rounds: int = ROUNDS,
    turn: Turn = at_once, **options: Any,
) -> dict[str, float]:  # fmt: skip
    """Return the median microseconds of the torch twins of `name` under torch.compile, by setting, in turns.

    Attention is torch's own (SDPA), images are tried in both layouts; `options` go to torch.compile. Compiled is before
    the `turn`: where Inductor times Triton's configurations it keeps the fastest of a hundred launches of each
    (torch 2.11), which others on the card may delay but not make faster. Raises DeviceError where torch or
    transformers is missing.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True  # as ONNX Runtime by default, and as cuDNN's convolutions in torch
    others = [f"{package}:{name}" for package in TWINS.get(name, ()) if importlib.util.find_spec(package)]
    calls = dict[str, Callable[[], None]]()
    with torch.inference_mode():
        for twin in others if others and name in INSTEAD else (name, *others):
            make, feeds = _twin(twin, dtype, batch, sequence)
            inputs = [torch.from_numpy(values).to(device) for values in feeds.values()]

            def module(make: Callable[[], Any] = make, *, masked: bool = "attention_mask" in feeds) -> Any:
                made = make().to(device, getattr(torch, dtype))
                by_sdpa(made, masked=masked)
                return made

            who = f"{twin.partition(':')[0]}, " if twin in others else ""
            made = by_layout(module, inputs, device, images=inputs[0].ndim == 4, **options)
            calls |= {f"{who}{setting}": call for setting, call in made.items()}
        warm(calls.values())
        turn()
        warm(calls.values())
        times = timed(list(calls.values()), rounds, runs)
    return {setting: timing.p50 for setting, timing in zip(calls, times, strict=True)}


def _twin(name: str, dtype: str, batch: int, sequence: int) -> tuple[Callable[[], Any], dict[str, Any]]:
    """Return what makes a model as a torch module, and inputs for it."""
    if workloads.is_workload(name):
        return lambda: workloads.make(name, batch)[0], workloads.inputs(name, dtype, batch)
    if vision.is_vision(name):
        shape = (batch, 3, vision.side(name), vision.side(name))
        images = np.random.default_rng(0).standard_normal(shape).astype(dtype)
        return lambda: vision.torch_model(name), {"image": images}
    from models import export  # says what is missing where torch is

    feeds = models.example_inputs(name, batch=batch, sequence=sequence, dtype=dtype)
    return lambda: export.torch_model(name), feeds


def by_sdpa(module: Any, *, masked: bool) -> None:
    """Let a model of transformers that knows SDPA use it; `masked` tells whether a mask is among its inputs."""
    inner = getattr(module, "inner", module)
    if not getattr(inner, "_supports_sdpa", False):  # convolution nets, torchvision, timm
        return
    if not masked:
        from transformers import AttentionInterface
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        AttentionInterface.register(UNMASKED, sdpa_attention_forward)
        module.own_mask = False
    inner.set_attn_implementation("sdpa" if masked else UNMASKED)


@click.command()
@click.argument("name")
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option("--batch", default=32, show_default=True)
@click.option("--sequence", default=128, show_default=True)
def main(name: str, dtype: str, batch: int, sequence: int) -> None:
    """Print the medians of torch.compile on the GPU, microseconds, as JSON."""
    click.echo(json.dumps(compiled(name, dtype, batch, sequence)))


if __name__ == "__main__":
    main()
