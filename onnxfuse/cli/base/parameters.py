"""Options that several commands have, and how their texts are read."""

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
from onnxfuse.cli.base.console import call_stdin
from onnxfuse.files.io import data_files
from onnxfuse.model.precision_record import PRECISIONS
from onnxfuse.support.errors import ModelError, UsageError

Command = TypeVar("Command", bound=Callable[..., Any])

Shapes = tuple[tuple[str, Sequence[int]], ...]
"""What `--shape` gives: each name with its sizes."""


STDIN = "stdin.onnx"
"""The name of the file that keeps what came through standard input, in a folder of its own."""

STREAM = "-"
"""In place of a model's name: standard input, or standard output."""


def from_stdin(*, weights: bool = True) -> Path:
    """Return a file with the model that comes through standard input; it goes when the command ends.

    With `weights` it must hold its own. Raises UsageError, ModelError.
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
    call_stdin(file)
    elsewhere = data_files(file) if weights else ()
    if elsewhere:
        raise ModelError(
            f"-: the model's weights are in {elsewhere[0]}, and through standard input the model comes without it",
            "Name the model's file, beside which its data lies, in place of -. A model holds its weights where "
            "onnxfuse optimize IN.onnx OUT.onnx --no-external-data wrote it.",
        )
    return file


def came_through_stdin(file: Path) -> bool:
    """Return whether a model's file is one that `from_stdin` made: its name tells the caller nothing."""
    return file.name == STDIN and file.parent.name.startswith("onnxfuse-")


class ModelFile(click.Path):
    """The path of a model; `-` is what comes through standard input."""

    def __init__(self, *, weights: bool = True) -> None:
        """`weights`: the command reads them, and a stream must bring them."""
        super().__init__(path_type=Path)
        self.weights = weights

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the path of a file."""
        return from_stdin(weights=self.weights) if value == STREAM else super().convert(value, param, ctx)


def rule_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the shipped rules whose names begin so, for the shell's completion."""
    return shipped_names(incomplete)


def optional_rule_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    """Return the shipped optional rules whose names begin so, for the shell's completion."""
    return optional_names(incomplete)


ALSO_OPTION = click.option(
    "--also", metavar="RULE", multiple=True, shell_complete=optional_rule_names,
    help="Apply this optional rule, too: `onnxfuse rules` says which there are; may be repeated.",
)  # fmt: skip
"""Rules that apply only where they are asked for."""


def node_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    """Return the nodes and values of the call's model whose names begin so, for the shell's completion."""
    # An option that still waits for its value ends click's reading: what stood before it is left among the arguments.
    words = (context.params.get("source"), context.params.get("model"), *context.args)
    given = next((word for word in words if word and Path(word).is_file()), None)
    if given is None:
        return []
    from onnxfuse.api.rules.node_lookup import node_names as named  # ONNX is imported where a model is read

    return [name for name in named(Path(given)) if name.startswith(incomplete)][:COMPLETED]


COMPLETED = 200
"""Names of nodes that a shell is given."""


class ToleranceOption(click.ParamType[tuple[str, float]]):
    """`1e-3` for every output, `logits=1e-3` for one, `float16=1e-2` for an element type."""

    name = "[NAME=]NUMBER"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, float]:
        """Return the name, empty for every output, and the number."""
        name, _, number = str(value).rpartition("=")
        try:
            return name, float(number)
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
        least, dots, most = sizes.partition("..")
        if name and dots and least.strip().isdecimal() and most.strip().isdecimal() and int(least) <= int(most):
            return name, range(int(least), int(most) + 1)
        numbers = sizes.replace("x", ",").split(",")
        if not equals or not name or not all(re.fullmatch(r"\s*[0-9]{1,18}\s*", n) for n in numbers):
            self.fail(f"'{value}' is neither DIMENSION=1,7 nor DIMENSION=1..32 nor INPUT=1x3x224x224", param, ctx)
        return name, tuple(int(n) for n in numbers)


def ranges(shapes: Shapes) -> dict[str, tuple[int, int]]:
    """Return the least and the greatest size of each dimension. Raises UsageError for sizes that are no range."""
    for name, sizes in shapes:
        if not isinstance(sizes, range) and len(sizes) != 1:
            told = ",".join(map(str, sizes))
            raise UsageError(f"--shape {name}={told}: kernels are compiled for a range", "Say --shape batch=1..32.")
    return {name: (sizes[0], sizes[-1]) for name, sizes in shapes}


