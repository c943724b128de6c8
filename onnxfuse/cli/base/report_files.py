"""Report files (`--report`, `--junit`, `--markdown`), and GitHub annotations in a workflow.

A command whose options include them gets the argument `outputs`, and `outputs.write(...)` writes all of them.
"""

import dataclasses
import os
import platform
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from onnxfuse.cli.base.console import with_callers_names
from onnxfuse.files import io
from onnxfuse.files.atomic_write import add, same_file, writable
from onnxfuse.files.model_source import Source, loaded
from onnxfuse.options.schema import fields
from onnxfuse.support.errors import ModelError, OnnxfuseError, UsageError
from onnxfuse.support.plurals import agreeing, plural

Models = Mapping[str, Source]
"""The models of a command by side: `before`, `after`."""


@dataclass(frozen=True)
class Outputs:
    """The report files requested by a call."""

    report: Path | None = None
    junit: Path | None = None
    markdown: Path | None = None
    sarif: Path | None = None
    badge: Path | None = None

    def write(
        self,
        command: str,
        facts: Mapping[str, Any],
        models: Models | None = None,
        by_model: Mapping[str, Models] | None = None,
    ) -> None:
        """Write the requested files; `facts` is the command's `--json` output.

        `models` are drawn in the HTML report, those of `by_model` under the names that `ci` gives them. In a
        GitHub workflow each failed check becomes an annotation in the log, on standard error. Raises ModelError if a
        file cannot be written.
        """
        from onnxfuse import reporting

        checks = reporting.checks(command, facts)
        if os.environ.get("GITHUB_ACTIONS") == "true":
            for line in reporting.annotations(checks):
                click.echo(line, err=True)
        if self.junit is not None:
            io.write_text(self.junit, reporting.junit(checks))
        if self.report is not None:
            from onnxfuse.viewing.times import times_of
            from onnxfuse.viewing.view_page import drawn as graph_of

            sides = by_model if by_model is not None else {"": models or {}}
            profiled = command == "profile"
            times = times_of(facts) if profiled and facts["before"]["nodes"] else None
            sizes = facts["shapes"] if profiled else None
            graphs = {
                name: {side: graph_of(loaded(m, weights=False), side, sizes, times) for side, m in ms.items()}
                for name, ms in sides.items()
            }
            graphs_by_name = {name: sides for name, sides in graphs.items() if sides}
            io.write_text(self.report, reporting.page(command, facts, graphs_by_name, command_line(), environment()))
        if self.sarif is not None:
            io.write_text(self.sarif, reporting.sarif(checks, environment()["onnxfuse"]))
        if self.badge is not None:
            io.write_text(self.badge, reporting.badge("onnxfuse", _held(facts), ok=bool(facts["ok"])))
        if self.markdown is not None:
            add(self.markdown, reporting.markdown(command, facts).encode())

    def check(self) -> None:
        """Raise UsageError for a file that cannot be written, before the work starts."""
        for target in vars(self).values():
            if target is not None:
                try:
                    writable(target)
                except ModelError as error:  # a wrong call, not a wrong model
                    raise UsageError(f"{error}", error.hint) from None


def with_reports(run: Callable[..., int], group: type, given: Mapping[str, Any]) -> int:
    """Run a command that takes its report files as the argument `outputs`; its failure goes into them, too."""
    named = dict(given)
    outputs = Outputs(**{one.name: named.pop(one.name) for one in dataclasses.fields(Outputs) if one.name in named})
    outputs.check()
    _check_distinct(group, given)
    try:
        return run(outputs=outputs, **named)
    except OnnxfuseError as error:
        # Failures also go into the reports, where a pipeline looks for results.
        name = click.get_current_context().info_name or ""
        facts = {
            "ok": False,
            "exit_code": error.exit_code,
            "error": with_callers_names(f"{error}"),
            "hint": with_callers_names(error.hint),
        }
        replace(outputs, report=None).write(name, facts)
        raise


def _held(facts: Mapping[str, Any]) -> str:
    """Return how many models pass, for a badge."""
    models = facts.get("models")
    if models is None:
        return "error"
    good = sum(model["ok"] for model in models)
    return f"{good} of {plural(models, 'model')} {agreeing(good, 'passes', 'pass', of=models)}"


def _check_distinct(group: type, given: Mapping[str, Any]) -> None:
    """Raise UsageError if an output file is also an input or another output, which would be lost.

    Devices and pipes may be repeated.
    """
    named = [
        (name, path)
        for name, value in given.items()
        for path in (value if isinstance(value, tuple) else (value,))
        if isinstance(path, Path) and (os.path.isfile(path) or os.path.isdir(path) or not os.path.exists(path))
    ]
    options = fields(group)
    for name, path in named:
        written = name in options and options[name].option.writes
        if written and any(other != name and same_file(path, other_path) for other, other_path in named):
            raise UsageError(
                f"{options[name].spelled} {path}: is named twice, and would be overwritten", "Give another name."
            )


def command_line() -> str:
    """Return the command line as a user would type it."""
    return shlex.join(["onnxfuse", *sys.argv[1:]])


def environment() -> dict[str, str]:
    """Return the versions that a report's figures depend on."""
    names = ("onnxfuse", "onnx", "onnxruntime-gpu", "cupy-cuda13x", "numpy")
    return {
        **{name: _version(name) for name in names},
        "Python": platform.python_version(),
        "system": platform.platform(),
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # also runs while an error is reported, on a possibly broken installation
        return "not installed"
