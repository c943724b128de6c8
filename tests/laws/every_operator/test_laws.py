"""A sample of random graphs of every operator; `make graphs` tries thousands."""

import numpy as np
import onnx
import pytest

import onnxfuse
from tests.laws.every_operator import laws
from tests.laws.every_operator.grow import Grower, RefusedError
from tests.laws.every_operator.laws import QUANTIZED, Case, broken, by_reference, case, differs, tried
from tests.laws.every_operator.workers import REFUSED_MADE


@pytest.mark.parametrize("first", [*range(0, 60, 10), QUANTIZED, QUANTIZED + 10])
def test_a_random_graph_holds_every_law(first: int) -> None:
    """Equal in value and shape, the same when it is optimized again, itself when its fusions are undone."""
    assert {seed: said for seed in range(first, first + 10) if (said := broken(case(seed))) is not None} == {}


@pytest.mark.parametrize("seed", [361, 1612, 7742, 6839, 8404, 9661, 1018880, 2002258, 2002337])
def test_what_random_graphs_have_found_stays_mended(seed: int) -> None:
    """Seven open axes, sampled as large ones, are more elements than 64 bits hold; a Slice may end at 2^63;
    ONNX's own inference stumbles on a MeanVarianceNormalization beside a function, and gives a PRelu in one the shape
    of its input, where ONNX Runtime broadcasts it; a node that is computed a second time has a name of its own;
    constants folded in float64 and rounded once are nearer the truth than the original; float16 rounded before an
    integer product, by nodes that ONNX Runtime computes in float32, may reach another step."""
    assert broken(case(seed)) is None


TIE = """<ir_version: 8, opset_import: ["" : 17]> agraph (float x, float{} y) => (float z)
<float one = {{1.0}}, float two = {{2.0}}, float one_and_a_bit = {{1.0000001}}> {{
    less = Less (x, y)
    z = Where (less, one, two)
}}"""


@pytest.mark.parametrize("rank", [0, 1])
def test_what_a_tie_decides_is_rounding_and_what_none_decides_is_not(rank: int) -> None:
    """x < y of two that are equal may come out either way; x < y of 1 and 2 may not, whatever the rank of inputs."""
    original, rounded = (onnx.parser.parse_model(TIE.format("[1]" * rank)) for _ in range(2))
    rounded.graph.node[0].input[0], rounded.graph.node[0].input[1] = "y", "one_and_a_bit"
    x, tied, larger = (np.full((), 1.0, np.float32), *(np.full((1,) * rank, n, np.float32) for n in (1.0, 3.0)))
    assert differs(Case(original, {"x": x, "y": tied}, onnx.TensorProto.FLOAT), rounded) is None
    said = differs(Case(original, {"x": x, "y": larger}, onnx.TensorProto.FLOAT), rounded)
    assert str(said).startswith("'z' is off by 0.99999")


UNRUN = """<ir_version: 10, opset_import: ["" : 25]> g (float16[n,5,8] x, bool c) => (float16[r,s] y, bool[n,5,8] w)
<float16[1] a = {14336}, float16 b = {14336}> {
  SAME
  z = Sigmoid (v)
  w0 = Mul (v, z)
  w = Less (w0, b)
  y = If (c) <then_branch = t () => (float16[r,s] q) { q0 = Add (v, a)  q1 = Add (q0, b)  q = Flatten <axis = 0> (q1) },
    else_branch = e () => (float16[r,s] p) { p0 = Neg (v)  p = Flatten <axis = 0> (p0) }>
}"""


def test_what_onnx_runtime_itself_does_not_run_is_told_from_a_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Cast to float32 that it inserts into the branch of an If reads nothing, behind a Cast to a wider type."""
    original, optimized = (
        onnx.parser.parse_model(UNRUN.replace("SAME", same))
        for same in ("v = Identity (x)", "u = Cast <to = 11> (x)  v = Cast <to = 10> (u)")
    )
    feeds = {"x": np.ones((2, 5, 8), np.float16), "c": np.array(True)}
    monkeypatch.setattr(laws, "case", lambda seed: Case(original, feeds, onnx.TensorProto.FLOAT16))
    monkeypatch.setattr(onnxfuse, "optimize", lambda model: optimized)
    found = tried(0)
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


@pytest.mark.parametrize("seed", [13194, 15649, 1010055, 1020632, 1022752])
def test_a_graph_is_of_bfloat16_only_where_each_operator_takes_it(seed: int) -> None:
    """Behind an operator that is none of ONNX's the checker knows no types: they are declared for it."""
    assert case(seed).dtype == onnx.TensorProto.FLOAT


