"""`onnxfuse init`: write a first onnxfuse.toml from the models in a folder."""

from typing import Unpack

from rich.markup import escape

from onnxfuse.api.run.first_config import NAME, first_config
from onnxfuse.cli.base.console import print_result, working
from onnxfuse.files import io
from onnxfuse.options.commands import InitCommand
from onnxfuse.support.errors import UsageError
from onnxfuse.support.plurals import plural
from onnxfuse.support.screen import Blocks, Line, advice


def command(**given: Unpack[InitCommand]) -> int:
    """Run the command and print its result."""
    target = given["folder"] / NAME
    if target.exists() and not given["force"]:
        raise UsageError(f"{target}: already exists", "Use --force to replace it.")
    with working("read"):
        found = first_config(given["folder"])
    io.write_text(target, found.text)
    models = [str(path) for path in found.models]
    facts = {"ok": True, "config": str(target), "models": models, "left_out": found.left_out}
    print_result("init", facts, _screen(facts, found.left_out), as_json=given["as_json"])
    return 0


def _screen(facts: dict[str, object], left_out: dict[str, str]) -> Blocks:
    """Yield what was written, what was left out, and what comes next."""
    models = facts["models"]
    assert isinstance(models, list)
    yield Line(f"[bold green]{escape(str(facts['config']))}[/] written: {plural(models, 'model')}")
    for path in models:
        yield Line(f"  {escape(path)}")
    for path, reason in left_out.items():
        yield Line(f"left out: {escape(path)}: {escape(reason)}", "dim")
    yield advice("next: onnxfuse ci --update, which optimizes and verifies them and writes the lock file")
