"""Which data movement joins a kernel, which stays with the library, and that nothing is lost on the way."""

import pytest

from onnxfuse.model.fused import DOMAIN
from onnxfuse.passes import pipeline
from tests.support.small import assert_same_numbers, fuses, ops, optimize, parse, reasons

CUTS = (
    "int64[1] zero = {0}, int64[1] half = {4}, int64[1] end = {9223372036854775807}, int64[1] last = {-1}, "
    "int64[1] one = {1}, int64[1] two = {2}"
)

# ---- idioms


def test_rope_of_a_projection_is_one_kernel() -> None:
    """Bias, heads and rotation: the projection is read once, what the attention wants is written once."""
    bias = ", ".join(str(i - 7) for i in range(16))
    # Terms that are no multiple of 8 leave the product to the library.
    text = f"""g (float[N,S,12] x, float[S,8] cos, float[S,8] sin) => (float[N,2,S,8] y)
    <{CUTS}, {_weights("w", 12, 16)}, float[16] b = {{{bias}}}, int64[4] heads = {{0,0,2,8}}> {{
      m = MatMul (x, w) p = Add (m, b)
      r = Reshape (p, heads) t = Transpose <perm = [0,2,1,3]> (r)
      c = Mul (t, cos)
      left = Slice (t, zero, half, last) right = Slice (t, half, end, last)
      minus = Neg (right) turned = Concat <axis = -1> (minus, left)
      s = Mul (turned, sin) y = Add (c, s)
    }}"""
    assert fuses(text) == ["MatMul", "{Add Reshape Transpose Mul Slice Slice Neg Concat Mul Add}"]


def _weights(name: str, rows: int, columns: int) -> str:
    numbers = ",".join(str((7 * i) % 5 - 2) for i in range(rows * columns))
    return f"float[{rows},{columns}] {name} = {{{numbers}}}"


@pytest.mark.parametrize("first", ["gate", "up"])
def test_gated_linear_units_are_one_kernel(first: str) -> None:
    """SwiGLU and GEGLU, whichever half is the gate."""
    names = "gate, up" if first == "gate" else "up, gate"
    text = f"""g (float[N,S,16] x) => (float[N,S,8] y) {{
      {names} = Split <axis = -1, num_outputs = 2> (x) a = Gelu (gate) y = Mul (a, up) }}"""
    assert fuses(text, opset=20) == ["{Split Gelu Mul}"]


def test_window_reverse_with_its_residual_is_one_kernel() -> None:
    """Windows back to a picture, rolled back, added to what came before."""
    text = f"""g (float[M,4,6] x, float[N,4,4,6] r) => (float[N,4,4,6] y)
    <{CUTS}, int64[6] windows = {{-1,2,2,2,2,6}}, int64[4] whole = {{-1,4,4,6}}> {{
      v = Reshape (x, windows) t = Transpose <perm = [0,1,3,2,4,5]> (v) p = Reshape (t, whole)
      a = Slice (p, last, end, one) b = Slice (p, zero, last, one) c = Concat <axis = 1> (a, b)
      d = Slice (c, last, end, two) e = Slice (c, zero, last, two) f = Concat <axis = 2> (d, e)
      y = Add (r, f)
    }}"""
    made, _ = optimize(parse(text), "movement")
    assert ops(made) == ["Reshape", "{Transpose Reshape Slice Slice Concat Slice Slice Concat Add}"]


def test_heads_of_a_packed_projection_are_one_kernel_with_three_outputs() -> None:
    """Bias, Split and the transposes of Q, K and V: one read, three writes."""
    text = """g (float[N,S,24] x) => (float[N,2,S,4] q, float[N,2,S,4] k, float[N,2,S,4] v)
    <float[24] b = {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24}, int64[4] heads = {0,0,2,4}> {
      a = Add (x, b) q3, k3, v3 = Split <axis = -1, num_outputs = 3> (a)
      q4 = Reshape (q3, heads) q = Transpose <perm = [0,2,1,3]> (q4)
      k4 = Reshape (k3, heads) k = Transpose <perm = [0,2,1,3]> (k4)
      v4 = Reshape (v3, heads) v = Transpose <perm = [0,2,1,3]> (v4)
    }"""
    made, _ = optimize(parse(text, 18), "movement")
    (fused,) = [n for n in made.graph.node if n.domain == DOMAIN]
    assert len(fused.output) == 3
    assert_same_numbers(parse(text, 18), made)


def test_a_neck_of_a_detector_is_one_kernel() -> None:
    """Nearest Resize beside a skip connection, the activation after it."""
    text = """g (float[N,3,4,4] x, float[N,5,8,8] skip) => (float[N,8,8,8] y) <float[4] scales = {1,1,2,2}> {
      u = Resize (x, , scales) c = Concat <axis = 1> (u, skip) y = Relu (c) }"""
    assert fuses(text) == ["{Resize Concat Relu}"]


