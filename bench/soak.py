"""One session, many threads, changing shapes: `python -m bench.soak bert_base --seconds 60`.

Every output is, bit for bit, what a session of one thread gives that plans each shape by itself; and memory does not
grow after all shapes were seen. Exit 1 where that does not hold. Needs a GPU.
"""

import hashlib
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
import onnxruntime

import models
import onnxfuse
from onnxfuse.files import io
from onnxfuse.measure.timing.binding import ON_GPU
from onnxfuse.measure.timing.device import used_memory
from onnxfuse.runtime.kernels import programs

GROWTH = 32.0
"""Megabytes that the process and its GPU may grow by in the second half: thread stacks and allocators settle late."""


def digest(session: onnxruntime.InferenceSession, feeds: Mapping[str, np.ndarray]) -> str:
    """Return a hash of the bits of the outputs."""
    found = hashlib.sha256()
    for output in session.run(None, dict(feeds)):
        found.update(output.tobytes())
    return found.hexdigest()


def resident() -> float:
    """Return the megabytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def soaked(
    session: onnxruntime.InferenceSession, stream: list[dict[str, np.ndarray]], expected: list[str], threads: int,
    seconds: float,
) -> tuple[int, list[int], list[tuple[float, float]]]:  # fmt: skip
    """Return how many runs there were, which of the stream's were wrong, and memory (process, GPU) on the way."""
    end, runs, wrong = time.perf_counter() + seconds, [0] * threads, list[int]()

    def work(number: int) -> None:
        chance = random.Random(number)
        while time.perf_counter() < end:
            n = chance.randrange(len(stream))
            runs[number] += 1
            if digest(session, stream[n]) != expected[n]:
                wrong.append(n)

    working = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
    for thread in working:
        thread.start()
    marks = []
    while any(t.is_alive() for t in working):
        time.sleep(seconds / 12)
        marks.append((resident(), used_memory() / 1e6))
    for thread in working:
        thread.join()
    return sum(runs), wrong, marks


def planned(path: Path, stream: list[dict[str, np.ndarray]]) -> list[str]:
    """Return what a session gives for each of the stream that plans every shape by itself, in one thread."""
    with patch.object(programs.Programs, "learn", return_value=None):
        session = onnxfuse.session(path, ON_GPU, kernels=False)
        return [digest(session, feeds) for feeds in stream]


@click.command()
@click.argument("name", default="bert_base")
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option("--threads", default=8, show_default=True)
@click.option("--seconds", default=60.0, show_default=True)
@click.option("--count", default=200, show_default=True, help="Shapes.")
@click.option("--batches", default=8, show_default=True, help="Greatest batch.")
@click.option("--lengths", default=256, show_default=True, help="Greatest length of a sequence.")
@click.option("--pack/--no-pack", default=True, show_default=True, help="Compile a kernel pack first.")
def main(
    name: str, dtype: str, threads: int, seconds: float, count: int, batches: int, lengths: int, pack: bool
) -> None:
    """Run threads and compare."""
    chance = random.Random(1)
    shapes = [(chance.randint(1, batches), chance.randint(1, lengths)) for _ in range(count)]
    stream = [models.example_inputs(name, batch=b, sequence=s, dtype=dtype) for b, s in shapes]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fused.onnx"
        io.save(onnxfuse.optimize(models.build(name, dtype=dtype)), path)
        if pack:
            onnxfuse.compile(path, shapes={"batch": (1, batches), "sequence": (1, lengths)})
        session = onnxfuse.session(path, ON_GPU)
        expected = planned(path, stream)
        runs, wrong, marks = soaked(session, stream, expected, threads, seconds)
    half = marks[len(marks) // 2]
    growth = [last - then for last, then in zip(marks[-1], half, strict=True)]
    click.echo(f"{runs} runs of {count} shapes by {threads} threads: {len(wrong)} not bit-equal to serial runs")
    click.echo(f"memory in the second half: process {growth[0]:+.1f} MB, GPU {growth[1]:+.1f} MB")
    holds = not wrong and max(growth) <= GROWTH
    click.echo("holds" if holds else "FAILS")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
