"""`onnxfuse compile`: the launch programs and compiled kernels of a model, for ranges of shapes, in one file."""

from pathlib import Path

import click

from onnxfuse.api.compiling import compile
from onnxfuse.api.options import Compiling
from onnxfuse.cli.compiled import show
from onnxfuse.cli.console import output, print_json, working
from onnxfuse.cli.parameters import JSON_OPTION, RANGE_OPTION, Shapes, arch_option, ranges, rules_option


@click.command("compile")
@click.argument("model", metavar="MODEL.onnx", type=click.Path(path_type=Path))
@arch_option()
@RANGE_OPTION
@click.option(
    "--ptx/--no-ptx", default=None, help="Kernels for later GPUs, too; default where no GPU is here or named."
)
@click.option("-o", "--output", "target", metavar="FILE", type=click.Path(path_type=Path), help="Write it there.")
@rules_option("Rules that made the model, beside the shipped ones.")
@JSON_OPTION
def command(
    model: Path,
    archs: tuple[str, ...],
    shapes: Shapes,
    ptx: bool | None,
    target: Path | None,
    folders: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Write MODEL.onnx.kernels: sessions of MODEL.onnx find it, and plan and compile nothing for shapes in its ranges.

    MODEL.onnx is one that `onnxfuse optimize` made. Needs no GPU.
    """
    asked = Compiling(archs, ranges(shapes), ptx, folders)
    with working("load") as progress:

        def step(what: str, done: int, of: int) -> None:
            progress(f"{what} {done} of {of}" if of else what)

        made = compile(model, asked, target, step)
    if as_json:
        print_json("compile", made.as_dict())
    else:
        show(made.as_dict(), output())
    return 0
