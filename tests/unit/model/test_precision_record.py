"""What a file says of its conversion."""

import pytest

from onnxfuse.model import precision_record
from onnxfuse.support.errors import ModelError
from tests.cli.conftest import Command, folder, onnxfuse_command  # noqa: F401 - fixtures
from tests.support.precision import model_of
from tests.unit.precision.test_convert import BIG


def test_metadata_that_is_not_ours_is_told() -> None:
    """A tool may have changed it."""
    model = model_of(BIG)
    model.metadata_props.add(key=precision_record.METADATA, value='{"precision": "float8"}')
    with pytest.raises(ModelError, match="is not as onnxfuse writes it"):
        precision_record.read(model)
