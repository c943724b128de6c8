"""`onnxfuse compile`: the launch programs and compiled kernels of a model, for ranges of shapes, in one file."""

from pathlib import Path

import click
from rich.markup import escape

from onnxfuse.api.deploy.compiling import compile, trust
from onnxfuse.api.request.options import Compiling
from onnxfuse.cli.base.console import output, print_json, telling, working
from onnxfuse.cli.base.parameters import JSON_OPTION, RANGE_OPTION, Shapes, arch_option, ranges, rules_option
from onnxfuse.cli.screens.pack_coverage import show
from onnxfuse.files.atomic_write import together
from onnxfuse.support.errors import UsageError


@click.command("compile")
@click.argument("model", metavar="MODEL.onnx", type=click.Path(path_type=Path))
@arch_option()
@RANGE_OPTION
@click.option(
    "--ptx/--no-ptx", default=None, help="Kernels for later GPUs, too; default where no GPU is here or named."
)
@click.option("-o", "--output", "target", metavar="FILE", type=click.Path(path_type=Path), help="Write it there.")
@click.option(
    "--trust-pack",
    is_flag=True,
    help="Let sessions take the pack that is beside MODEL.onnx: compiled elsewhere, by "
    "somebody you trust as you trust a program. Compiles nothing.",
)
@rules_option("Rules that made the model, beside the shipped ones.")
@JSON_OPTION
def command(
    model: Path,
    archs: tuple[str, ...],
    shapes: Shapes,
    ptx: bool | None,
    target: Path | None,
    trust_pack: bool,
    folders: tuple[Path, ...],
    as_json: bool,
) -> int:
    """Write MODEL.onnx.kernels: sessions of MODEL.onnx find it, and plan and compile nothing for shapes in its ranges.

    MODEL.onnx is one that `onnxfuse optimize` made. Needs no GPU.
    """
    if trust_pack:
        if archs or shapes or target is not None or ptx is not None:
            raise UsageError("--trust-pack compiles nothing: it goes with no --arch, --shape, --ptx and -o")
        place = trust(model)
        if as_json:
            print_json("compile", {"ok": True, "trusted": str(place)})
        else:
            output().print(f"[bold green]trusted:[/] {escape(str(place))}, as it is now", soft_wrap=True)
        return 0
    asked = Compiling(archs, ranges(shapes), ptx, folders)
    with telling() as told, together():
        with working("load") as progress:

            def step(what: str, done: int, of: int) -> None:
                progress(f"{what} {done} of {of}" if of else what)

            made = compile(model, asked, target, step)
        facts = made.as_dict()
        told(lambda: print_json("compile", facts) if as_json else show(facts, output()))
    return 0
