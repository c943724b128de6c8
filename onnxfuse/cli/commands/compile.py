"""`onnxfuse compile`: write the launch programs and compiled kernels of a model, for ranges of shapes, to one file."""

from typing import Unpack

from rich.markup import escape

from onnxfuse.api.deploy.compiling import compile, trust
from onnxfuse.api.request.options import Compiling
from onnxfuse.cli.base.console import output, print_json, printing, working
from onnxfuse.cli.base.parameters import ranges
from onnxfuse.cli.screens.pack_coverage import show
from onnxfuse.files.atomic_write import together
from onnxfuse.options.commands import CompileCommand


def command(**given: Unpack[CompileCommand]) -> int:
    """Run the command and print its result."""
    model = given["model"]
    if given["trust_pack"]:
        pack_path = trust(model)
        if given["as_json"]:
            print_json("compile", {"ok": True, "trusted": str(pack_path)})
        else:
            output().print(f"[bold green]trusted:[/] {escape(str(pack_path))}, as it is now", soft_wrap=True)
        return 0
    options = Compiling.of({**given, "shapes": ranges(given["shapes"])})
    with printing() as print_result, together():
        with working("load") as progress:

            def step(what: str, done: int, of: int) -> None:
                progress(f"{what} {done} of {of}" if of else what)

            pack = compile(model, options, given["target"], step)
        facts = pack.as_dict()
        print_result(lambda: print_json("compile", facts) if given["as_json"] else show(facts, output()))
    return 0
