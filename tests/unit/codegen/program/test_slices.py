"""Parts of a value: where they begin, and which share their numbers."""

from bench.cases import ops
from bench.cases.ops import FLOAT, HALF
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.program import Contraction
from onnxfuse.codegen.program.slices import between, canonical
from onnxfuse.cuda.templates.gemm.body import anatomy


def test_products_side_by_side_may_share_their_numbers() -> None:
    """The constants of Clip stand in the program once; each product's epilogue is the same program still."""
    text = """(x, u, v, b, c) => (y, z) {
      low = Constant <value = float {0.0}> () high = Constant <value = float {6.0}> ()
      m = MatMul(x, u) k = Add(m, b) y = Clip(k, low, high)
      n = MatMul(x, v) l = Add(c, n) z = Clip(l, low, high) }"""
    parts = anatomy(ops.op(text, (FLOAT,) * 5, (FLOAT,) * 2, "gemm"))
    assert [(e.products, e.operands, e.outputs) for e in parts.epilogues] == [((0,), (3,), (0,)), ((1,), (4,), (1,))]
    first, second = (e.program for e in parts.epilogues)
    assert first != second
    assert canonical(first) == canonical(second)


def test_a_part_begins_at_the_values_it_is_given() -> None:
    text = "(x, w, b) => (y) { m = MatMul(x, w) n = Add(m, b) s = Sigmoid(n) y = Mul(n, s) }"
    program = read.program(ops.op(text, (HALF,) * 3, (HALF,)))
    product = next(i for i, v in enumerate(program.values) if isinstance(v, Contraction))
    part = between(program, (product, 2), program.outputs)
    assert part.inputs == (HALF, HALF)
    assert part.is_pointwise()
    assert [getattr(v, "op", "") for v in part.values] == ["", "", "add", "sigmoid", "mul"]
    assert part.shapes(((4, 6), (6,)))[-1] == (4, 6)