def arch_option(
    text: str = "GPUs to compile for; default the one here, without one sm_80 to sm_120.",
) -> Callable[[Command], Command]:
    """Return the option for architectures, which may be repeated and have commas; the command gets each by itself."""

    def names(_: click.Context, __: click.Parameter, given: Sequence[str]) -> tuple[str, ...]:
        return tuple(name.strip() for names in given for name in names.split(",") if name.strip())

    return click.option("--arch", "archs", metavar="sm_NN[,...]", multiple=True, callback=names, help=text)


RANGE_OPTION = click.option(
    "--shape",
    "--shapes",
    "shapes",
    metavar="NAME=N..M",
    type=ShapeOption(),
    multiple=True,
    help="The range of a dimension, or its number; default 1..32 for the first of an input, 1..512 for others.",
)

TF32_OPTION = click.option(
    "--tf32/--no-tf32",
    "use_tf32",
    default=None,
    help="ONNX Runtime's CUDA option use_tf32, for both models; by default 0 where OUT.onnx was made with "
    "--strict-fp32, else 1.",
)
"""Whether float32 products may be rounded, for every command that opens sessions."""

PROVIDER_OPTION = click.option(
    "--provider",
    "--providers",
    "provider",
    type=click.Choice(list(PROVIDERS)),
    default="auto",
    show_default=True,
    help="Where to run.",
)

SEED_OPTION = click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="Seed of the inputs.")

JSON_OPTION = click.option("--json", "as_json", is_flag=True, help="Print every fact as JSON.")


def custom_ops_option(command: Command) -> Command:
    """Give a command the option for libraries with the user's own operators: its sessions load them."""

    def load(context: click.Context, _: click.Parameter, given: tuple[Path, ...]) -> None:
        if given:
            from onnxfuse.model.custom_ops import using  # ONNX is imported where a model is read

            context.with_resource(using(given))

    return click.option(
        "--custom-ops", metavar="LIB.so", multiple=True, type=click.Path(path_type=Path), expose_value=False,
        callback=load, help="A library with operators of your own, for ONNX Runtime to load; may be repeated.",
    )(command)  # fmt: skip


def shapes_option(text: str) -> Callable[[Command], Command]:
    """Return the option for sizes of dimensions and shapes of inputs, which may be repeated."""
    return click.option(
        "--shapes", "--shape", "shapes", type=ShapeOption(), multiple=True, help=f"{text} May be repeated."
    )


def rules_option(text: str = "More rules.") -> Callable[[Command], Command]:
    """Return the option for folders of rules."""
    return click.option("--rules", "folders", metavar="DIR", multiple=True, type=click.Path(path_type=Path), help=text)


def precision_options(command: Command) -> Command:
    """Give a command the options for lower precision."""
    for option in (
        click.option(
            "--time", "seconds", metavar="S", type=click.FloatRange(min=0, min_open=True),
            help="With --precision: seconds for measuring, and as much for trying; by default 300.",
        ),
        click.option(
            "--keep-fp32", metavar="NODE", multiple=True,
            help="With --precision: leave this node, operator or pattern of names in float32; may be repeated.",
        ),
        click.option(
            "--io-precision", metavar="TYPE", type=click.Choice(["float32", "float16", "bfloat16"]),
            help="With --precision: the type of float32 inputs and outputs; by default they keep theirs.",
        ),
        click.option(
            "--tolerance", metavar="X", type=click.FloatRange(min=0, max=1, min_open=True, max_open=True),
            help="With --precision: the relative RMS error that outputs may have; by default 20 roundings, 0.0098.",
        ),
        click.option(
            "--inputs", metavar="PATH", multiple=True, type=click.Path(path_type=Path),
            help="With --precision and --guard: real inputs to run, by default made-up ones.",
        ),
        click.option(
            "--precision", type=click.Choice(PRECISIONS),
            help="Convert float32 to it where the outputs stay as near the truth as a contract asks; what would leave "
            "it stays float32, by name and reason.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command
