"""The JSON schema of onnxfuse.toml and its reader agree."""

import tomllib

import jsonschema
import pytest
from click import Context

from onnxfuse.cli.base.command import SchemaCommand
from onnxfuse.options import toml
from tests.cli.test_ci import CONFIG


def test_the_help_of_ci_explains_every_key() -> None:
    """Each key of the file's schema stands below its table, with what it means, what it takes and its default."""
    model = toml.json_schema()["properties"]["model"]["items"]["properties"]
    told = {
        title.partition(" ")[0]: dict(keys) for title, keys in toml.explained().items() if not title.startswith("[[")
    }
    assert told.keys() == toml.TABLES.keys()
    assert {name: told[name].keys() for name in told} == {
        name: (model[name].get("anyOf", [..., model[name]])[-1])["properties"].keys() for name in told
    }
    own = [dict(keys) for title, keys in toml.explained().items() if title.startswith("[[model]]")]
    assert {key for keys in own for key in keys} | toml.TABLES.keys() == model.keys()
    shown = " ".join(SchemaCommand("ci").get_help(Context(SchemaCommand("ci"))).split())
    for keys in (*told.values(), *own):
        for key, text in keys.items():
            assert f"{key} {' '.join(text.split())}" in shown
    assert "1 is what verify itself allows. [a number of at least 0]" in told["budget"]["error"].replace("  ", " ")
    assert own[0]["provider"].endswith("[one of auto, cpu, cuda; default auto]")
    assert own[1]["freeze_initializers"].endswith("[true or false]")


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
