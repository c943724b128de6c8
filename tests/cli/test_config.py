"""`onnxfuse config` lists every option with its value and the origin of the value."""

import json
from pathlib import Path

from onnxfuse.options import schema, toml
from onnxfuse.options.commands import GROUPS
from tests.cli.conftest import Command
from tests.cli.test_ci import CONFIG


def test_every_option_is_listed_with_its_value_and_origin(folder: Path, onnxfuse_command: Command) -> None:
    """Those of all commands, of a call, and of each model of onnxfuse.toml; nothing of it is run."""
    listed = json.loads(onnxfuse_command("config", "--json").out)["options"]
    flags = {flag for row in listed for flag in row["flag"].split(", ")}
    for group in GROUPS.values():
        assert {flag for one in schema.fields(group).values() for flag in one.flags} <= flags
    assert {row["option"] for row in listed if row["onnxfuse.toml"]} == toml.model_options().keys()
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
