"""Time sample models before and after fusion on the GPU: `python -m models.speed bert_base vit_b_16 resnet50`.

The times are those of `onnxfuse bench`; launches per run are counted by torch's profiler, where torch is installed.
"""

import tempfile
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import models
import onnxfuse
from onnxfuse.benchmark import Report, bench
from onnxfuse.benchmark.bound import bind, opened, ort_values, outputs_of
from onnxfuse.benchmark.settings import DEFAULT
from onnxfuse.model import io

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]

Kernels = dict[str, tuple[int, float]]
"""Kernel -> launches and microseconds of one run."""


def kernels_of(path: Path, feeds: dict[str, Any], *, fused: bool) -> Kernels | None:
    """Return what one run of a model puts on the device; None without torch."""
    try:
        from torch.profiler import ProfilerActivity, profile
    except ImportError:
        return None
    session, inputs = opened(path, DEFAULT, CUDA, fused=fused), ort_values(feeds)
    bound = bind(session, inputs, outputs_of(session, inputs, path.stem))
    bound.run()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        bound.run()
    return {e.key: (e.count, e.self_device_time_total) for e in profiler.key_averages() if e.self_device_time_total > 0}


def compare(
    name: str, dtype: str, batch: int, sequence: int, providers: list[str] = CUDA
) -> tuple[Report, list[Kernels | None]]:
    """Return the times of one model, and its kernels before and after."""
    model = models.build(name, dtype=dtype, batch=batch, sequence=sequence)
    feeds = models.example_inputs(name, batch=batch, sequence=sequence, dtype=dtype)
    with tempfile.TemporaryDirectory() as folder:
        original, fused = Path(folder) / f"{name}.onnx", Path(folder) / f"{name}.fused.onnx"
        io.save(model, original)
        io.save(onnxfuse.optimize(model), fused)
        report = bench(original, fused, providers=providers)
        on_cuda = providers == CUDA
        kernels = [kernels_of(p, feeds, fused=p is fused) if on_cuda else None for p in (original, fused)]
    return report, kernels


def add_row(table: Table, name: str, report: Report, kernels: list[Kernels | None]) -> None:
    """Add the row of one model."""
    (block,) = report.blocks
    fused = block.best("fused").timing
    medians = {r.setting: r.timing.p50 for r in block.rows if r.model == "original"}
    graph = medians.get("CUDA graph")
    settings = ", ".join(f"{k} {v:.0f}" for k, v in medians.items())
    table.add_row(
        name, settings, f"{fused.p50:.0f}", f"{fused.min:.0f}-{fused.p90:.0f}",
        f"{block.speedup:.2f}x", "" if graph is None else f"{graph / fused.p50:.2f}x",
        " -> ".join("?" if k is None else str(sum(count for count, _ in k.values())) for k in kernels),
    )  # fmt: skip


@click.command()
@click.argument("names", nargs=-1, required=True, type=click.Choice(list(models.ARCHITECTURES)))
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option("--batch", default=32, show_default=True)
@click.option("--sequence", default=128, show_default=True)
@click.option("--kernels", "shown", default=0, help="Print so many of the slowest kernels before and after.")
def main(names: tuple[str, ...], dtype: str, batch: int, sequence: int, shown: int) -> None:
    """Time models before and after fusion on the GPU and print a table."""
    table = Table("model", "ORT, us", "fused, us", "min-90%", "over best", "over graph", "launches", box=None)
    for name in names:
        report, kernels = compare(name, dtype, batch, sequence)
        length = f"x{sequence}" if name in ("bert_base", "minilm") else ""
        add_row(table, f"{name} {dtype} {batch}{length}", report, kernels)
        for title, found in zip(("before", "after"), kernels, strict=True):
            for key, (count, spent) in sorted((found or {}).items(), key=lambda item: -item[1][1])[:shown]:
                click.echo(f"{name} {title}: {spent:8.0f} us {count:4d} x {key[:120]}")
        for reason in report.fused_ops.reasons:
            click.echo(f"{name}: runs as its body: {reason}")
        for refused in report.blocks[0].refused:
            click.echo(f"{name}: ONNX Runtime refuses '{refused.setting}' ({refused.model}): {refused.reason[:160]}")
    Console(width=170).print(table)


if __name__ == "__main__":
    main()
