"""The JSON schema of onnxfuse.toml and its reader agree."""

import tomllib

import jsonschema
import pytest

from onnxfuse.options import toml
from tests.cli.test_ci import CONFIG


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
