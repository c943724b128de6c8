"""A stream of random shapes through a session, as a server meets them: `python -m models.shapes bert_base`.

Each shape runs twice: what the first run takes longer is what a new shape costs. Original and fused model run in
processes of their own, the fused one also with all its compiled kernels on disk. Needs a GPU.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import models
import onnxfuse
from onnxfuse import kernels
from onnxfuse.kernels.launch_plan import LaunchPlan
from onnxfuse.model import io


@dataclass(frozen=True)
class Stream:
    """What a stream of shapes cost."""

    extra: tuple[float, ...]
    """Seconds that the first run of each shape took longer than the second one, in order."""
    again: float
    """Seconds of all second runs."""
    planned: int
    """Plans that Python made."""
    planning: float
    """Seconds that they took, without compiling and recording."""
    answered: int
    """Shapes of an op that a launch program answered."""
    compiled: int
    """Kernels that were compiled, or taken from the disk."""


class _Counted:
    """Counts the plans and the compilations of this process from here on."""

    def __init__(self) -> None:
        self.planned, self.planning, self.compiled = 0, 0.0, set[str]()
        plan, load = kernels.plan, kernels.load

        def planned(*facts: object) -> LaunchPlan:
            begun = time.perf_counter()
            made = plan(*facts)  # type: ignore[arg-type]
            self.planned += 1
            self.planning += time.perf_counter() - begun
            return made

        def loaded(kernel: kernels.KernelSource, device: int) -> object:
            self.compiled.add(kernel.text)
            return load(kernel, device)

        vars(kernels).update(plan=planned, load=loaded)


def streamed(
    name: str, path: Path, dtype: str, fused: bool, count: int, batches: int, lengths: int, seed: int
) -> Stream:
    """Return what `count` random shapes cost a session of this process."""
    from onnxfuse.profiling.bound import opened
    from onnxfuse.profiling.settings import DEFAULT
    from onnxfuse.runtime.bridge import bridge

    counted = _Counted()
    session = opened(path, DEFAULT, ["CUDAExecutionProvider", "CPUExecutionProvider"], fused=fused)
    chance, extra, again = random.Random(seed), [], 0.0
    for _ in range(count):
        batch, length = chance.randint(1, batches), chance.randint(1, lengths)
        feeds = models.example_inputs(name, batch=batch, sequence=length, dtype=dtype)
        times = []
        for _ in range(2):
            begun = time.perf_counter()
            session.run(None, feeds)
            times.append(time.perf_counter() - begun)
        extra.append(times[0] - times[1])
        again += times[1]
    answered = sum(bridge().answers().values()) if fused else 0
    return Stream(tuple(extra), again, counted.planned, counted.planning, answered, len(counted.compiled))


def in_a_process(path: Path, cache: Path, *, fused: bool, **settings: str | int) -> Stream:
    """Return the same of a process of its own, with the kernels that are in `cache`."""
    command = [sys.executable, "-m", "models.shapes", "--one", str(path), "fused" if fused else "original"]
    command += [str(v) for k, v in settings.items() if k == "name"]
    command += [f"--{k}={v}" for k, v in settings.items() if k != "name"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"{path.name} does not run:\n{done.stderr[-2000:]}")
    return Stream(**json.loads(done.stdout.splitlines()[-1]))


def row(kind: str, found: Stream) -> tuple[str, ...]:
    """Return a line of the table."""
    extra = 1e3 * np.asarray(found.extra)
    return (
        kind, f"{np.median(extra):.2f}", f"{np.percentile(extra, 99):.1f}", f"{np.percentile(extra, 99.9):.1f}",
        f"{extra.max():.0f}", f"{extra.sum() / 1e3:.2f}", f"{found.again:.2f}", str(found.planned),
        f"{found.planning:.2f}", str(found.answered), str(found.compiled),
    )  # fmt: skip


@click.command()
@click.argument("name", default="bert_base")
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option("--count", default=1000, show_default=True, help="Shapes.")
@click.option("--batches", default=32, show_default=True, help="Greatest batch.")
@click.option("--lengths", default=512, show_default=True, help="Greatest length of a sequence.")
@click.option("--seed", default=1, show_default=True)
@click.option("--one", nargs=2, type=str, hidden=True, help="FILE KIND: one stream, in this process.")
def main(name: str, dtype: str, count: int, batches: int, lengths: int, seed: int, one: tuple[str, str] | None) -> None:
    """Run streams and print a table."""
    if one is not None:
        found = streamed(name, Path(one[0]), dtype, one[1] == "fused", count, batches, lengths, seed)
        click.echo(json.dumps(asdict(found)))
        return
    settings: dict[str, str | int] = {
        "name": name, "dtype": dtype, "count": count, "batches": batches, "lengths": lengths, "seed": seed,
    }  # fmt: skip
    table = Table(
        "", "extra, ms: median", "99%", "99.9%", "most", "sum, s", "second runs, s", "plans", "s", "answers", "kernels",
        box=None,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        original, fused, cache = (Path(folder) / n for n in ("a.onnx", "b.onnx", "cache"))
        model = models.build(name, dtype=dtype)
        io.save(model, original)
        io.save(onnxfuse.optimize(model), fused)
        table.add_row(*row("original", in_a_process(original, cache, fused=False, **settings)))
        table.add_row(*row("fused, no kernels on disk", in_a_process(fused, cache, fused=True, **settings)))
        table.add_row(*row("fused, kernels on disk", in_a_process(fused, cache, fused=True, **settings)))
    Console(width=180).print(table)


if __name__ == "__main__":
    main()
