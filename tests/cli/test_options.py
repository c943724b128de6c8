"""The schema of options: whole, consistent, and the same for Python, the command line and onnxfuse.toml."""

import importlib
import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Unpack, get_args

import click
import jsonschema
import numpy as np
import pytest

import onnxfuse
from onnxfuse._public import public, say_in_python
from onnxfuse.cli.base.command import SchemaCommand
from onnxfuse.cli.base.parameters import parameters
from onnxfuse.contract.config import read
from onnxfuse.model.precision_record import TYPES
from onnxfuse.options import COMMANDS, functions, groups, schema, toml
from onnxfuse.options.commands import GROUPS
from onnxfuse.options.kinds import OptionalFactor
from onnxfuse.options.schema import Option
from onnxfuse.options.types import Limits, convert
from tests.cli.conftest import Command
from tests.cli.test_ci import CONFIG

FUNCTIONS = [g for g in vars(functions).values() if isinstance(g, type) and hasattr(g, "__total__")]
ALL = [*GROUPS.values(), *FUNCTIONS]
FILLED = Annotated[tuple[int, ...], Limits(items=1)]
# Each a form of its own to mypy, and none a type that a value could have.
COUNT: Any = Annotated[int, Limits(least=0)]
RELATION: Any = Annotated[str, Limits(pattern=toml.RELATION)]
COUNTS: Any = tuple[Annotated[int, Limits(least=0)], ...]
PAIR: Any = tuple[Annotated[int, Limits(least=0)], Annotated[int, Limits(least=0)]]


@pytest.mark.parametrize("group", ALL, ids=lambda g: g.__name__)
def test_a_declaration_names_options_that_exist(group: type) -> None:
    """A misspelt name in `needs` would never be missed; help names others as its reader spells them."""
    options = schema.fields(group)
    everywhere = {name for one in ALL for name in schema.fields(one)}
    for name, one in options.items():
        assert {*one.option.needs, *one.option.excludes} <= everywhere, name
        for python in (True, False):
            text = schema.help_text(one, group, python=python)
            assert not re.search(r"\{\w+\}", text)
            assert text.endswith(".") or not (python or one.option.flag)
            # A flag that turns something off says what it does, and not what is done without it.
            assert not text.startswith("Without it"), name
        assert set(re.findall(r"\{(\w+)\}", one.option.help)) <= everywhere


class Extended(groups.Optimizing, total=False):
    """The options of `optimize`, and a new one: the recipe of docs/dev/ADDING.md, carried out."""

    margin: Annotated[OptionalFactor, Option(None, "Margin of {guard}.", "--margin", "X", needs=("guard",), toml=True)]


def test_a_new_option_is_its_declaration() -> None:
    """The keyword with its check and its line of the docstring, the flag with its help, the key of onnxfuse.toml."""

    @public(Extended)
    def make(model: str, **given: Unpack[Extended]) -> float | None:
        """Return the margin."""
        return given["margin"]

    assert make("m.onnx", margin=2, guard=True) == 2.0
    assert inspect.signature(make).parameters["margin"].default is None
    assert "- `margin`: Margin of `guard`." in str(make.__doc__)
    with pytest.raises(onnxfuse.UsageError, match=r"^margin is -1 \(int\); expected a number of at least 0"):
        make("m.onnx", margin=-1)
    with pytest.raises(onnxfuse.UsageError, match=r"^margin goes with guard"):
        make("m.onnx", margin=2)
    (flag,) = (p for p in parameters(Extended) if p.name == "margin")
    with click.Context(click.Command("make")) as context:
        assert flag.get_help_record(context) == ("--margin X", "Margin of --guard.  [x>=0]")
    assert "margin" in schema.toml_keys(Extended)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_module_and_no_flag_twice(name: str) -> None:
    """Each is a function of a module of its own; what it takes is declared."""
    module = importlib.import_module(f"onnxfuse.cli.commands.{name.replace('-', '_')}")
    assert callable(module.command)
    flags = [flag for p in SchemaCommand(name).params for flag in (*p.opts, *p.secondary_opts) if flag[0] == "-"]
    assert len(flags) == len(set(flags))
    assert set(COMMANDS) == set(GROUPS)


