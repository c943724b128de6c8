"""Time a session up to its first answer, before and after fusion: `python -m bench.start bert_base resnet50`.

Every start is a process of its own: ONNX Runtime on the original; the fused model with its kernel pack and nothing
else; with nothing on disk; with all that a start before has left in the caches. The time begins after the imports and
ends when the first run has given its outputs. Models are samples by name, or exports: FILE.onnx. Needs a GPU; where
there are several, as many models at a time.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import SimpleQueue

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import models
import onnxfuse
from bench.apart import CACHED, EMPTY, ORIGINAL, PACKED, Counted, Turn, Waiting, at_once, attend, called, leave, wait
from onnxfuse.files import io
from onnxfuse.runtime.engine.cuda_provider import device_count
from onnxfuse.verification.inputs.input_specs import input_specs
from onnxfuse.verification.inputs.inputs import cases

STARTS = 3
"""Of each kind but the one with nothing on disk; medians."""
OVER = 0.3
"""Seconds that a first run with a pack may take longer than ONNX Runtime's own."""
MEDIAN, WORST = 1.5, 5.0
"""Seconds that first runs may take with nothing on disk."""


@dataclass(frozen=True)
class Start:
    """One start: seconds, and what was done on the way."""

    session: float
    """Until the session is there."""
    first_run: float
    """Of the first run; without a pack it plans, compiles and loads the kernels."""
    planned: int = 0
    compiled: int = 0

    @property
    def total(self) -> float:
        """Until the first answer."""
        return self.session + self.first_run


def started(path: Path, feeds: Path, *, fused: bool) -> Start:
    """Return the times of a start in this process, when it is its turn."""
    from onnxfuse.measure.timing.binding import ON_GPU, bind, opened, ort_values, outputs_of
    from onnxfuse.measure.timing.settings import DEFAULT

    # The CUDA provider's libraries load with the first session, whichever model it is for.
    opened(models.build("lenet5"), DEFAULT, ON_GPU, fused=False)
    counted = Counted()
    wait()
    begun = time.perf_counter()
    session = opened(path, DEFAULT, ON_GPU, fused=fused)
    created = time.perf_counter()
    with np.load(feeds) as arrays:
        inputs = ort_values(dict(arrays))
    bind(session, inputs, outputs_of(session, inputs, path.stem)).run()
    return Start(created - begun, time.perf_counter() - created, counted.planned, counted.compiled)


def compare(
    name: str, dtype: str, batch: int, sequence: int, starts: int, gpu: int, turn: Turn = at_once
) -> dict[str, Start]:
    """Return the median start of each kind."""
    with tempfile.TemporaryDirectory() as folder:
        original, fused, packed, feeds = (Path(folder) / n for n in ("a.onnx", "b.onnx", "packed.onnx", "feeds.npz"))
        if name.endswith(".onnx"):
            model = io.load(name)
            arrays = dict(cases(input_specs(model), [0])[0].make())
        else:
            model = models.build(name, dtype=dtype, batch=batch, sequence=sequence)
            arrays = models.example_inputs(name, batch=batch, sequence=sequence, dtype=dtype)
        io.save(model, original)
        made = onnxfuse.optimize(model)
        io.save(made, fused)
        io.save(made, packed)
        del model, made
        np.savez(feeds, **arrays)  # type: ignore[arg-type]  # an input may be called as an option is
        none, cache, elsewhere = (Path(folder) / n for n in ("none", "cache", "packing"))
        called([sys.executable, "-m", "onnxfuse", "compile", str(packed)], elsewhere, gpu)
        called([sys.executable, "-m", "onnxfuse", "compile", str(packed), "--trust-pack"], none, gpu)

        def process(kind: str) -> Waiting:
            path = {ORIGINAL: original, PACKED: packed}.get(kind, fused)
            command = [sys.executable, "-m", "bench.start", "--one", str(path), str(feeds), kind]
            return Waiting(command, gpu, XDG_CACHE_HOME=str(cache if kind in (EMPTY, CACHED) else none))

        process(ORIGINAL).result()  # so that the libraries' files are in memory for all of them
        # The one with nothing on disk comes before those that find what it left there.
        kinds = [EMPTY, *[ORIGINAL, CACHED, PACKED] * starts]
        waiting = [(kind, process(kind)) for kind in kinds]
        for _, one in waiting:
            one.prepared()
        turn()
        found = {kind: list[Start]() for kind in (ORIGINAL, PACKED, EMPTY, CACHED)}
        for kind, one in waiting:
            found[kind].append(Start(**one.result()))
    return {kind: _median(all_of) for kind, all_of in found.items()}


def _median(starts: Sequence[Start]) -> Start:
    middle = {n: statistics.median_low([asdict(s)[n] for s in starts]) for n in asdict(starts[0])}
    return Start(**middle)


def verdicts(found: Mapping[str, Mapping[str, Start]]) -> list[tuple[bool, str]]:
    """Return what is asked of starts, and whether it holds."""
    over = {name: starts[PACKED].first_run - starts[ORIGINAL].first_run for name, starts in found.items()}
    worst = max(over, key=lambda name: over[name])
    empty = [starts[EMPTY].first_run for starts in found.values()]
    work = sum(starts[PACKED].planned + starts[PACKED].compiled for starts in found.values())
    return [
        (over[worst] <= OVER, f"with a pack at most {OVER} s over ONNX Runtime: {over[worst]:+.2f} ({worst})"),
        (work == 0, f"with a pack nothing planned or compiled: {work}"),
        (statistics.median(empty) <= MEDIAN, f"nothing on disk, median <= {MEDIAN} s: {statistics.median(empty):.2f}"),
        (max(empty) <= WORST, f"nothing on disk, worst <= {WORST} s: {max(empty):.2f}"),
    ]


@click.command()
@click.argument("names", nargs=-1)
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option("--batch", default=32, show_default=True)
@click.option("--sequence", default=128, show_default=True)
@click.option("--starts", default=STARTS, show_default=True, help="Of each kind but that with nothing on disk.")
@click.option("--one", nargs=3, type=str, hidden=True, help="MODEL FEEDS KIND: one start, in this process.")
def main(
    names: tuple[str, ...], dtype: str, batch: int, sequence: int, starts: int, one: tuple[str, str, str] | None
) -> None:
    """Time starts and print a table, then what is asked of them."""
    if one is not None:
        attend()
        leave(asdict(started(Path(one[0]), Path(one[1]), fused=one[2] != ORIGINAL)))
    if not names:
        raise click.UsageError("give models by name, or files of exports")
    free: SimpleQueue[int] = SimpleQueue()
    for gpu in range(max(device_count(), 1)):
        free.put(gpu)

    def on_a_free_one(name: str) -> dict[str, Start]:
        gpu = free.get()
        try:
            return compare(name, dtype, batch, sequence, starts, gpu)
        finally:
            free.put(gpu)

    with ThreadPoolExecutor(free.qsize()) as pool:
        found = dict(zip(names, pool.map(on_a_free_one, names), strict=True))
    table = Table("model", "start", "session, s", "first run, s", "over the original, s", "plans", "kernels", box=None)
    for name, kinds in found.items():
        for kind, start in kinds.items():
            over = start.total - kinds[ORIGINAL].total
            table.add_row(
                name, kind, f"{start.session:.2f}", f"{start.first_run:.2f}", f"{over:+.2f}", str(start.planned),
                str(start.compiled),
            )  # fmt: skip
    console = Console(width=160)
    console.print(table)
    for holds, what in verdicts(found):
        console.print(f"{'holds' if holds else 'FAILS'}: {what}")


if __name__ == "__main__":
    main()