def test_pixel_shuffle_takes_its_activation() -> None:
    text = """g (float[N,8,4,4] x) => (float[N,2,8,8] y) {
      a = Relu (x) d = DepthToSpace <blocksize = 2> (a) y = Tanh (d) }"""
    assert fuses(text) == ["{Relu DepthToSpace Tanh}"]


# ---- what stays with the library


@pytest.mark.parametrize(
    "node",
    [
        "y = Transpose <perm = [0,2,1]> (x)",
        "a = Reshape (x, shape) y = Transpose <perm = [0,2,1]> (a)",
        "y = Slice (x, zero, half, last)",
        "a = Concat <axis = 2> (x, x) y = MatMul (x, a)",
        "a = Squeeze (x) y = Unsqueeze (a, zero)",
    ],
)  # fmt: skip
def test_a_movement_alone_is_the_librarys(node: str) -> None:
    """It copies as fast as a kernel of ours would; what launches nothing is no reason to fuse."""
    made, report = optimize(
        parse(f"g (float[N,8,8] x) => (float[A,B,C] y) <{CUTS}, int64[3] shape = {{0,8,8}}> {{ {node} }}")
    )
    assert not report.applied
    assert not any(n.domain == DOMAIN for n in made.graph.node)


def test_two_movements_merge() -> None:
    """One pass in place of two."""
    text = f"""g (float[N,8,8] x) => (float[N,4,8] y) <{CUTS}> {{
      t = Transpose <perm = [0,2,1]> (x) y = Slice (t, zero, half, one) }}"""
    assert fuses(text) == ["{Transpose Slice}"]


def test_keys_are_turned_over_by_the_product() -> None:
    """ONNX Runtime's product reads a transposed factor as it stands: a kernel would save nothing."""
    text = """g (float[N,4,8] x, float[N,4,8] q) => (float[N,4,4] y) {
      a = Relu (x) t = Transpose <perm = [0,2,1]> (a) y = MatMul (q, t) }"""
    made, _ = optimize(parse(text))
    assert ops(made) == ["Relu", "Transpose", "MatMul"]


def test_costly_work_is_not_done_twice() -> None:
    """Each element of an Expand, or of a Resize, would be computed again."""
    text = """g (float[N,4,8,8] x) => (float[N,4,32,32] y) <float[4] scales = {1,1,4,4}> {
      a = Erf (x) b = Sin (a) y = Resize (b, , scales) }"""
    made, report = optimize(parse(text))
    assert ops(made) == ["{Erf Sin}", "{Resize}"]
    assert "in the kernel it costs" in str([n.refusal for n in report.near])


def test_a_target_computed_at_run_time_stops_growth() -> None:
    text = """g (float[N,8,8] x, int64[3] shape) => (float[A,B,C] y) {
      a = Reshape (x, shape) t = Transpose (a) y = Relu (t) }"""
    made, report = optimize(parse(text))
    assert ops(made) == ["Reshape", "{Transpose Relu}"]
    assert "'shape' is computed at run time" in str(report.applied[0].stops)


# ---- nothing is lost


def test_values_of_two_shapes_are_not_one_kernel() -> None:
    """The sum is read in its own order too: it is computed before, and the transpose stays outside."""
    text = """g (float[N,4,8] x, float[N,4,8] r) => (float[N,8,4] y, float[N,4,8] s) {
      s = Add (x, r) t = Transpose <perm = [0,2,1]> (s) y = Relu (t) }"""
    made, report = optimize(parse(text))
    assert ops(made) == ["Add", "{Transpose Relu}"]
    assert "one kernel runs over one shape" in str(report.applied[0].stops)
    assert_same_numbers(parse(text), made)


def test_a_moved_value_that_is_read_outside_is_an_output() -> None:
    text = """g (float[N,4,8] x) => (float[N,8,4] y, float[N,8,4] t) {
      t = Transpose <perm = [0,2,1]> (x) y = Relu (t) }"""
    made, _ = optimize(parse(text))
    assert ops(made) == ["{Transpose Relu}"]
    assert_same_numbers(parse(text), made)


def test_a_region_does_not_depend_on_itself() -> None:
    text = """g (float[N,8,8] x) => (float[N,8,8] y) {
      t = Transpose <perm = [0,2,1]> (x) a = Relu (t) m = MatMul (a, a) y = Add (m, t) }"""
    made, _ = optimize(parse(text))
    assert_same_numbers(parse(text), made)


