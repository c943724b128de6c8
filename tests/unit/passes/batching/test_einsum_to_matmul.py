"""An Einsum of two operands that is a product of matrices is a MatMul, and computes the same."""

import pytest

from onnxfuse.graph.graph import Graph
from onnxfuse.passes.batching.einsum_to_matmul import einsum_to_matmul
from onnxfuse.shapes.inference import infer
from tests.support.small import assert_same_numbers, ops, optimize, parse

T, M, R = "Transpose", "MatMul", "Reshape"

PRODUCTS = {
    "nshd, nthd -> nhst": ("2,3,4,5", "2,7,4,5", "2,4,3,7", [T, T, M]),
    "bhqk,bkhd->bqhd": ("2,4,3,7", "2,7,4,5", "2,3,4,5", [T, M, T]),
    "bhid,bhjd->bhij": ("2,4,3,5", "2,4,7,5", "2,4,3,7", [T, M]),
    "bhij,bhjd->bhid": ("2,4,3,7", "2,4,7,5", "2,4,3,5", [M]),
    "B G H I D, B G H J D -> B G H I J": ("2,3,4,5,6", "2,3,4,7,6", "2,3,4,5,7", [T, M]),
    "B G H I J, B G H J D -> B G H I D": ("2,3,4,5,7", "2,3,4,7,6", "2,3,4,5,6", [M]),
    "nchw,mc->nmhw": ("2,3,4,5", "6,3", "2,6,4,5", [T, T, M, T]),
    "oc,bcn->bon": ("6,3", "2,3,5", "2,6,5", [T, T, M, T]),
    "ij,jk": ("3,4", "4,5", "3,5", [M]),
    "bkq,bkd->bdq": ("2,4,3", "2,4,5", "2,5,3", [T, M]),
    "...ij,...jk->...ik": ("2,3,4,5", "2,3,5,6", "2,3,4,6", [M]),
    "...ij,jk": ("2,3,4,5", "5,6", "2,3,4,6", [M]),
    "ibh,hnd->ibnd": ("2,3,4", "4,5,6", "2,3,5,6", [R, M, R]),
    "ibnd,hnd->ibh": ("2,3,5,6", "4,5,6", "2,3,4", [R, T, R, M]),
    "bqc,bchw->bqhw": ("2,3,4", "2,4,5,6", "2,3,5,6", [R, M, R]),
    "bhwc,hkc->bhwk": ("2,3,4,5", "3,6,5", "2,3,4,6", [T, R, T, M, R, T]),
    "mc,chw->mhw": ("6,3", "3,4,5", "6,4,5", [R, M, R]),
    "ijk,jkl->il": ("3,4,5", "4,5,6", "3,6", [R, R, M]),
    "i...j,...j k->...ik": ("4,2,3,5", "2,3,5,6", "2,3,4,6", [T, M]),
}
"""Equations with what they read and make, and what is left of them."""


@pytest.mark.parametrize("equation", list(PRODUCTS))
def test_a_product_is_a_product(equation: str) -> None:
    """Any letters in any order, one matrix or one for each of a batch."""
    left, right, result, wanted = PRODUCTS[equation]
    model = parse(f"""g (float[{left}] a, float[{right}] b) => (float[{result}] y) {{
      y = Einsum <equation = "{equation}"> (a, b) }}""")
    made, _ = optimize(model, "expand")
    assert ops(made) == wanted
    assert_same_numbers(model, made)
    assert optimize(made, "expand")[0] == made


def test_extents_may_be_open() -> None:
    """What is not known to differ is the same."""
    model = parse("""g (float[N,S,4,5] a, float[N,T,4,5] b) => (float[N,4,S,T] y) {
      y = Einsum <equation = "bqhd,bkhd->bhqk"> (a, b) }""")
    made, _ = optimize(model, "expand")
    assert ops(made) == [T, T, M]
    assert_same_numbers(model, made)


@pytest.mark.parametrize(("heads", "left"), [("N,S,4,H", ["Einsum"]), ("3,5,4,H", [R, R, M]), ("S,N,4,5", [R, R, M])])
def test_open_extents_of_axes_that_are_joined(heads: str, left: list[str]) -> None:
    """One of them may be open if no other extent is, or all of one matrix's axis: a batch may be empty."""
    *_, size = heads.split(",")
    model = parse(
        f"""g (float[{heads}] a, float[4,{size},6] b) => (float[N,S,6] y) {{
      y = Einsum <equation = "bqhd,hdm->bqm"> (a, b) }}""".replace("[N,S,6]", f"[{heads[:3]},6]")
    )
    made, _ = optimize(model, "expand")
    assert ops(made) == left
    assert_same_numbers(model, made)


LEFT = {
    "ij,ij->ij": "float[3,4] a, float[3,4] b",
    "ij,ij->i": "float[3,4] a, float[3,4] b",
    "i,j->ij": "float[3] a, float[4] b",
    "ii,ij->ij": "float[3,3] a, float[3,4] b",
    "ijk,jl->il": "float[3,4,5] a, float[4,6] b",
    "bij,bjk->bik": "float[2,3,4] a, float[1,4,5] b",
    "ij,jk->ki ": "int32[3,4] a, int32[4,5] b",
    "ij->ji": "float[3,4] a",
}
"""Nothing summed, no rows or columns, a diagonal, a sum over one operand, a matrix that is repeated, types that nothing
multiplies, one operand."""


@pytest.mark.parametrize("equation", list(LEFT))
def test_the_rest_stays(equation: str) -> None:
    """What is no product of matrices, or none that ONNX Runtime has on the GPU."""
    names = ", ".join(part.split()[1] for part in LEFT[equation].split(", "))
    kind = LEFT[equation].partition("[")[0]
    model = parse(f"""g ({LEFT[equation]}) => ({kind}[] y) {{ y = Einsum <equation = "{equation}"> ({names}) }}""")
    assert not einsum_to_matmul(Graph(model.graph, infer(model).graph, 17))


@pytest.mark.parametrize("shape", ["1,5,S", "1,5,A", "B,C,D"])
def test_a_sum_over_extents_that_may_differ_stays(shape: str) -> None:
    """Along a summed axis an Einsum repeats an extent of 1, and a product does not: only equal ones are a product."""
    model = parse(f"""g (float[1,5,A] x, float[{shape}] like, float[8,2] w) => (float[U,V,2] y) {{
      s = Shape (like) e = Expand (x, s) y = Einsum <equation = "abc,cn->abn"> (e, w) }}""")
    made, _ = optimize(model, "expand")
    assert "Einsum" in ops(made)
