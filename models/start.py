"""Time a session up to its first answer, before and after fusion: `python -m models.start bert_base`.

Every start is a process of its own: ONNX Runtime on the original; the fused model with no compiled kernels on disk; the
same with all of them there. The time begins after the imports and ends when the first run has given its outputs.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import models
import onnxfuse
from onnxfuse.model import io

STARTS = 3
"""Of each kind but the cold one; medians."""


@dataclass(frozen=True)
class Start:
    """Seconds of one start."""

    session: float
    """Until the session is there."""
    first_run: float
    """Of the first run; it plans, compiles and loads the kernels."""

    @property
    def total(self) -> float:
        """Until the first answer."""
        return self.session + self.first_run


def started(path: Path, feeds: Path, *, fused: bool) -> Start:
    """Return the times of a start in this process."""
    from onnxfuse.profiling.bound import bind, opened, ort_values, outputs_of
    from onnxfuse.profiling.settings import DEFAULT

    # The CUDA provider's libraries load with the first session, whichever model it is for.
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    opened(models.build("lenet5"), DEFAULT, providers, fused=False)
    begun = time.perf_counter()
    session = opened(path, DEFAULT, providers, fused=fused)
    created = time.perf_counter()
    with np.load(feeds) as arrays:
        inputs = ort_values(dict(arrays))
    bind(session, inputs, outputs_of(session, inputs, path.stem)).run()
    return Start(created - begun, time.perf_counter() - created)


def in_a_process(path: Path, feeds: Path, cache: Path, *, fused: bool) -> Start:
    """Return the times of a start in a process of its own, with the kernels that are in `cache`."""
    command = [sys.executable, "-m", "models.start", "--one", str(path), str(feeds), "fused" if fused else "original"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"{path.name} does not start:\n{done.stderr[-2000:]}")
    return Start(**json.loads(done.stdout.splitlines()[-1]))


def compare(name: str, dtype: str, batch: int, sequence: int) -> dict[str, Start]:
    """Return the median start of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        original, fused, feeds, cache = (Path(folder) / n for n in ("a.onnx", "b.onnx", "feeds.npz", "cache"))
        model = models.build(name, dtype=dtype, batch=batch, sequence=sequence)
        io.save(model, original)
        io.save(onnxfuse.optimize(model), fused)
        arrays = models.example_inputs(name, batch=batch, sequence=sequence, dtype=dtype)
        np.savez(feeds, **arrays)  # type: ignore[arg-type]
        in_a_process(original, feeds, cache, fused=False)  # so that the files are in memory for all of them
        cold = in_a_process(fused, feeds, cache, fused=True)
        found: dict[str, list[Start]] = {
            "original": [], "fused, no kernels on disk": [cold], "fused, kernels on disk": [],
        }  # fmt: skip
        for _ in range(STARTS):
            found["original"].append(in_a_process(original, feeds, cache, fused=False))
            found["fused, kernels on disk"].append(in_a_process(fused, feeds, cache, fused=True))
    return {
        kind: Start(statistics.median(s.session for s in starts), statistics.median(s.first_run for s in starts))
        for kind, starts in found.items()
    }


@click.command()
@click.argument("names", nargs=-1)
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option("--batch", default=32, show_default=True)
@click.option("--sequence", default=128, show_default=True)
@click.option("--one", nargs=3, type=str, hidden=True, help="MODEL FEEDS KIND: one start, in this process.")
def main(names: tuple[str, ...], dtype: str, batch: int, sequence: int, one: tuple[str, str, str] | None) -> None:
    """Time starts and print a table."""
    if one is not None:
        found = started(Path(one[0]), Path(one[1]), fused=one[2] == "fused")
        click.echo(json.dumps({"session": found.session, "first_run": found.first_run}))
        return
    table = Table("model", "start", "session, s", "first run, s", "over the original, s", box=None)
    for name in names:
        starts = compare(name, dtype, batch, sequence)
        for kind, start in starts.items():
            over = start.total - starts["original"].total
            table.add_row(name, kind, f"{start.session:.2f}", f"{start.first_run:.2f}", f"{over:+.2f}")
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
