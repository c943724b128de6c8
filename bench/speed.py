"""Time models before and after fusion on the GPU: `python -m bench.speed bert_base vit_b_16 resnet50`.

A name is one of the sample models, `torchvision:NAME`, `timm:NAME`, `unet`, `workload:NAME` of `models.workloads`, or a
file; `cnns` stands for a model of each common family of convolution nets.

The times are taken as `onnxfuse bench` takes them; what `onnxruntime.transformers.optimizer` makes of the original is
one more candidate for ONNX Runtime's best. Launches per run are counted by torch's profiler, where torch is installed.
"""

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import models
import onnxfuse
from bench import rivals
from bench.apart import Turn, at_once
from bench.launches import Kernels, kernels_of
from bench.race import Raced, against, race
from models import vision, workloads
from onnxfuse.files import io
from onnxfuse.measure.benchmark import Timing
from onnxfuse.measure.timing.binding import ON_GPU
from onnxfuse.measure.timing.shapes import cases_per_shape, unsaid
from onnxfuse.verification.inputs.input_specs import input_specs

CNNS = "cnns"


@dataclass(frozen=True)
class Comparison:
    """What was measured of one model."""

    raced: Raced
    """The original, and what onnxruntime.transformers.optimizer makes of it, against the fused model."""
    unoptimized: str | None
    """Why onnxruntime.transformers.optimizer makes nothing of the original."""
    kernels: tuple[Kernels | None, Kernels | None]
    """Of one run, before and after; None where they were not asked for, and without a GPU or without torch."""
    text: bool
    """Whether the model reads as many tokens as were asked for."""

    @property
    def medians(self) -> dict[str, float]:
        """Microseconds of ONNX Runtime by setting."""
        return {r.setting: r.timing.p50 for r in self.raced.block.rows if r.model == "original"}

    @property
    def fused(self) -> Timing:
        """Microseconds of the fused model at its best setting."""
        return self.raced.block.best("fused").timing


def compare(
    name: str,
    dtype: str,
    batch: int,
    sequence: int,
    providers: Sequence[str] = ON_GPU,
    tuning: Path | None = None,
    *,
    kernels: bool = True,
    turn: Turn = at_once,
) -> Comparison:
    """Return the times of one model, and with `kernels` what it launches before and after.

    `tuning` is a file of `optimize --tune`.
    """
    with tempfile.TemporaryDirectory() as folder:
        original, fused, theirs = (Path(folder) / f"model{kind}.onnx" for kind in ("", ".fused", ".optimizer"))
        feeds = write(name, dtype, batch, sequence, original)
        io.save(onnxfuse.optimize(original, tuning=tuning), fused)
        refused = rivals.optimized(original, name, theirs)
        seen = kernels and tuple(providers) == ON_GPU and importlib.util.find_spec("torch") is not None
        before, after = (kernels_of(p, feeds, fused=p is fused) if seen else None for p in (original, fused))
        others = {} if refused else {"transformers.optimizer": theirs}
        raced = race(against(original, fused, providers, others=others), feeds, providers, turn)
    return Comparison(raced, refused, (before, after), "input_ids" in feeds and not workloads.is_workload(name))


def write(name: str, dtype: str, batch: int, sequence: int, path: Path) -> dict[str, Any]:
    """Write the model of a name, or of a file, to `path`, and return an input for it."""
    if name in models.ARCHITECTURES:
        io.save(models.build(name, dtype=dtype, batch=batch, sequence=sequence), path)
        return models.example_inputs(name, batch=batch, sequence=sequence, dtype=dtype)
    if workloads.is_workload(name):
        return workloads.export(name, path, dtype=dtype, batch=batch)
    if vision.is_vision(name):
        vision.export(name, path, dtype=dtype, batch=batch)
        model = io.load(path)
    else:
        model = io.load(name)
        io.save(model, path)
    specs = input_specs(model)
    (case,) = cases_per_shape(specs, dict.fromkeys(unsaid(specs, {}), (batch,)), 0)
    return case.make()


def add_row(table: Table, name: str, found: Comparison, compiled: Mapping[str, float] | None = None) -> None:
    """Add the row of one model."""
    fused, medians = found.fused, found.medians
    graph = medians.get("CUDA graph")
    row = [
        name, _shown(medians), f"{fused.p50:.0f}", f"{fused.min:.0f}-{fused.p90:.0f}",
        f"{min(medians.values()) / fused.p50:.2f}x", "" if graph is None else f"{graph / fused.p50:.2f}x",
        " -> ".join("?" if k is None else str(sum(count for count, _ in k.values())) for k in found.kernels),
    ]  # fmt: skip
    if compiled is not None:
        row += [_shown(compiled), f"{min(compiled.values()) / fused.p50:.2f}x" if compiled else ""]
    table.add_row(*row)


def _shown(medians: Mapping[str, float]) -> str:
    return ", ".join(f"{k} {v:.0f}" for k, v in medians.items())


@click.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option("--batch", default=32, show_default=True)
@click.option("--sequence", default=128, show_default=True)
@click.option("--tuning", type=click.Path(path_type=Path), help="Choose by what optimize --tune measured.")
@click.option("--kernels", "shown", default=0, help="Print so many of the slowest kernels before and after.")
@click.option("--torch-compile", is_flag=True, help="Time torch.compile on the torch twin, too (extra `export`).")
def main(
    names: tuple[str, ...],
    dtype: str,
    batch: int,
    sequence: int,
    tuning: Path | None,
    shown: int,
    torch_compile: bool,
) -> None:
    """Time models before and after fusion on the GPU and print a table."""
    columns = ["model", "ORT, us", "fused, us", "min-90%", "over best", "over graph", "launches"]
    table = Table(*columns, *(["compile, us", "over it"] if torch_compile else []), box=None)
    for name in (one for word in names for one in (vision.TEMPLATES if word == CNNS else (word,))):
        compiled = rivals.compiled_apart(name, dtype, batch, sequence) if torch_compile else None
        found = compare(name, dtype, batch, sequence, tuning=tuning)
        length = f"x{sequence}" if found.text else ""
        add_row(table, f"{name} {dtype} {batch}{length}", found, {} if isinstance(compiled, str) else compiled)
        for title, kernels in zip(("before", "after"), found.kernels, strict=True):
            for key, (count, spent) in sorted((kernels or {}).items(), key=lambda item: -item[1][1])[:shown]:
                click.echo(f"{name} {title}: {spent:8.0f} us {count:4d} x {key[:120]}")
        for reason in found.raced.bodies:
            click.echo(f"{name}: runs as its body: {reason}")
        for refused in found.raced.block.refused:
            click.echo(f"{name}: ONNX Runtime refuses '{refused.setting}' ({refused.model}): {refused.reason[:160]}")
        if found.unoptimized:
            click.echo(f"{name}: transformers.optimizer: {found.unoptimized[:160]}")
        if isinstance(compiled, str):
            click.echo(f"{name}: torch.compile: {compiled[:160]}")
    Console(width=200).print(table)


if __name__ == "__main__":
    main()
