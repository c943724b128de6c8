"""Sizes of a model's values: those that the model computes are followed."""

from tests.unit.measure.profile.test_traffic import counted


def test_shapes_that_the_model_computes_are_followed() -> None:
    """The target of a Reshape from Shape, Slice and Concat: as exporters write it."""
    text = """g (float[B,S,12] x) => (float[U,V,W,T] y)
    <int64[1] zero = {0}, int64[1] two = {2}, int64[2] heads = {3, 4}> {
      s = Shape(x)  bs = Slice(s, zero, two)  target = Concat <axis = 0> (bs, heads)
      r = Reshape(x, target)  t = Transpose <perm = [0, 2, 1, 3]> (r)  y = Relu(t)
    }"""
    work = counted(text, x=(5, 7, 12))
    by_op = {n.op: n.work for n in work.nodes}
    assert by_op["Relu"].bytes == 2 * 4 * 5 * 7 * 12
    assert by_op["Relu"].flops == 5 * 7 * 12
    assert by_op["Transpose"].bytes == 2 * 4 * 5 * 7 * 12
    assert work.notes == ()
