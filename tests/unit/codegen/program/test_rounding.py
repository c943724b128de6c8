"""Roundings that are done once more go, and no other."""

import pytest
from onnx import TensorProto

from bench.cases import ops
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.program import Apply
from onnxfuse.codegen.program.rounding import rounded_once


def left(text: str, dtype: int, output: int | None = None) -> list[str]:
    """Return the operations that the outputs of a body are made by, once they are rounded once."""
    names = text.split("=> (")[1].split(")")[0].count(",") + 1
    program = rounded_once(read.program(ops.op(text.replace("TYPE", str(dtype)), (FLOAT,), (output or dtype,) * names)))
    return [v.op for i in sorted(program.live()) if isinstance(v := program.values[i], Apply)]


@pytest.mark.parametrize("dtype", [HALF, BRAIN])
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("(x) => (y) { e = Exp(x) y = Cast <to = TYPE> (e) }", ["exp"]),
        ("(x) => (y) { e = Exp(x) c = Cast <to = TYPE> (e) y = Relu(c) }", ["exp", "relu"]),
        ("(x) => (y) { c = Cast <to = TYPE> (x) a = Neg(c) b = Abs(a) y = Relu(b) }", ["neg", "abs", "relu"]),
        ("(x) => (y, z) { c = Cast <to = TYPE> (x) y = Relu(c) z = Exp(c) }", ["cast", "exp", "relu"]),
        ("(x) => (y) { c = Cast <to = TYPE> (x) y = Exp(c) }", ["cast", "exp"]),
    ],
)
def test_a_rounding_that_only_that_of_the_output_follows_goes(text: str, kept: list[str], dtype: int) -> None:
    assert sorted(left(text, dtype)) == sorted(kept)


def test_other_casts_stay() -> None:
    """Of whole numbers, and to another type than the output's."""
    other = int(TensorProto.INT32)
    assert left("(x) => (y) { c = Cast <to = TYPE> (x) y = Relu(c) }", other) == ["cast", "relu"]
    assert "cast" in left(f"(x) => (y) {{ c = Cast <to = {BRAIN}> (x) y = Cast <to = TYPE> (c) }}", HALF)
