"""`onnxfuse doctor`: report what is installed, what works, what is missing, and the command that fixes it."""

from typing import Unpack

from rich.markup import escape

from onnxfuse.api.deploy.doctor import Diagnosis, doctor
from onnxfuse.cli.base.console import output, plain_table, print_json, working
from onnxfuse.options.commands import DoctorCommand
from onnxfuse.support.errors import DeviceError


def command(**given: Unpack[DoctorCommand]) -> int:
    """Run the command and print its result."""
    with working("look"):
        diagnosis = doctor(given["provider"])
    if given["as_json"]:
        print_json("doctor", diagnosis.as_dict())
    else:
        _print(diagnosis)
    return DeviceError.exit_code if diagnosis.broken else 0


def _print(diagnosis: Diagnosis) -> None:
    console = output()
    if diagnosis.broken:
        console.print(f"[bold red]{len(diagnosis.broken)} to fix:[/] {', '.join(f.what for f in diagnosis.broken)}")
    else:
        summary = "fused ops run as CUDA kernels" if diagnosis.cuda else "models run on the CPU, through the bodies"
        console.print(f"[bold green]ok:[/] {summary}")
    table = plain_table("", "what", "fact")
    colors = {"ok": "green", "absent": "dim", "broken": "bold red"}
    for f in diagnosis.findings:
        mend = f"\n-> {f.mend}" if f.mend else ""
        table.add_row(f"[{colors[f.verdict]}]{f.verdict}[/]", f.what, escape(f.fact + mend))
    console.print(table)
