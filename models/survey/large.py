"""A model of more than 2 GB, as torch exports it when nobody asks for more, through the commands of a user.

`python -m models.survey.large FOLDER` exports it, optimizes, opens, runs, verifies and undoes it, each in a process of
its own, and prints what each took. It ends with 1 at the first that fails. 2.2 GB take about three times as much room
on disk.
"""

# mypy: disallow-untyped-calls=False, disallow-subclassing-any=False
# (torch says little of its types)

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from models.survey import DYNAMO, TORCH
from models.survey.files import opened

WIDTH, TOKENS, HEADS = 2048, 16, 16


@dataclass(frozen=True)
class Took:
    """What one command took."""

    step: str
    seconds: float
    gigabytes: float
    """Of memory, at its most."""
    said: str
    """The last line that it printed."""
    code: int


def taken(step: str, command: Sequence[str]) -> Took:
    """Run a command of Python's modules, and return what it took."""
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as words:
        child = subprocess.Popen([sys.executable, "-m", *command], stdout=words, stderr=subprocess.STDOUT)
        _, status, used = os.wait4(child.pid, 0)  # not of all children together, as `resource` has it
        child.returncode = os.waitstatus_to_exitcode(status)
        words.seek(0)
        lines = [line.strip() for line in words if line.strip()]
    seconds, memory = time.perf_counter() - began, used.ru_maxrss * 1024 / 1e9
    return Took(step, round(seconds, 1), round(memory, 2), lines[-1] if lines else "", child.returncode)


def promised(file: Path, folder: Path) -> Iterator[Took]:
    """Take an export through the commands of a user, up to the first that fails; what is written goes to `folder`."""
    fused, undone = folder / "fused.onnx", folder / "undone.onnx"
    for step, command in (
        ("the original runs", ["models.survey.large", "--run", str(file), str(folder)]),
        ("optimize", ["onnxfuse", "optimize", str(file), str(fused)]),
        ("by its path it runs", ["models.survey.large", "--run", str(fused), str(folder)]),
        ("onnxfuse.session runs it", ["models.survey.large", "--kernels", "--run", str(fused), str(folder)]),
        ("verify", ["onnxfuse", "verify", str(file), str(fused)]),
        ("optimize --undo", ["onnxfuse", "optimize", "--undo", str(fused), str(undone)]),
        ("undone it runs", ["models.survey.large", "--run", str(undone), str(folder)]),
    ):
        took = taken(step, command)
        yield took
        if took.code:
            return


def run(file: Path, *, kernels: bool) -> str:
    """Open a file by its path, by ONNX Runtime alone or with kernels, run it once, and return what came out."""
    import numpy as np

    import onnxfuse
    from models.survey import inputs
    from onnxfuse.files import io
    from onnxfuse.runtime import cuda_unusable

    feeds = inputs.feeds(io.outline(file), 0)
    cpu = ["CPUExecutionProvider"]
    providers = cpu if cuda_unusable() else ["CUDAExecutionProvider", *cpu]
    session = onnxfuse.session(file, providers=providers) if kernels else opened(file, providers)
    outs = session.run(None, dict(feeds))
    return (
        "; ".join(f"{np.shape(y)}, {np.abs(y).mean():.6f} in the mean" for y in outs)
        + f" on {session.get_providers()[0]}"
    )


def export(file: Path, gigabytes: float, *, dynamo: bool) -> None:
    """Write transformer blocks of so many bytes of float32 weights: no more is said to the exporter than it needs."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Any:
            split = (*x.shape[:2], HEADS, WIDTH // HEADS)
            q, k, v = (t.reshape(split).transpose(1, 2) for t in self.qkv(self.first(x)).chunk(3, -1))
            y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = x + self.out(y)
            return x + self.down(functional.gelu(self.up(self.second(x))))

    torch.manual_seed(0)
    count = -(-int(gigabytes * 1e9) // (4 * 12 * WIDTH * WIDTH))
    model = nn.Sequential(*(Block() for _ in range(count)), nn.LayerNorm(WIDTH)).eval()
    torch.onnx.export(model, (torch.randn(2, TOKENS, WIDTH),), str(file), dynamo=dynamo)


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--gigabytes", default=2.2, show_default=True, help="Of float32 weights.")
@click.option("--exporter", type=click.Choice(TORCH), default=DYNAMO, show_default=True)
@click.option(
    "--run", "file", type=click.Path(path_type=Path), help="Open this file by its path, run it once, and stop."
)
@click.option("--kernels", is_flag=True, help="With --run: by onnxfuse.session.")
@click.option("--export-only", is_flag=True, help="Write FOLDER/m.onnx, and stop.")
def main(
    folder: Path, gigabytes: float, exporter: str, file: Path | None, kernels: bool, export_only: bool
) -> None:  # fmt: skip
    """Export a model of more than 2 GB into FOLDER, and take it through the commands of a user."""
    if file is not None:
        click.echo(run(file, kernels=kernels))
        return
    folder.mkdir(parents=True, exist_ok=True)
    original = folder / "m.onnx"
    if export_only:
        export(original, gigabytes, dynamo=exporter == DYNAMO)
        return
    words = ["models.survey.large", str(folder), "--export-only", "--gigabytes", str(gigabytes), "--exporter", exporter]
    exported = taken("export", words)
    _tell(exported)
    found = [exported] if exported.code else []
    for took in () if exported.code else promised(original, folder):
        _tell(took)
        found.append(took)
    if found[-1].code:
        raise click.ClickException(f"{found[-1].step}: it ended with {found[-1].code}")
    click.echo(f"right: {sum(f.stat().st_size for f in folder.iterdir()) / 1e9:.1f} GB are in {folder}")


def _tell(took: Took) -> None:
    click.echo(f"{took.step:26} {took.seconds:7.1f} s {took.gigabytes:6.2f} GB   {took.said[:140]}")


if __name__ == "__main__":
    main()
