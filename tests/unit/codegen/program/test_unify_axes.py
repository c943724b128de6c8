"""What one space of axes can express: a lookup whose table nothing else reads."""

import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT, INT64
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.program import BodyProgram
from onnxfuse.codegen.program.unify_axes import Axis, BroadcastProgram, Lookup, broadcast_program, check
from onnxfuse.symbolic.element_types import UnsupportedError
from onnxfuse.symbolic.strides import Shape


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


def rows(body: str, *shapes: Shape) -> BroadcastProgram:
    """Return the program of a body on inputs of these shapes, without its moves."""
    names = "xz"[: len(shapes)]
    fused = ops.op(f"({', '.join(names)}) => (y) {{ {body} }}", (FLOAT,) * len(shapes), (FLOAT,), "row")
    made = broadcast_program(read.program(fused), shapes)
    assert not made.program.moves()
    return made


@pytest.mark.parametrize(
    ("body", "shapes", "inputs", "orders", "output"),
    [
        ("y = Softmax (x)", ((4, 5),), ((4, 5),), {}, (4, 5)),
        ("t = Transpose <perm = [0,2,1,3]> (x) a = Add (t, z) y = Softmax (a)", ((2, 3, 4, 5), (2, 4, 3, 5)),
         ((2, 4, 3, 5), (2, 4, 3, 5)), {"in0": (0, 2, 1, 3)}, (2, 4, 3, 5)),
        ("h = Constant <value_ints = [0,0,2,4]> () r = Reshape (x, h) a = Add (r, z) y = Softmax (a)",
         ((3, 5, 8), (3, 5, 1, 4)), ((3, 5, 2, 4), (3, 5, 1, 4)), {}, (3, 5, 2, 4)),
        ("t = Transpose <perm = [1,0]> (x) a = Add (t, z) y = Softmax (a)", ((1, 5), (5, 6)),
         ((5, 1), (5, 6)), {}, (5, 6)),
        ("h = Constant <value_ints = [1]> () u = Unsqueeze (x, h) t = Transpose <perm = [0,2,1]> (u) "
         "y = Softmax <axis = 1> (t)", ((3, 5),), ((3, 5),), {}, (3, 5)),
    ],
)  # fmt: skip
def test_values_get_the_axes_of_one_space(
    body: str, shapes: tuple[Shape, ...], inputs: tuple[Shape, ...], orders: dict[str, Axis], output: Shape
) -> None:
    """Axes of 1 are none, split axes are split everywhere, and an input in another order says so."""
    made = rows(body, *shapes)
    assert (made.input_shapes, made.lookups, made.orders) == (inputs, {}, orders)
    assert made.program.shapes(made.input_shapes)[-1] == output


def test_a_lookup_reads_a_row_for_each_number() -> None:
    """The axes of the row are inside those of the numbers."""
    made = broadcast_program(program("u = Gather (w, i) y = Softmax (u)"), ((10, 8), (3, 5)))
    assert made.input_shapes == ((1, 1, 8), (3, 5, 1))
    assert made.lookups == {0: Lookup(number=1, rows=10, length=8)}
    assert made.program.shapes(made.input_shapes)[-1] == (3, 5, 8)


def test_a_value_that_meets_itself_transposed_is_refused() -> None:
    """Its two axes would be one."""
    with pytest.raises(UnsupportedError, match="an axis that meets itself elsewhere"):
        rows("t = Transpose <perm = [1,0]> (x) a = Add (t, x) y = Softmax (a)", (5, 5))


def test_extents_that_do_not_divide_each_other_are_told() -> None:
    """No axis can be split into both."""
    with pytest.raises(UnsupportedError, match="axes of 6 and 4 that do not divide each other"):
        rows("h = Constant <value_ints = [4,3]> () r = Reshape (x, h) a = Add (r, z) y = Softmax (a)", (6, 2), (4, 3))
