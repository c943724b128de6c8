"""Options shared by several commands, and their parsers."""

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from onnxfuse.api.request.options import optional_names, shipped_names
from onnxfuse.api.run.running import PROVIDERS
from onnxfuse.cli.base.console import register_stdin
from onnxfuse.files.io import data_files
from onnxfuse.model.precision_record import PRECISIONS
from onnxfuse.support.errors import ModelError, UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

Shapes = tuple[tuple[str, Sequence[int]], ...]
"""Values of `--shape`: each name with its sizes."""


STDIN = "stdin.onnx"
"""Name of the temporary file with the model from standard input, in a folder of its own."""

STREAM = "-"
"""Stands for standard input or output in place of a model's name."""


def from_stdin(*, weights: bool = True) -> Path:
    """Return a temporary file with the model from standard input, deleted when the command ends.

    With `weights` it must contain its own. Raises UsageError, ModelError.
    """
    if sys.stdin.isatty():
        raise UsageError(
            "-: standard input is a terminal, and a model is no text", "Send one: onnxfuse ... - < IN.onnx"
        )
    context = click.get_current_context()
    folder = context.find_root().with_resource(tempfile.TemporaryDirectory(prefix="onnxfuse-"))
    file = Path(folder) / STDIN
    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    register_stdin(file)
    elsewhere = data_files(file) if weights else ()
    if elsewhere:
        raise ModelError(
            f"-: the model's weights are in {elsewhere[0]}, and through standard input the model comes without it",
            "Name the model's file, beside which its data lies, in place of -. A model holds its weights where "
            "onnxfuse optimize IN.onnx OUT.onnx --no-external-data wrote it.",
        )
    return file


def came_through_stdin(file: Path) -> bool:
    """Return whether a model's file was created by `from_stdin`, so that its name means nothing to the caller."""
    return file.name == STDIN and file.parent.name.startswith("onnxfuse-")


class ModelFile(click.Path):
    """Path of a model; `-` is standard input."""

    def __init__(self, *, weights: bool = True) -> None:
        """`weights`: whether the command reads weights, which a stream must then contain."""
        super().__init__(path_type=Path)
        self.weights = weights

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of a file."""
        return from_stdin(weights=self.weights) if value == STREAM else super().convert(value, param, ctx)


def rule_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the shipped rules whose names start with a prefix, for shell completion."""
    return shipped_names(incomplete)


def optional_rule_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the shipped optional rules whose names start with a prefix, for shell completion."""
    return optional_names(incomplete)


ALSO_OPTION = click.option(
    "--also", metavar="RULE", multiple=True, shell_complete=optional_rule_names,
    help="Also apply this optional rule (`onnxfuse rules` lists them); may be repeated.",
)  # fmt: skip
"""Optional rules to apply."""


def node_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the nodes and values of the call's model whose names start with a prefix, for shell completion."""
    # An option without its value stops click's parser: the preceding arguments are then unparsed.
    words = (context.params.get("source"), context.params.get("model"), *context.args)
    path = next((word for word in words if word and Path(word).is_file()), None)
    if path is None:
        return []
    from onnxfuse.api.rules.node_lookup import node_names as named  # ONNX is imported where a model is read

    return [name for name in named(Path(path)) if name.startswith(incomplete)][:COMPLETED]


COMPLETED = 200
"""Largest number of node names offered for completion."""


