"""A stream of random shapes through a session, as a server meets them: `python -m bench.shapes bert_base`.

Each shape runs twice: what the first run takes longer is what a new shape costs. Original and fused model run in
processes of their own, one after the other, the fused one with its kernel pack, with nothing on disk, and with what the
stream before has left there. Needs a GPU.
"""

import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
from rich.console import Console
from rich.table import Table

import models
import onnxfuse
from bench.apart import CACHED, EMPTY, ORIGINAL, PACKED, Counted, Turn, Waiting, at_once, attend, called, leave, wait
from onnxfuse.cuda.pack.file import pack_path_of as beside_of
from onnxfuse.files import io
from onnxfuse.measure.timing.binding import ON_GPU
from onnxfuse.measure.timing.stopwatch import seconds


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
    """Kernels that NVRTC compiled."""

    @property
    def throughput(self) -> float:
        """Of the stream, beside that of a session that knows every shape."""
        return self.again / (self.again + sum(self.extra))


def streamed(
    name: str, path: Path, dtype: str, fused: bool, count: int, batches: int, lengths: int, seed: int
) -> Stream:
    """Return what `count` random shapes cost a session of this process, when it is its turn."""
    import onnxruntime

    from onnxfuse.runtime.engine.bridge import bridge

    counted, opened = Counted(), onnxfuse.session if fused else onnxruntime.InferenceSession
    wait()
    session = opened(path, providers=ON_GPU)
    chance, extra, again = random.Random(seed), [], 0.0
    for _ in range(count):
        batch, length = chance.randint(1, batches), chance.randint(1, lengths)
        feeds = models.example_inputs(name, batch=batch, sequence=length, dtype=dtype)
        first, second = (seconds(partial(session.run, None, feeds)) for _ in range(2))
        extra.append(first - second)
        again += second
    answered = sum(bridge().answers().values()) if fused else 0
    return Stream(tuple(extra), again, counted.planned, counted.planning, answered, counted.compiled)


def row(kind: str, found: Stream) -> tuple[str, ...]:
    """Return a line of the table."""
    extra = 1e3 * np.asarray(found.extra)
    return (
        kind, f"{np.median(extra):.2f}", f"{np.percentile(extra, 99):.1f}", f"{np.percentile(extra, 99.9):.1f}",
        f"{extra.max():.0f}", f"{extra.sum() / 1e3:.2f}", f"{found.again:.2f}", f"{found.throughput:.3f}",
        str(found.planned), f"{found.planning:.2f}", str(found.answered), str(found.compiled),
    )  # fmt: skip


@dataclass(frozen=True)
class Streams:
    """The streams of a model."""

    streams: dict[str, Stream]
    """By what is on disk."""
    compiling: float
    """Seconds that the kernel pack took."""
    pack: int
    """Its bytes."""


def streams(
    name: str,
    dtype: str = "float16",
    count: int = 1000,
    batches: int = 32,
    lengths: int = 512,
    seed: int = 1,
    also: Sequence[str] = (),
    card: int = 0,
    turn: Turn = at_once,
) -> Streams:
    """Return the streams of a model's original and fused form; the optional rules `also` apply, too."""
    settings = {"dtype": dtype, "count": count, "batches": batches, "lengths": lengths, "seed": seed}
    ranges = [f"--shape={name}=1..{most}" for name, most in (("batch", batches), ("sequence", lengths))]
    with tempfile.TemporaryDirectory() as folder:
        original, fused, packed = (Path(folder) / n for n in ("a.onnx", "b.onnx", "packed.onnx"))
        model = models.build(name, dtype=dtype)
        io.save(model, original)
        made = onnxfuse.optimize(model, also=also)
        io.save(made, fused)
        io.save(made, packed)
        del model, made
        packing = [sys.executable, "-m", "onnxfuse", "compile", str(packed), *ranges]
        taken = seconds(partial(called, packing, Path(folder) / "packing", card))
        called([sys.executable, "-m", "onnxfuse", "compile", str(packed), "--trust-pack"], Path(folder) / "none", card)

        def process(kind: str) -> Waiting:
            path = {ORIGINAL: original, PACKED: packed}.get(kind, fused)
            command = [sys.executable, "-m", "bench.shapes", "--one", str(path), kind, name]
            command += [f"--{k}={v}" for k, v in settings.items()]
            cache = Path(folder) / ("cache" if kind in (EMPTY, CACHED) else "none")
            return Waiting(command, card, XDG_CACHE_HOME=str(cache))

        # The one with nothing on disk comes before the one that finds what it left there.
        waiting = {kind: process(kind) for kind in (ORIGINAL, PACKED, EMPTY, CACHED)}
        for one in waiting.values():
            one.prepared()
        turn()
        found = {kind: Stream(**one.result()) for kind, one in waiting.items()}
        return Streams(found, taken, beside_of(packed).stat().st_size)


