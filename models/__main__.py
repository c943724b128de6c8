"""`python -m models NAME OUT.onnx` builds a sample model, `python -m models export NAME OUT.onnx` exports it."""

import time
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import click

import models
from models.network import DTYPES, Form
from onnxfuse.files import io
from onnxfuse.support.errors import OnnxfuseError

Writer = Callable[..., None]


def build(name: str, out: Path, **options: Any) -> None:
    """Build without torch."""
    io.save(models.build(name, **options), out)


def export(name: str, out: Path, **options: Any) -> None:
    """Export with torch.onnx."""
    from models.export import export

    export(name, out, **options)


def _run(writer: Writer, name: str, out: Path, **options: object) -> None:
    started = time.perf_counter()
    try:
        writer(name, out, **options)
    except OnnxfuseError as error:
        click.echo(f"Error: {error}" + (f"\n{error.hint}" if error.hint else ""), err=True)
        raise SystemExit(error.exit_code) from None
    files = (out, out.with_name(f"{out.name}.data"))  # torch.export's weights are in the second
    size = sum(file.stat().st_size for file in files if file.exists())
    click.echo(f"{out}: {name}, {size / 1e6:.1f} MB in {time.perf_counter() - started:.1f} s")


def _command(name: str, writer: Writer, more: list[click.Parameter]) -> click.Command:
    """Return the command that writes the model `name`; its sizes are the fields of the architecture."""
    published = models.ARCHITECTURES[name]
    sizes = [(field.name, getattr(published, field.name)) for field in fields(published)]
    return click.Command(
        name,
        callback=partial(_run, writer, name),
        help=published.__doc__,
        short_help=(published.__doc__ or "").partition(":")[0],
        params=[
            click.Argument(["out"], type=click.Path(dir_okay=False, path_type=Path)),
            click.Option(["--dtype"], type=click.Choice(DTYPES), default=Form.dtype, show_default=True),
            click.Option(
                ["--batch"], type=_dimension, metavar="N", default=Form.batch, help="A number; open when left out."
            ),
            click.Option(
                ["--sequence"],
                type=_dimension,
                metavar="N",
                default=Form.sequence,
                help="Tokens of a text; open when left out.",
            ),
            click.Option(["--seed"], type=int, default=0, show_default=True, help="What the weights are drawn from."),
            *more,
            *(_size_option(size, default) for size, default in sizes),
        ],
    )


def _dimension(text: str) -> int | str:
    """Return a number, or the name of a dimension that stays open."""
    return int(text) if text.lstrip("-").isdigit() else text


def _size_option(name: str, default: object) -> click.Option:
    if isinstance(default, bool):
        return click.Option([f"--{name}"], is_flag=True, default=default)
    if isinstance(default, tuple):
        return click.Option([f"--{name}"], type=int, nargs=len(default), default=default, show_default=True)
    return click.Option([f"--{name}"], type=int, default=default, show_default=True)


def _show_list(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    for name, published in models.ARCHITECTURES.items():
        click.echo(f"{name:10} {published.__doc__}")
    ctx.exit()


main = click.Group(
    "models",
    help=__doc__,
    params=[click.Option(["--list"], is_flag=True, is_eager=True, expose_value=False, callback=_show_list)],
)
exports = click.Group("export", help="Export with torch.onnx instead of building.")
main.add_command(exports)
for _name in models.ARCHITECTURES:
    _opset = click.Option(["--opset"], type=int, default=Form.opset, show_default=True)
    main.add_command(_command(_name, build, [_opset]))
    _opset = click.Option(["--opset"], type=int, help="17 when left out, 18 with --dynamo.")
    _dynamo = click.Option(["--dynamo"], is_flag=True, help="Export with torch.export instead of tracing.")
    exports.add_command(_command(_name, export, [_opset, _dynamo]))

if __name__ == "__main__":
    main(prog_name="python -m models")