class ToleranceOption(click.ParamType[tuple[str, float]]):
    """`1e-3` for every output, `logits=1e-3` for one, `float16=1e-2` for an element type."""

    name = "[NAME=]NUMBER"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Return the name, empty for every output, and the number."""
        name, _, tolerance = str(value).rpartition("=")
        try:
            return name, float(tolerance)
        except ValueError:
            self.fail(f"'{value}' is neither a number nor OUTPUT=NUMBER nor TYPE=NUMBER", param, ctx)


class ShapeOption(click.ParamType[tuple[str, Sequence[int]]]):
    """`name=1,7` or `name=1..32` for the values of a dimension, `input=1x3x224x224` for the shape of an input."""

    name = "NAME=SIZES"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, Sequence[int]]:
        """Return the name and the sizes."""
        name, equals, sizes = str(value).rpartition("=")
        low, dots, high = sizes.partition("..")
        if name and dots and low.strip().isdecimal() and high.strip().isdecimal() and int(low) <= int(high):
            return name, range(int(low), int(high) + 1)
        extents = sizes.replace("x", ",").split(",")
        if not equals or not name or not all(re.fullmatch(r"\s*[0-9]{1,18}\s*", n) for n in extents):
            self.fail(f"'{value}' is neither DIMENSION=1,7 nor DIMENSION=1..32 nor INPUT=1x3x224x224", param, ctx)
        return name, tuple(int(n) for n in extents)


def ranges(shapes: Shapes) -> dict[str, tuple[int, int]]:
    """Return the least and the greatest size of each dimension. Raises UsageError for sizes that are not a range."""
    for name, sizes in shapes:
        if not isinstance(sizes, range) and len(sizes) != 1:
            text = ",".join(map(str, sizes))
            raise UsageError(f"--shape {name}={text}: kernels are compiled for a range", "Say --shape batch=1..32.")
    return {name: (sizes[0], sizes[-1]) for name, sizes in shapes}


def arch_option(
    text: str = "Target GPU architectures; default that of this machine's GPU, else sm_80 to sm_120.",
) -> Callable[[Command], Command]:
    """Return the option for architectures, repeatable and comma-separated; the command receives them one by one."""

    def names(_: click.Context, __: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
        return tuple(name.strip() for names in values for name in names.split(",") if name.strip())

    return click.option("--arch", "archs", metavar="sm_NN[,...]", multiple=True, callback=names, help=text)


RANGE_OPTION = click.option(
    "--shape",
    "--shapes",
    "shapes",
    metavar="NAME=N..M",
    type=ShapeOption(),
    multiple=True,
    help="Range or size of a dimension; default 1..32 for the first one of an input, 1..512 for others.",
)

TF32_OPTION = click.option(
    "--tf32/--no-tf32",
    "use_tf32",
    default=None,
    help="ONNX Runtime's CUDA option use_tf32, for both models; default 0 if OUT.onnx was made with "
    "--strict-fp32, else 1.",
)
"""Whether float32 products may be rounded to TF32, for every command that opens sessions."""

PROVIDER_OPTION = click.option(
    "--provider",
    "--providers",
    "provider",
    type=click.Choice(list(PROVIDERS)),
    default="auto",
    show_default=True,
    help="Execution provider.",
)

SEED_OPTION = click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="Seed of the inputs.")

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print every fact as JSON.")


def custom_ops_option(command: Command) -> Command:
    """Add to a command the option for custom operator libraries, which its sessions load."""

    def load(context: click.Context, _: click.Parameter, libraries: tuple[Path, ...]) -> None:
        if libraries:
            from onnxfuse.model.custom_ops import using  # ONNX is imported where a model is read

            context.with_resource(using(libraries))

    return click.option(
        "--custom-ops", metavar="LIB.so", multiple=True, type=click.Path(path_type=Path), expose_value=False,
        callback=load, help="Library of custom operators for ONNX Runtime to load; may be repeated.",
    )(command)  # fmt: skip


def shapes_option(text: str) -> Callable[[Command], Command]:
    """Return the repeatable option for sizes of dimensions and shapes of inputs."""
    return click.option(
        "--shapes", "--shape", "shapes", type=ShapeOption(), multiple=True, help=f"{text} May be repeated."
    )


def rules_option(text: str = "Folder of additional rules; may be repeated.") -> Callable[[Command], Command]:
    """Return the option for folders of rules."""
    return click.option("--rules", "folders", metavar="DIR", multiple=True, type=click.Path(path_type=Path), help=text)


def precision_options(command: Command) -> Command:
    """Add to a command the options for lower precision."""
    for option in (
        click.option(
            "--time", "seconds", metavar="S", type=click.FloatRange(min=0, min_open=True),
            help="With --precision: seconds for measuring, and again for trials; default 300.",
        ),
        click.option(
            "--keep-fp32", metavar="NODE", multiple=True,
            help="With --precision: pin this node, operator or name pattern to float32; may be repeated.",
        ),
        click.option(
            "--io-precision", metavar="TYPE", type=click.Choice(["float32", "float16", "bfloat16"]),
            help="With --precision: new type of float32 inputs and outputs; unchanged by default.",
        ),
        click.option(
            "--tolerance", metavar="X", type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
            help="With --precision: allowed relative RMS error of outputs; default 20 unit roundoffs (0.0098).",
        ),
        click.option(
            "--inputs", metavar="PATH", multiple=True, type=click.Path(path_type=Path),
            help="With --precision and --guard: real inputs; generated ones by default.",
        ),
        click.option(
            "--precision", type=click.Choice(PRECISIONS),
            help="Convert float32 to this type within the accuracy contract of the outputs; nodes that would break "
            "it stay float32, and are listed with the reason.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command
