"""`--report`, `--junit`, `--markdown`: what a command found, as files; and GitHub's annotations when run there.

Use: the decorator `@output_options` gives a command the argument `outputs`, and `outputs.write(...)` writes them all.
"""

import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import click
import onnx

from onnxfuse.api.request.files import writable
from onnxfuse.cli.base.console import as_called
from onnxfuse.files import io
from onnxfuse.files.atomic_write import add, same_file
from onnxfuse.support.errors import OnnxfuseError, UsageError

Models = Mapping[str, "onnx.ModelProto | Path | str"]
"""The models of a command by side: `before`, `after`."""

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Outputs:
    """The files that one call asked for."""

    report: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None

    def write(
        self,
        command: str,
        facts: Mapping[str, Any],
        models: Models | None = None,
        more: Mapping[str, Models] | None = None,
    ) -> None:
        """Write the files that were asked for; `facts` is what `--json` prints of the command.

        `models` are drawn in the HTML report, those of `more` under the names that `ci` gives them. On GitHub's
        machines each broken promise becomes an annotation in the log, on standard error. Raises ModelError where a
        file cannot be written.
        """
        from onnxfuse import reporting

        found = reporting.checks(command, facts)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in reporting.annotations(found):
                click.echo(line, err=True)
        if self.junit is not None:
            io.write_text(self.junit, reporting.junit(found))
        if self.report is not None:
            from onnxfuse.viewing.showing import drawn as graph_of
            from onnxfuse.viewing.times import times_of

            sides = more if more is not None else {"": models or {}}
            profiled = command == "profile"
            times = times_of(facts) if profiled and facts["before"]["nodes"] else None
            sizes = facts["shapes"] if profiled else None
            graphs = {
                name: {side: graph_of(_light(m), side, sizes, times) for side, m in ms.items()}
                for name, ms in sides.items()
            }
            drawn = {name: sides for name, sides in graphs.items() if sides}
            io.write_text(self.report, reporting.page(command, facts, drawn, command_line(), environment()))
        if self.markdown is not None:
            add(self.markdown, reporting.markdown(command, facts).encode())

    def check(self) -> None:
        """Complain about a file that cannot be written before the work starts, not after it."""
        for target in (self.report, self.junit, self.markdown):
            if target is not None:
                writable(target)


def output_options(command: Command) -> Command:
    """Give a click command the three options, as one argument `outputs`."""

    @click.option(
        "--report", metavar="FILE.html", type=click.Path(path_type=Path), help="Write a report as one HTML page."
    )
    @click.option("--junit", metavar="FILE.xml", type=click.Path(path_type=Path), help="Write each check as JUnit XML.")
    @click.option(
        "--markdown",
        metavar="FILE.md",
        type=click.Path(path_type=Path),
        help='Add the report to FILE.md, for instance "$GITHUB_STEP_SUMMARY".',
    )
    @wraps(command)
    def with_outputs(
        *arguments: Any, report: Path | None, junit: Path | None, markdown: Path | None, **options: Any
    ) -> Any:
        outputs = Outputs(report, junit, markdown)
        outputs.check()
        _check_apart(options | {"report": report, "junit": junit, "markdown": markdown})
        try:
            return command(*arguments, outputs=outputs, **options)
        except OnnxfuseError as error:
            # A pipeline reads why it failed where it reads everything else.
            name = click.get_current_context().info_name or ""
            facts = {
                "ok": False,
                "exit_code": error.exit_code,
                "error": as_called(f"{error}"),
                "hint": as_called(error.hint),
            }
            replace(outputs, report=None).write(name, facts)
            raise

    return with_outputs  # type: ignore[return-value]  # click sees the options that were added, the caller one argument


WRITTEN = ("report", "junit", "markdown", "plot", "trace", "save_inputs", "tuning_file", "dump", "bisect")
"""Options that name what is written beside a model."""


def _check_apart(options: Mapping[str, Any]) -> None:
    """Raise UsageError where a file that is to be written is one that is read, or written, too: it would be gone.

    Devices and pipes take any number.
    """
    named = [
        (name, path)
        for name, given in options.items()
        for path in (given if isinstance(given, tuple) else (given,))
        if isinstance(path, Path) and (os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path))
    ]
    for name, path in named:
        if name in WRITTEN and any(other != name and same_file(path, beside) for other, beside in named):
            option = f"--{name.removesuffix('_file').replace('_', '-')}"
            raise UsageError(f"{option} {path}: is named twice, and would be overwritten", "Give another name.")


def command_line() -> str:
    """Return the call as a person would type it."""
    return shlex.join(["onnxfuse", *sys.argv[1:]])


def environment() -> dict[str, str]:
    """Return the versions that a report's figures stand on."""
    names = ("onnxfuse", "onnx", "onnxruntime-gpu", "cupy-cuda13x", "numpy")
    return {
        **{name: _version(name) for name in names},
        "Python": platform.python_version(),
        "system": platform.platform(),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # this is also what tells of a fault, which an installation like that may have
        return "not installed"


def _light(model: "onnx.ModelProto | Path | str") -> onnx.ModelProto:
    return model if isinstance(model, onnx.ModelProto) else io.load(model, weights=False)
