"""A sample of random graphs of every operator; `make graphs` tries thousands."""

import numpy as np
import onnx
import pytest

from tests.rewrite.every_operator.laws import Case, broken, by_reference, case, differs, tried
from tests.rewrite.every_operator.workers import REFUSED_MADE


@pytest.mark.parametrize("first", range(0, 60, 10))
def test_a_random_graph_holds_every_law(first: int) -> None:
    """Equal in value and shape, the same when it is optimized again, itself when its fusions are undone."""
    assert {seed: said for seed in range(first, first + 10) if (said := broken(case(seed))) is not None} == {}


@pytest.mark.parametrize("seed", [361, 1612, 7742])
def test_what_random_graphs_have_found_stays_mended(seed: int) -> None:
    """Seven open axes, sampled as large ones, are more elements than 64 bits hold; a Slice may end at 2^63;
    ONNX's own inference stumbles on a MeanVarianceNormalization beside a function."""
    assert broken(case(seed)) is None


TIE = """<ir_version: 8, opset_import: ["" : 17]> agraph (float x, float{} y) => (float z)
<float one = {{1.0}}, float two = {{2.0}}, float one_and_a_bit = {{1.0000001}}> {{
    less = Less (x, y)
    z = Where (less, one, two)
}}"""


@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_tie_decides_is_rounding_and_what_none_decides_is_not(rank: int) -> None:
    """x < y of two that are equal may come out either way; x < y of 1 and 2 may not; inputs of any rank are nudged."""
    original, rounded = (onnx.parser.parse_model(TIE.format("[1]" * rank)) for _ in range(2))
    rounded.graph.node[0].input[0], rounded.graph.node[0].input[1] = "y", "one_and_a_bit"
    x, tied, larger = (np.full((), 1.0, np.float32), *(np.full((1,) * rank, n, np.float32) for n in (1.0, 3.0)))
    assert differs(Case(original, {"x": x, "y": tied}, onnx.TensorProto.FLOAT), rounded) is None
    said = differs(Case(original, {"x": x, "y": larger}, onnx.TensorProto.FLOAT), rounded)
    assert str(said).startswith("'z' is off by 0.99999")


def test_what_onnx_runtime_itself_does_not_run_is_told_from_a_mistake() -> None:
    """A Cast to float32 that it inserts into the branch of an If reads nothing: the plain nodes fail as well."""
    found = tried(1004083)
    assert (found.kind, "InsertedPrecisionFreeCast" in found.text) == (REFUSED_MADE, True)


def test_a_model_that_runs_nowhere_or_gives_something_else_is_a_mistake() -> None:
    """Onnx's reference runs it, to the same values, or it is no proof; nor is it where the plain nodes run."""
    right = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { y = Abs(x) }'
    )
    odd = '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) <int64[1] n = {{3}}> {{ {} }}'
    one = Case(right, {"x": np.array([-1.0, 2.0], np.float32)}, onnx.TensorProto.FLOAT)
    before = [np.array([1.0, 2.0], np.float32)]
    for text in (
        "y = Reshape(x, n)",
        "y = Abs(x)",
        "r = Cast <to = 11> (x) y = Abs(r)",
        "r = Cast <to = 11> (x) y = Neg(r)",
    ):
        assert not by_reference(one, onnx.parser.parse_model(odd.format(text)), before), text
