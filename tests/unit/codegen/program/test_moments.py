"""Norms are recognized by their reductions: one mean, variances about it, and what the mean's rounding leaves."""

import pytest

from bench.cases import ops
from bench.cases.ops import DOUBLE, FLOAT, HALF
from bench.cases.rows import TEMPLATES
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.moments import Moments, moments
from onnxfuse.codegen.program.program import Apply, Reduce
from onnxfuse.codegen.program.recentre import centred
from onnxfuse.ops import scalar

AXES = "a = Constant <value_ints = [-1]> ()"
NORM = f"{AXES} m = ReduceMean (x, a) d = Sub (x, m) s = Mul (d, d) v = ReduceMean (s, a)"


def of(nodes: str, dtype: int = FLOAT) -> Moments | None:
    """Return the moments of a body of x with these nodes."""
    return moments(read.program(ops.op(f"(x) => (y) {{ {nodes} }}", (dtype,), (dtype,), "row")))


@pytest.mark.parametrize("dtype", [FLOAT, HALF])
def test_mean_and_variance_are_found(dtype: int) -> None:
    """As indices of the program's values; half precision is computed in float32."""
    program = read.program(ops.op(f"(x) => (y) {{ {NORM} y = Div (d, v) }}", (dtype,), (dtype,), "row"))
    found = moments(program)
    assert found is not None
    mean, (variance,) = program.values[found.mean], (program.values[i] for i in found.variances)
    assert isinstance(mean, Reduce)
    assert isinstance(variance, Reduce)
    assert mean.arg == found.value == 0
    square = program.values[variance.arg]
    assert isinstance(square, Apply)
    assert square.op == scalar.mul
    assert found.rests == ()


def test_what_the_mean_leaves_is_a_rest() -> None:
    """`recentre` adds the mean of the differences."""
    program = centred(read.program(TEMPLATES["layer norm of NCHW"].op(FLOAT)))
    found = moments(program)
    assert found is not None
    assert (len(found.variances), len(found.rests)) == (1, 1)
    assert {found.mean, *found.variances, *found.rests} == set(program.reductions())


@pytest.mark.parametrize(
    "nodes",
    [
        f"{AXES} m = ReduceMean (x, a) y = Sub (x, m)",
        f"{AXES} m = ReduceMax (x, a) d = Sub (x, m) s = Mul (d, d) v = ReduceMean (s, a) y = Div (d, v)",
        f"{AXES} m = ReduceMean (x, a) d = Sub (x, m) s = Mul (d, d) v = ReduceSum (s, a) y = Div (d, v)",
        f"{AXES} m = ReduceMean (x, a) d = Sub (m, x) s = Mul (d, d) v = ReduceMean (s, a) y = Div (d, v)",
        f"{AXES} m = ReduceMean (x, a) d = Sub (x, m) s = Mul (d, x) v = ReduceMean (s, a) y = Div (d, v)",
        f"{AXES} m = ReduceMean (x, a) d = Add (x, m) s = Mul (d, d) v = ReduceMean (s, a) y = Div (d, v)",
        f"{AXES} m = ReduceMean (x, a) d = Sub (x, m) s = Add (d, d) v = ReduceMean (s, a) y = Div (d, v)",
        f"{NORM} e = Exp (d) w = ReduceMean (e, a) q = Add (v, w) y = Div (d, q)",
        f"{NORM} e = Exp (x) w = ReduceMean (e, a) q = Add (v, w) y = Div (d, q)",
    ],
)
def test_other_reductions_are_no_norm(nodes: str) -> None:
    """No variance, another kind, another difference, another square, or one reduction more."""
    assert of(nodes) is None


def test_doubles_are_not_computed_in_one_pass() -> None:
    """The one-pass form is for float32 arithmetic."""
    assert of(f"{NORM} y = Div (d, v)") is not None
    assert of(f"{NORM} y = Div (d, v)", DOUBLE) is None
