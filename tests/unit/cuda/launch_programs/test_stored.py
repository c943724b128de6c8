"""A stored program may have a path longer than the stack."""

import sys

from bench.cases import ops
from bench.cases.ops import FLOAT
from onnxfuse.cuda.launch_programs import stored
from onnxfuse.cuda.launch_programs.tape import written
from tests.support.kernels.tape_evaluator import Tape
from tests.unit.cuda.launch_programs.test_tape import recorded

NEGATE = ops.op("(x) => (y) { y = Neg(x) }", (FLOAT,), (FLOAT,), "pointwise")


def test_a_path_may_be_longer_than_the_stack() -> None:
    """Forty products of one input compare hundreds of extents."""
    sizes = (100_000, 7)
    made = recorded(lambda n: 1 + sum(n > 10 * k for k in range(sys.getrecursionlimit())), sizes)
    data = written(made)
    assert data is not None
    again = stored.loaded(stored.dumped(made), made.key, made.plan)
    assert stored.dumped(again) == stored.dumped(made)
    for size in sizes:
        expected = made.answer(((size,),))
        assert Tape(data).answer(((size,),), made.kernels) == again.answer(((size,),)) == expected