CANCELLED = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[1] x) => (float[1] z)
<float[1] one = {1.0}, float[1] tiny = {1e-6}, float[1] far = {1.1e-6}> {
    n = Shape (x)
    a = Cast <to = 1> (n)
    b = Add (a, tiny)
    z = Sub (b, a)
}"""


@pytest.mark.parametrize(("by", "right"), [("tiny", True), ("far", False)])
def test_what_is_nearer_to_float64_is_right_though_no_perturbed_input_shows_it(by: str, *, right: bool) -> None:
    """(1 + 1e-6) - 1 of constants is 9.5e-7 in float32: a folded 1e-6 is nearer the truth, 1.1e-6 is further off."""
    original, folded = (onnx.parser.parse_model(CANCELLED) for _ in range(2))
    del folded.graph.node[:]
    folded.graph.node.append(onnx.helper.make_node("Identity", [by], ["z"]))
    said = differs(Case(original, {"x": np.ones(1, np.float32)}, onnx.TensorProto.FLOAT), folded)
    assert said is None if right else str(said).startswith("'z' is off by")


COUNT = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[1] x, float[1] y) => (float[N] z)
<float[1] one = {1.0}, float[1] a_bit_less = {0.9999999}, float[1] half = {0.5}> {
    u = Mul (x, FACTOR)
    both = Concat <axis = 0> (u, y)
    z = Unique (both)
}"""


@pytest.mark.parametrize(("factor", "rounding"), [("a_bit_less", True), ("half", False)])
def test_how_many_are_unique_is_rounding_where_a_rounding_step_decides_it(factor: str, *, rounding: bool) -> None:
    """1 and 1 - 1e-7 are one number or two; of 1 and 2 no rounding makes one."""
    original, changed = (onnx.parser.parse_model(COUNT.replace("FACTOR", f)) for f in ("one", factor))
    y = 1.0 if rounding else 0.5
    one = Case(original, {"x": np.ones(1, np.float32), "y": np.full(1, y, np.float32)}, onnx.TensorProto.FLOAT)
    said = differs(one, changed)
    assert said is None if rounding else said == "'z' is float32[1], not float32[2]"


def test_a_rounding_step_of_a_small_number_is_the_smallest_number_of_its_type() -> None:
    """Between 0 and 6e-8 float16 has none: a mean that is off by that much is off by a rounding."""
    text = """<ir_version: 8, opset_import: ["" : 17]> agraph (float16[1] x) => (float16[1] y)
      <float16[1] tiny = {STEPS}> { y = Sub (x, tiny) }"""
    original, off, far = (onnx.parser.parse_model(text.replace("STEPS", f"{n}")) for n in (2, 1, 40))
    one = Case(original, {"x": np.full(1, 3 * 2.0**-24, np.float16)}, onnx.TensorProto.FLOAT16)
    assert differs(one, off) is None
    assert differs(one, far) is not None


def test_extents_that_are_counted_by_numbers_are_counted_by_the_same() -> None:
    """No rounding step moves the limit of a Range: [0, 2) in steps of 0.25 are eight numbers, and no ninth."""
    text = """<ir_version: 8, opset_import: ["" : 17]> agraph (float[1] x) => (float[2,4] z)
      <float start = {0}, float limit = {2}, float step = {0.25}, int64[2] shape = {2,4}> {
        r = Range (start, limit, step)
        s = Reshape (r, shape)
        z = Add (s, x)
      }"""
    original, changed = (onnx.parser.parse_model(text) for _ in range(2))
    changed.graph.node[2].op_type = "Sub"
    one = Case(original, {"x": np.full(1, 0.5, np.float32)}, onnx.TensorProto.FLOAT)
    assert str(differs(one, changed)).startswith("'z' is off by")


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceProd", "ReduceL1"])
def test_what_onnx_runtime_makes_of_nothing_by_accident_is_no_case(op: str) -> None:
    """Of no numbers it keeps axes that are counted from the end; a computed extent of 0 copies another."""
    g = Grower(np.random.default_rng(0), onnx.TensorProto.FLOAT, opset=20)
    empty = g.input((2, 0, 8), np.zeros((2, 0, 8), np.float32))
    assert g.found[g.along(op, empty, [1, 2])].shape == (2, 1, 1)
    with pytest.raises(RefusedError):
        g.along(op, empty, [-1, -2])
    with pytest.raises(RefusedError):
        g.add("Reshape", [empty, g.add("Concat", [g.add("Shape", [empty], start=1, end=2), g.ints(-1)], axis=0)])
