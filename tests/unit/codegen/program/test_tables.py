"""Functions of one 8-bit value are tables: elements as ONNX Runtime's own nodes give them, where that is shorter."""

import numpy as np
import pytest
from onnx import TensorProto

from bench.cases import ops
from onnxfuse.codegen.operators import read
from onnxfuse.codegen.program.program import Apply, BodyProgram
from onnxfuse.codegen.program.tables import Table
from tests.support.kernels.quantized import GELU, GELU_SCALES, by_nodes

FLOAT, INT8, UINT8 = TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8
ALL = np.arange(256, dtype=np.uint8)
SWISH = "f = DequantizeLinear (q, sa, za) i = Sigmoid (f) j = Mul (f, i) k = Tanh (j) y = QuantizeLinear (k, se, zo)"


def program(text: str, inputs: tuple[int, ...], output: int = UINT8) -> BodyProgram:
    names = ", ".join("qrs"[: len(inputs)])
    return read.program(ops.op(f"({names}) => (y) {{ {GELU_SCALES} {text} }}", inputs, (output,), "pointwise"))


def tables(of: BodyProgram) -> list[Table]:
    return [v.op for v in of.values if isinstance(v, Apply) and isinstance(v.op, Table)]


@pytest.mark.parametrize("text", [GELU, SWISH], ids=["gelu", "swish"])
def test_elements_are_what_the_nodes_compute(text: str) -> None:
    """Of all 256 values, by their bits."""
    made = program(text, (INT8,))
    (table,) = tables(made)
    assert sum(isinstance(v, Apply) for v in made.values) == 1
    np.testing.assert_array_equal(table.elements, by_nodes(text, "int8", q=ALL.view(np.int8)))


def test_unsigned_values_and_signed_elements() -> None:
    made = program(
        "z = Constant <value = uint8 {100}> () f = DequantizeLinear (q, sa, z) g = Erf (f) h = Erf (g) i = Erf (h)"
        " y = QuantizeLinear (i, se, ze)",
        (UINT8,),
        INT8,
    )
    (table,) = tables(made)
    assert table.elements[100] == 0
    assert table.elements[0] == -table.elements[200] < -50


def test_a_quantized_result_is_looked_up_where_it_is_computed() -> None:
    """The 8 bits in the middle of a kernel start the chain; the float behind it is computed from the element."""
    chain = GELU.replace("(q,", "(c,").replace(" y =", " k =")
    made = program(
        f"c = QuantizeLinear (q, sa, za) {chain} t = DequantizeLinear (k, so, zo) u = Add (t, q)"
        " y = QuantizeLinear (u, so, zo)",
        (FLOAT,),
    )
    assert len(tables(made)) == 1
    assert not any(isinstance(v, Apply) and v.op == "erf" for v in made.values)


SHORT = "f = DequantizeLinear (q, sa, za) g = Relu (f) y = QuantizeLinear (g, so, zo)"
TWO = """f = DequantizeLinear (q, sa, za) g = DequantizeLinear (r, sa, za) h = Mul (f, g) i = Erf (h) j = Sigmoid (i)
  k = Tanh (j) y = QuantizeLinear (k, so, zo)"""
BESIDE = """f = DequantizeLinear (q, sa, za) h = Mul (f, r) i = Erf (h) j = Sigmoid (i) k = Tanh (j)
  y = QuantizeLinear (k, so, zo)"""


@pytest.mark.parametrize(
    ("text", "inputs"),
    [(SHORT, (INT8,)), (TWO, (INT8, INT8)), (BESIDE, (INT8, FLOAT))],
    ids=["no longer than a lookup", "of two values", "beside a float"],
)
def test_others_are_computed(text: str, inputs: tuple[int, ...]) -> None:
    assert not tables(program(text, inputs))


def test_a_result_that_is_no_number_is_not_looked_up() -> None:
    """Of a negative number the logarithm is none: what an integer of it is, the GPU says."""
    text = "f = DequantizeLinear (q, sa, za) g = Log (f) h = Erf (g) i = Tanh (h) y = QuantizeLinear (i, so, zo)"
    assert not tables(program(text, (INT8,)))