def test_words_of_types_are_the_models() -> None:
    """The schema imports nothing of models, whose records know the same types."""
    assert set(get_args(groups.IoPrecision)) == set(TYPES)
    assert [*get_args(groups.ProviderWord)] == [*groups.PROVIDERS]


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (np.int64(3), COUNT, 3), (np.float32(0.5), float, 0.5), (3, float, 3.0), ("a/b", Path, Path("a/b")),
        ([1, np.int8(2)], COUNTS, (1, 2)), (range(2), COUNTS, (0, 1)), ("x", Literal["x"], "x"),
        ([3], COUNT | COUNTS, (3,)), (">= 3", RELATION, ">= 3"), (True, COUNT, None), (-1, COUNT, None),
        (2.0, int, None), (float("nan"), float, None), (float("inf"), float, None), (10**400, float, None),
        ("x", tuple[str, ...], None), ([1, 2, 3], COUNT | PAIR, None), ("z", Literal["x"], None),
        ((), FILLED, None), ([1], FILLED, (1,)), ({1: 2}, dict, None), (3, Path, None), ("=>3", RELATION, None),
    ],
)  # fmt: skip
def test_a_value_is_converted_or_refused(value: Any, kind: Any, expected: Any) -> None:
    """Strictly: no number is a bool, no string a list, none without an end; numbers of NumPy become Python's."""
    if expected is None:
        with pytest.raises(ValueError, match=re.escape(str(value))):
            convert(value, kind)
    else:
        converted = convert(value, kind)
        assert (converted, type(converted)) == (expected, type(expected))


def test_the_schema_of_the_file_and_its_reader_agree() -> None:
    """What the reader takes is valid, what it refuses by its form is not; options of `optimize` are among its keys."""
    form = toml.json_schema()
    jsonschema.Draft202012Validator.check_schema(form)
    options = 'precision = "float16"\nkeep_fp32 = ["Relu"]\nskip = ["gemm"]\nverify = false\nrules = ["mine"]\n'
    jsonschema.validate(tomllib.loads(CONFIG + options), form)
    for wrong in ("shape = { N = 1 }", "budget = { nodes = -1 }", 'provider = "gpu"', 'require = { linear = "=>2" }',
                  "skip = [3]", "shapes = { N = [] }",
                  "tolerance = 2", "verify = { seeds = 99999999 }", "precision = 16"):  # fmt: skip
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(tomllib.loads(f'[[model]]\npath = "a.onnx"\n{wrong}\n'), form)


def test_every_option_is_listed_with_its_value_and_origin(folder: Path, onnxfuse_command: Command) -> None:
    """Those of all commands, of a call, and of each model of onnxfuse.toml; nothing of it is run."""
    listed = json.loads(onnxfuse_command("config", "--json").out)["options"]
    flags = {flag for row in listed for flag in row["flag"].split(", ")}
    for group in GROUPS.values():
        assert {flag for one in schema.fields(group).values() for flag in one.flags} <= flags
    called = ("config", "--json", "optimize", "none.onnx", "--only", "gemm", "--tf32")
    assert "No such option '--tf32'" in onnxfuse_command(*called).out
    rows = {r["option"]: r for r in json.loads(onnxfuse_command(*called[:-1]).out)["options"]}
    assert (rows["only"]["value"], rows["only"]["origin"]) == (["gemm"], "flag")
    assert (rows["guard"]["value"], rows["guard"]["origin"]) == (False, "default")
    (folder / "onnxfuse.toml").write_text(f'\n{CONFIG}skip = ["gemm"]\nfreeze_initializers = false\n')
    rows = {r["option"]: r for r in json.loads(onnxfuse_command("config", "--json", "ci").out)["options"]}
    assert (rows["small: skip"]["value"], rows["small: skip"]["origin"]) == (["gemm"], "onnxfuse.toml:10:8")
    assert rows["small: also"]["origin"] == "default"
    assert rows["small: freeze_initializers"]["origin"] == "onnxfuse.toml:11:23"
    table = onnxfuse_command("config", "ci")
    assert (table.code, "onnxfuse.toml:10:8" in table.out) == (0, True)
    assert "Did you mean optimize?" in onnxfuse_command("config", "optimise").err
    assert json.loads(onnxfuse_command("config", "--schema").out) == toml.json_schema()