@click.command()
@click.argument("name", default="bert_base")
@click.option("--dtype", default="float16", show_default=True, type=click.Choice(["float16", "float32"]))
@click.option("--count", default=1000, show_default=True, help="Shapes.")
@click.option("--batches", default=32, show_default=True, help="Greatest batch.")
@click.option("--lengths", default=512, show_default=True, help="Greatest length of a sequence.")
@click.option("--seed", default=1, show_default=True)
@click.option("--also", metavar="RULE", multiple=True, help="An optional rule; may be repeated.")
@click.option("--one", nargs=2, type=str, hidden=True, help="FILE KIND: one stream, in this process.")
def main(
    name: str,
    dtype: str,
    count: int,
    batches: int,
    lengths: int,
    seed: int,
    also: tuple[str, ...],
    one: tuple[str, str] | None,
) -> None:
    """Run streams and print a table."""
    if one is not None:
        attend()
        leave(asdict(streamed(name, Path(one[0]), dtype, one[1] != ORIGINAL, count, batches, lengths, seed)))
    found = streams(name, dtype, count, batches, lengths, seed, also)
    table = Table(
        "", "extra, ms: median", "99%", "99.9%", "most", "sum, s", "second runs, s", "throughput", "plans", "s",
        "answers", "compiled", box=None,
    )  # fmt: skip
    for kind, stream in found.streams.items():
        table.add_row(*row(kind, stream))
    console = Console(width=190)
    console.print(table)
    console.print(f"onnxfuse compile: {found.compiling:.1f} s, {found.pack / 1e6:.1f} MB")
    for holds, what in verdicts(found.streams):
        console.print(f"{'holds' if holds else 'FAILS'}: {what}")


def verdicts(found: Mapping[str, Stream]) -> list[tuple[bool, str]]:
    """Return what is asked of streams, and whether it holds."""
    extra = {kind: 1e3 * np.asarray(stream.extra) for kind, stream in found.items()}
    pack, empty = extra[PACKED], extra[EMPTY]
    middle, rare = float(np.median(pack)), float(np.percentile(pack, 99.9))
    work, throughput = found[PACKED].planned + found[PACKED].compiled, found[PACKED].throughput
    return [
        (work == 0, f"with a pack nothing planned or compiled: {work}"),
        (middle <= 0.2, f"with a pack, median of a model run <= 0.2 ms: {middle:.3f}"),
        (rare <= 5, f"with a pack, 99.9% <= 5 ms: {rare:.2f}"),
        (
            pack.sum() <= extra[ORIGINAL].sum(),
            f"with a pack, sum <= ONNX Runtime's: {pack.sum() / 1e3:.2f} and {extra[ORIGINAL].sum() / 1e3:.2f} s",
        ),
        (throughput >= 0.97, f"with a pack, throughput >= 0.97 of a session that knows every shape: {throughput:.3f}"),
        (empty.sum() <= 10e3, f"nothing on disk, sum <= 10 s: {empty.sum() / 1e3:.2f}"),
        (empty.max() <= 1500, f"nothing on disk, worst <= 1.5 s: {empty.max() / 1e3:.2f}"),
    ]


if __name__ == "__main__":
    main()
