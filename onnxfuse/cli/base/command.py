"""Commands, made of the schema of options: parse, check, and call the function that the command's module holds."""

import importlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import click

from onnxfuse.api.request.settings import settings
from onnxfuse.cli.base.console import VERBOSITY
from onnxfuse.cli.base.parameters import GroupedOption, parameters
from onnxfuse.options import schema, toml
from onnxfuse.options.commands import GROUPS, CiCommand
from onnxfuse.options.schema import EVERYWHERE, GENERAL

KEYS: Mapping[type, Callable[[], Mapping[str, list[tuple[str, str]]]]] = {CiCommand: toml.explained}
"""Commands that read a file of settings, with what its keys mean, below the headings of its tables."""


class SchemaCommand(click.Command):
    """A command; its module is imported when it runs, not for its help or completion."""

    def __init__(self, name: str) -> None:
        group = GROUPS[name]
        text = inspect.cleandoc(group.__doc__ or "")
        self.options = group
        # What follows COMMAND in `onnxfuse config COMMAND ...` is that command's own.
        rest = any(argument.kind == "rest" for argument in schema.arguments(group).values())
        settings = {"ignore_unknown_options": True, "allow_interspersed_args": False} if rest else {}
        super().__init__(
            name, callback=self._call, params=parameters(group), help=text, context_settings=settings
        )  # fmt: skip

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options below the headings of their groups: a command's own first, those of every command last."""
        sections: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for parameter in self.get_params(ctx):
            record = None if isinstance(parameter, click.Argument) else parameter.get_help_record(ctx)
            if record is not None:
                sections[parameter.group if isinstance(parameter, GroupedOption) else GENERAL].append(record)
        own, everywhere = sections.pop(GENERAL, []), sections.pop(EVERYWHERE, [])
        if own and own[-1][0].endswith("--help"):
            everywhere.append(own.pop())
        keys = KEYS.get(self.options, dict)()
        for title, records in (("Options", own), *sections.items(), *keys.items(), (EVERYWHERE, everywhere)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)

    def _call(self, **given: Any) -> int:
        """Run the command; what it reports goes into the report files, too."""
        click.get_current_context().meta[VERBOSITY] = -1 if given["quiet"] else int(given["verbose"])
        if "report" in given:
            from onnxfuse.cli.base.report_files import with_reports

            return with_reports(self._run, self.options, given)
        return self._run(**given)

    def _run(self, **given: Any) -> int:
        """Check the call's options against each other, and run the command."""
        context = click.get_current_context()
        schema.check_together(self.options, given, lambda one: one.spelled)
        chosen = {name: given[name] for name in ("follow_links", "custom_ops") if name in given}
        context.with_resource(settings(**chosen))
        run: Callable[..., int] = importlib.import_module(
            f"onnxfuse.cli.commands.{str(self.name).replace('-', '_')}"
        ).command
        return run(**given)