def test_help_does_not_import_onnx(onnxfuse_command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help and completion wait for nothing: a command's module is imported when it runs."""

    def imported(name: str) -> Any:
        raise AssertionError(name)

    monkeypatch.setattr(importlib, "import_module", imported)
    for name in COMMANDS:
        with click.Context(SchemaCommand(name)) as context:
            assert "--traceback" in SchemaCommand(name).get_help(context)


def test_an_error_names_an_option_as_its_caller_knows_it(folder: Path, onnxfuse_command: Command) -> None:
    """The flag on the command line, the keyword in Python; a command in it keeps its flags."""
    with pytest.raises(onnxfuse.UsageError, match=r"^'linear' applies without `also`, which is for optional rules"):
        onnxfuse.optimize(folder / "in.onnx", also=["linear"])
    assert (
        "'linear' applies without --also" in onnxfuse_command("optimize", "in.onnx", "o.onnx", "--also", "linear").err
    )
    with pytest.raises(onnxfuse.UsageError, match=r"^tolerance goes with precision$"):
        onnxfuse.optimize(folder / "in.onnx", tolerance=0.1)
    told = onnxfuse_command("optimize", "in.onnx", "o.onnx", "--tolerance", "0.1")
    assert "--tolerance goes with --precision" in told.err


def test_sizes_in_a_hint_are_a_dict_in_python() -> None:
    """Or a list of dicts where the keyword takes several; a range, a placeholder and a command stay as they are."""
    told = {
        "Choose them: --shape N=8 --shape M=9.": "Choose them: `{}`.",
        "--shape N=1,2 is two": "`{name}` N=1,2 is two",
        "onnxfuse optimize --shape N=8": "onnxfuse optimize --shape N=8",
    }
    for group, name, value in (
        (functions.Tune, "sizes", "sizes=[{'N': 8, 'M': 9}]"), (functions.Optimize, "shapes", "shapes={'N': 8, 'M': 9}")
    ):  # fmt: skip
        for command, keyword in told.items():
            error = onnxfuse.UsageError("m", command)
            say_in_python(error, group)
            assert error.hint == keyword.format(value, name=name)


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        ("say --follow-links; else copy it", "say `follow_links=True`; else copy it"),
        ("Export with --no-batch.", "Export with `batch=False`."),
    ],
)
def test_a_switch_in_a_hint_has_its_value_in_python(hint: str, told: str) -> None:
    """As it is typed; what is wrong names the keyword alone."""
    error = onnxfuse.UsageError("--batch: there is no such dimension", hint)
    say_in_python(error, functions.ExportLibrary)
    assert (f"{error}", error.hint) == ("`batch`: there is no such dimension", told)


def test_short_names_of_types_mean_the_same_everywhere(folder: Path, onnxfuse_command: Command) -> None:
    """fp16 and bf16 on the command line, in Python and in onnxfuse.toml; messages name the words."""
    call = ("config", "--json", "optimize", "in.onnx", "o.onnx", "--precision", "fp16", "--io-precision", "fp32")
    values = {one["option"]: one["value"] for one in json.loads(onnxfuse_command(*call).out)["options"]}
    assert (values["precision"], values["io_precision"]) == ("float16", "float32")
    assert schema.fields(groups.Optimizing)["precision"].kind.read("precision", "bf16") == "bfloat16"
    (folder / "onnxfuse.toml").write_text('[[model]]\npath = "in.onnx"\nprecision = "bf16"\n')
    assert read(folder / "onnxfuse.toml").models[0].options["precision"] == "bfloat16"
    jsonschema.validate(tomllib.loads((folder / "onnxfuse.toml").read_text()), toml.json_schema())
    assert "'fp32' is not one of" in onnxfuse_command("optimize", "in.onnx", "o.onnx", "--precision", "fp32").err
