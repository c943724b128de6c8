"""`onnxfuse doctor`: report what is installed, what works, what is missing, and the command that fixes it."""

from typing import Literal

import click
from rich.markup import escape
from rich.table import Table

from onnxfuse.api.deploy.doctor import Diagnosis, doctor
from onnxfuse.cli.base.console import output, print_json, working
from onnxfuse.cli.base.parameters import JSON_OPTION
from onnxfuse.support.errors import DeviceError


@click.command("doctor")
@click.option(
    "--provider",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Required provider; auto requires CUDA if there is an NVIDIA driver.",
)
@JSON_OPTION
def command(provider: Literal["auto", "cpu", "cuda"], as_json: bool) -> int:
    """Report what is installed, what works and what is missing, with the command that fixes it.

    Exits 5 if something that should work here does not: a required package, or CUDA if there is a driver for it
    (--provider cuda: always, --provider cpu: never).
    """
    with working("look"):
        found = doctor(provider)
    if as_json:
        print_json("doctor", found.as_dict())
    else:
        _print(found)
    return DeviceError.exit_code if found.broken else 0


def _print(found: Diagnosis) -> None:
    console = output()
    if found.broken:
        console.print(f"[bold red]{len(found.broken)} to mend:[/] {', '.join(f.what for f in found.broken)}")
    else:
        how = "fused ops run as CUDA kernels" if found.cuda else "models run on the CPU, through the bodies"
        console.print(f"[bold green]ok:[/] {how}")
    table = Table("", "what", "fact", box=None, pad_edge=False, header_style="bold")
    colors = {"ok": "green", "absent": "dim", "broken": "bold red"}
    for f in found.findings:
        mend = f"\n-> {f.mend}" if f.mend else ""
        table.add_row(f"[{colors[f.verdict]}]{f.verdict}[/]", f.what, escape(f.fact + mend))
    console.print(table)
