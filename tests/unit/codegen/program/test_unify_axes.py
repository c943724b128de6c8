"""What one space of axes can express: a lookup whose table nothing else reads."""

import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT, INT64
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.codegen.program.unify_axes import check
from onnxfuse.symbolic.element_types import UnsupportedError


def program(body: str) -> BodyProgram:
    """Return the program of rows that are looked up in a table."""
    return read.program(ops.op(f"(w, i) => (y) {{ {body} }}", (FLOAT, INT64), (FLOAT,), "row"))


def test_a_table_is_read_by_its_lookup_alone() -> None:
    """Else it would need two layouts; and it is an input of the op."""
    check(program("u = Gather (w, i) y = Softmax (u)"))
    with pytest.raises(UnsupportedError, match="a table that is read in two ways"):
        check(program("u = Gather (w, i) v = Add (u, w) y = Softmax (v)"))
    with pytest.raises(UnsupportedError, match="Gather of a computed table"):
        check(program("n = Neg (w) u = Gather (n, i) y = Softmax (u)"))
