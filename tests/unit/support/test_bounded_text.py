"""Text that nests too deep is not read."""

import pytest

from onnxfuse.support.bounded_text import MOST_BRACKETS, parse_function, read_json
from onnxfuse.support.errors import ModelError


def test_text_that_nests_is_not_read() -> None:
    """ONNX's parser would end the process, Python's raise an error of its own."""
    branch = "g () => (y) { y = If (a) <then_branch = "
    deep = '<domain: "d", opset_import: ["" : 17]> f (a) => (b) { b = If <then_branch = ' + branch * 100_000
    with pytest.raises(ModelError, match=f"at most {MOST_BRACKETS}"):
        parse_function(deep)
    with pytest.raises(ValueError, match="nests too deeply"):
        read_json("[" * 100_000)
