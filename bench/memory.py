"""What a stream of changing sizes keeps on the GPU: `python -m bench.memory det.onnx --range H=320..1920..32`.

ONNX Runtime's session of the original, and the fused model's, each in processes of their own that have loaded CUDA's
libraries: at the largest sizes alone, and for random sizes of the ranges with the largest among them. Memory is by how
much the card's use grew, so nothing else may use the card. Exit 1 where the stream keeps more than 1.2 times what its
largest sizes keep alone, or the fused model more than 1.05 times the original. Needs a GPU.
"""

import multiprocessing
import random
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import click
import onnx
import onnxruntime

import models
import onnxfuse
from onnxfuse.files import io
from onnxfuse.measure.timing.binding import ON_GPU
from onnxfuse.measure.timing.device import used_memory
from onnxfuse.measure.timing.shapes import cases_per_shape
from onnxfuse.runtime import Provider
from onnxfuse.verification.inputs.input_specs import input_specs

STREAM, BESIDE_ORIGINAL = 1.2, 1.05
"""Bounds of the stream to its largest sizes alone, and of the fused model to the original."""
SETTLED = 8
"""Runs of the largest sizes: ONNX Runtime plans their memory in the second one, the arena is consolidated in a few."""

Sizes = Mapping[str, int]


def parsed(text: str) -> tuple[str, range]:
    """Return the name and the sizes of NAME=FROM..TO or NAME=FROM..TO..STEP."""
    name, _, bounds = text.partition("=")
    first, last, *step = map(int, bounds.split(".."))
    return name, range(first, last + 1, *step)


def kept(path: Path, stream: Sequence[Sizes], options: Mapping[str, str], *, fused: bool) -> tuple[int, int]:
    """Return the bytes of the card that a session took at the most, and after the last run."""
    warm = models.build("lenet5", batch=1)
    first = onnxruntime.InferenceSession(warm.SerializeToString(), providers=ON_GPU)
    first.run(None, models.example_inputs("lenet5", batch=1))
    specs = input_specs(onnx.load(path, load_external_data=False))
    before, grown = used_memory(), [0]
    chosen: list[Provider] = [(ON_GPU[0], dict(options)), *ON_GPU[1:]]
    session = onnxfuse.session(path, chosen) if fused else onnxruntime.InferenceSession(path, providers=chosen)
    for sizes in stream:
        (case,) = cases_per_shape(specs, {name: (size,) for name, size in sizes.items()}, 0)
        session.run(None, case.make())
        grown.append(used_memory() - before)
    return max(grown), grown[-1]


def apart(path: Path, stream: Sequence[Sizes], options: Mapping[str, str], *, fused: bool) -> tuple[int, int]:
    """Return what `kept` returns in a new process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(kept, path, stream, options, fused=fused).result()


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--range", "ranges", multiple=True, help="NAME=FROM..TO or NAME=FROM..TO..STEP of a dimension.")
@click.option("--count", default=200, show_default=True, help="Runs of random sizes.")
@click.option("--search", default="HEURISTIC", show_default=True, help="The original's cudnn_conv_algo_search.")
def main(path: Path, ranges: Sequence[str], count: int, search: str) -> None:
    """Measure, print and compare."""
    sizes, chance = dict(map(parsed, ranges)), random.Random(1)
    largest = [{name: max(of) for name, of in sizes.items()}] * SETTLED
    stream = [{name: chance.choice(of) for name, of in sizes.items()} for _ in range(count)]
    stream = [*stream, *largest[:3], *stream[:10]]
    found: dict[str, tuple[tuple[int, int], tuple[int, int]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "fused.onnx"
        io.save(onnxfuse.optimize(path), made)
        for name, file in (("original", path), ("fused", made)):
            options = {"cudnn_conv_algo_search": search} if name == "original" else {}
            alone, streamed = (apart(file, of, options, fused=name == "fused") for of in (largest, stream))
            found[name] = alone, streamed
            click.echo(
                f"{name:8}  largest alone: most {alone[0] / 1e6:.0f} MB, kept {alone[1] / 1e6:.0f};  "
                f"{len(stream)} runs: most {streamed[0] / 1e6:.0f} MB, kept {streamed[1] / 1e6:.0f}, "
                f"{streamed[1] / alone[1]:.2f}x its largest"
            )
    (alone, streamed), (originals, _) = found["fused"], found["original"]
    holds = streamed[1] <= STREAM * alone[1] and alone[0] <= BESIDE_ORIGINAL * originals[0]
    click.echo(f"peak beside the original's: {alone[0] / originals[0]:.2f}x; {'holds' if holds else 'FAILS'}")
    sys.exit(0 if holds else 1)


if __name__ == "__main__":
    main()
