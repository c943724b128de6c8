"""`onnxfuse compile`: write the launch programs and compiled kernels of a model, for ranges of shapes, to one file."""

from typing import Unpack

from rich.markup import escape

from onnxfuse.cli.base.console import print_result, printing, working
from onnxfuse.cli.base.parameters import ranges
from onnxfuse.deploy.compiling import Compiling, compile, trust
from onnxfuse.files.atomic_write import together
from onnxfuse.options.commands import CompileCommand
from onnxfuse.support.progress import counting
from onnxfuse.support.screen import Line


def command(**given: Unpack[CompileCommand]) -> int:
    """Run the command and print its result."""
    model = given["model"]
    if given["trust_pack"]:
        pack_path = trust(model)
        trusted = Line(f"[bold green]trusted:[/] {escape(str(pack_path))}, as it is now")
        print_result("compile", {"ok": True, "trusted": str(pack_path)}, [trusted], as_json=given["as_json"])
        return 0
    options = Compiling.of({**given, "shapes": ranges(given["shapes"])})
    with printing() as tell, together():
        with working("load") as progress:
            pack = compile(model, options, given["target"], counting(progress))
        tell(lambda: print_result("compile", pack.as_dict(), pack.screen(), as_json=given["as_json"]))
    return 0
