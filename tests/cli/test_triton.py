"""config.pbtxt: batches, scalars, strings, and what Triton cannot serve."""

from pathlib import Path
from typing import Any

import onnx
import pytest

from onnxfuse.deploy.triton import config, signature


def described(graph: str) -> Any:
    return signature(onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> {graph}'))


def test_triton_has_scalars_strings_and_open_dimensions() -> None:
    """A row without dimensions is of one element that is no dimension."""
    seen = described("""g (int64[N] ids, string[N, S] text, float16[N, K, 3] image) => (bool[N] y) {
        y = Greater (ids, ids) }""")
    assert seen.batch == "N"
    text = config(seen, Path("/m/1/libonnxfuse.so"), 4)
    assert text.count("reshape { shape: [ ] }") == 2
    assert "data_type: TYPE_STRING\n    dims: [ -1 ]" in text
    assert "data_type: TYPE_FP16\n    dims: [ -1, 3 ]" in text
    assert "data_type: TYPE_BOOL\n    dims: [ 1 ]" in text


@pytest.mark.parametrize(
    ("graph", "why"),
    [
        (
            "g (float8e4m3fn[N] x) => (float8e4m3fn[N] y) { y = Identity (x) }",
            "a type that Triton does not have: FLOAT8E4M3FN",
        ),
        ("g (float x) => (float[] y) { y = Identity (x) }", ""),
    ],
)
def test_what_triton_cannot_serve_is_said(graph: str, why: str) -> None:
    refusal = described(graph).refusal
    assert why in refusal if why else not refusal


@pytest.mark.parametrize(
    "graph",
    [
        "g (float[N, 2] x, float[M, 2] b) => (float[N, 2] y) { y = Identity (x) }",
        "g (float[N, 2] x) => (float[2, N] y) { y = Transpose (x) }",
        "g (float[3, 2] x) => (float[3, 2] y) { y = Identity (x) }",
    ],
)
def test_requests_are_joined_only_along_what_all_begin_with(graph: str) -> None:
    assert described(graph).batch is None
