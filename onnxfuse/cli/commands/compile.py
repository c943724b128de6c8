"""`onnxfuse compile`: write the launch programs and compiled kernels of a model, for ranges of shapes, to one file."""

from pathlib import Path

import click
from rich.markup import escape

from onnxfuse.api.deploy.compiling import compile, trust
from onnxfuse.api.request.options import Compiling
from onnxfuse.cli.base.console import output, print_json, printing, working
from onnxfuse.cli.base.parameters import JSON_OPTION, RANGE_OPTION, Shapes, arch_option, ranges, rules_option
from onnxfuse.cli.screens.pack_coverage import show
from onnxfuse.files.atomic_write import together
from onnxfuse.support.errors import UsageError


@click.command("compile")
@click.argument("model", metavar="MODEL.onnx", type=click.Path(path_type=Path))
@arch_option()
@RANGE_OPTION
@click.option("--ptx/--no-ptx", default=None, help="Include PTX for later GPUs; default if no GPU is present or named.")
@click.option("-o", "--output", "target", metavar="FILE", type=click.Path(path_type=Path), help="Output file.")
@click.option(
    "--trust-pack",
    is_flag=True,
    help="Let sessions use the pack next to MODEL.onnx, compiled elsewhere by "
    "somebody you trust to run code here. Compiles nothing.",
)
@rules_option("Folder of custom rules that made the model; may be repeated.")
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
    """Write MODEL.onnx.kernels, with which sessions of MODEL.onnx need not plan or compile for shapes in its ranges.

    MODEL.onnx is an output of `onnxfuse optimize`. Needs no GPU.
    """
    if trust_pack:
        if archs or shapes or target is not None or ptx is not None:
            raise UsageError("--trust-pack compiles nothing: it goes with no --arch, --shape, --ptx and -o")
        pack_path = trust(model)
        if as_json:
            print_json("compile", {"ok": True, "trusted": str(pack_path)})
        else:
            output().print(f"[bold green]trusted:[/] {escape(str(pack_path))}, as it is now", soft_wrap=True)
        return 0
    options = Compiling(archs, ranges(shapes), ptx, folders)
    with printing() as print_result, together():
        with working("load") as progress:

            def step(what: str, done: int, of: int) -> None:
                progress(f"{what} {done} of {of}" if of else what)

            pack = compile(model, options, target, step)
        facts = pack.as_dict()
        print_result(lambda: print_json("compile", facts) if as_json else show(facts, output()))
    return 0
