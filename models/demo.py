"""The demo: a trained sentence model through the whole of onnxfuse, command by command, on the GPU if there is one."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

import models
import onnxfuse
from models import minilm
from onnxfuse.files import io
from onnxfuse.measure.timing.stopwatch import timed
from onnxfuse.support.errors import OnnxfuseError


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
def main(folder: Path) -> None:
    """Build all-MiniLM-L6-v2 in FOLDER, optimize it, say what was fused, run and verify it on real sentences."""
    folder.mkdir(parents=True, exist_ok=True)
    plain, fused, feeds = folder / "minilm.onnx", folder / "minilm.fused.onnx", folder / "sentences.npz"
    try:
        io.save(models.build("minilm"), plain)
        inputs = minilm.encode(minilm.sentences())
    except OnnxfuseError as error:
        raise click.ClickException(f"{error}\n{error.hint}") from None
    np.savez(feeds, **inputs)  # type: ignore[arg-type]  # an input may be called as an option is
    _command("optimize", str(plain), str(fused))
    _command("explain", str(plain))
    _embed(plain, fused, inputs)
    _command("verify", str(plain), str(fused), "--inputs", str(feeds))


def _command(*arguments: str) -> None:
    click.secho(f"\n$ onnxfuse {' '.join(arguments)}", bold=True)
    done = subprocess.run([sys.executable, "-m", "onnxfuse", *arguments], check=False)
    if done.returncode:
        sys.exit(done.returncode)


def _embed(plain: Path, fused: Path, inputs: dict[str, NDArray[Any]]) -> None:
    """Print which sentences the fused model finds alike, and how far its embeddings are from the original's."""
    click.secho("\n$ python: onnxfuse.session(...).run(None, sentences)", bold=True)
    sessions = {"before": onnxfuse.session(plain), "after": onnxfuse.session(fused)}
    found, times = {}, {}
    for name, session in sessions.items():
        (found[name],) = session.run(None, inputs)
        times[name] = _milliseconds(session, inputs)
    provider = sessions["after"].get_providers()[0].removesuffix("ExecutionProvider")
    cosine = (found["before"] * found["after"]).sum(axis=1).min()
    kernels = sum(p.nodes for p in sessions["after"].fused if p.runs_as == "kernel")
    click.echo(
        f"{len(found['after'])} sentences on {provider}: smallest cosine to the original's embedding {cosine:.7f}"
    )
    click.echo(f"{times['before']:.2f} ms before, {times['after']:.2f} ms after; {kernels} nodes ran as fused kernels")
    if not kernels:
        click.echo("no GPU here: the fused ops ran through their bodies, which are not faster")
    alike = found["after"] @ found["after"].T - 2 * np.eye(len(found["after"]))
    for first in np.argsort(-alike.max(axis=1))[:4:2]:
        second = int(alike[first].argmax())
        click.echo(f"  {alike[first, second]:.2f}  {minilm.sentences()[first]!r} ~ {minilm.sentences()[second]!r}")


def _milliseconds(session: Any, inputs: dict[str, NDArray[Any]]) -> float:
    (timing,) = timed([partial(session.run, None, inputs)], 1, 10)
    return timing.p50 / 1e3


if __name__ == "__main__":
    main()