def test_the_same_model_gives_the_same_bytes_and_comes_out_as_it_went_in() -> None:
    """Deterministic and idempotent, as everything is."""
    text = f"""g (float[N,8,8] x) => (float[N,4,8] y) <{CUTS}> {{
      t = Transpose <perm = [0,2,1]> (x) s = Slice (t, zero, half, one) y = Relu (s) }}"""
    once, _ = optimize(parse(text))
    again, _ = optimize(parse(text))
    assert once.SerializeToString(deterministic=True) == again.SerializeToString(deterministic=True)
    before = once.SerializeToString(deterministic=True)
    pipeline.run(once)
    assert once.SerializeToString(deterministic=True) == before


# ---- targets


def test_a_target_that_is_known_becomes_a_constant() -> None:
    """[batch, sequence, 8] as [batch, sequence, 2, 4], spelled by extents that are asked for."""
    text = """g (float[N,S,8] x) => (float[N,2,S,4] y) <int64 i = {0}, int64 j = {1}, int64[1] front = {0},
     int64[1] h = {2}, int64[1] w = {4}> {
      sh = Shape (x) n = Gather (sh, i) s = Gather (sh, j) n1 = Unsqueeze (n, front) s1 = Unsqueeze (s, front)
      to = Concat <axis = 0> (n1, s1, h, w) a = Relu (x) r = Reshape (a, to)
      y = Transpose <perm = [0,2,1,3]> (r) }"""
    made, _ = optimize(parse(text))
    assert ops(made) == ["{Relu Reshape Transpose}"]
    assert_same_numbers(parse(text), made)


def test_a_target_keeps_the_names_that_it_tells() -> None:
    """An exporter baked the length of its example into one of two places: what is left then would have no name."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[s,b,64] x) => (y) <int64[1] one = {1}, int64[1] four = {4}, int64[1] sixteen = {16}> {
      size = Shape (x)  batch = Gather (size, one)  heads = Mul (batch, four)
      shape = Concat <axis = 0> (sixteen, heads, sixteen)
      r = Reshape (x, shape)  y = Transpose <perm = [1,0,2]> (r)
    }"""
    made = parse(text)
    pipeline.run(made, [])
    assert [n.op_type for n in made.graph.node].count("Concat") == 1


def test_a_target_that_might_meet_an_empty_batch_stays() -> None:
    """[batch * sequence, 8] as [batch, sequence, 8]: what is left over is not defined where there is no batch."""
    text = """g (float[N,S,8] x) => (float[A,B,8] y) <int64 i = {0}, int64 j = {1}, int64[1] front = {0},
     int64[1] w = {8}, int64[2] flat = {-1,8}> {
      sh = Shape (x) n = Gather (sh, i) s = Gather (sh, j) n1 = Unsqueeze (n, front) s1 = Unsqueeze (s, front)
      f = Reshape (x, flat) to = Concat <axis = 0> (n1, s1, w) y = Reshape (f, to) }"""
    made, _ = optimize(parse(text))
    assert "Concat" in ops(made)
    assert_same_numbers(parse(text), made)


def test_reasons_name_the_costs() -> None:
    text = "g (float[N,1] x) => (float[N,640] y) <int64[2] shape = {1,640}> { a = Erf (x) y = Expand (a, shape) }"
    assert "MB of traffic" in reasons(text, "movement")


def test_a_transpose_of_one_axis_is_no_matrix() -> None:
    """It changes nothing, and stands in models all the same."""
    text = "g (float[N] x) => (float[N] y) { a = Relu (x) t = Transpose <perm = [0]> (a) y = Neg (t) }"
    made, _ = optimize(parse(text))
    assert_same_numbers(parse(text), made)


GATED = """g (float[N,8,8,32] x) => (float[N,8,8,16] y, float[N,1,1,16] m)
<int64[1] zero = {0}, int64[1] half = {16}, int64[1] end = {32}, int64[1] last = {3}> {
  a = Slice (x, zero, half, last) b = Slice (x, half, end, last) y = Mul (a, b)
  m = ReduceMean <axes = [1,2]> (y) }"""


def test_a_gate_of_halves_is_a_kernel_before_the_mean_that_reads_it() -> None:
    """In the kernel of the mean each half would be a copy; of two operands one, too."""
    assert fuses(GATED) == ["{Slice Slice Mul}", "{ReduceMean}"]
    one = (
        GATED.replace("(a, b)", "(a, z)")
        .replace("b = Slice (x, half, end, last)", "")
        .replace("32] x", "32] x, float[N,8,8,16] z")
    )
    assert fuses(one) == ["{Slice Mul}", "{ReduceMean}"]


def test_a_half_that_the_mean_alone_reads_is_copied() -> None:
    """The gate then would be written and read for it: as much as the copy."""
    text = GATED.replace("(float[N,8,8,16] y, ", "(").replace("y = Mul (a, b)", "y = Mul (a, z)")
    text = text.replace("b = Slice (x, half, end, last)", "").replace("32] x", "32] x, float[N,8,8,16] z")
    assert "Mul ReduceMean" in " ".join(fuses(text))
