"""Bytes and operations, counted by hand and by `count`: fused ops, whole models before and after."""

import onnx

import onnxfuse
from onnxfuse.measure.profile.traffic import ModelTraffic, NodeTraffic, count, pairs, removed, rows

HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


def parsed(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f"{HEAD} {text}")


def counted(text: str, **shapes: tuple[int, ...]) -> ModelTraffic:
    return count(parsed(text), shapes)


WEIGHTS = {n: ", ".join(["0.5"] * n) for n in (64 * 32, 32)}

MLP = f"""g (float[B,64] x, float[B,32] r) => (float[B,32] y)
<float[64,32] w = {{{WEIGHTS[64 * 32]}}}, float[32] b = {{{WEIGHTS[32]}}}, float[32] scale = {{{WEIGHTS[32]}}}> {{
  [product] m = MatMul(x, w)
  [bias] h = Add(m, b)
  [act] a = Relu(h)
  [residual] s = Add(a, r)
  [norm] y = LayerNormalization(s, scale)
}}"""


def test_a_fused_op_reads_its_inputs_once_and_writes_its_outputs_once() -> None:
    """What is between its nodes is neither written nor read: B x 32 floats each, for three of the four values."""
    before = counted(MLP, x=(8, 64), r=(8, 32))
    after = count(onnxfuse.optimize(parsed(MLP)), {"x": (8, 64), "r": (8, 32)})
    matrix, vector = 4 * 8 * 32, 4 * 32
    product = 4 * (8 * 64 + 64 * 32) + matrix
    # before: Add reads two and writes one, Relu 1 + 1, Add 2 + 1, LayerNormalization 1 + 1 and its scale.
    assert before.bytes == product + (2 * matrix + vector) + 2 * matrix + 3 * matrix + (2 * matrix + vector)
    fused = [n for n in after.nodes if n.nodes]
    of_product = 2 * 8 * 64 * 32
    assert [n.work.flops for n in fused] == [of_product, before.flops - of_product], (
        "the body computes what the nodes did"
    )
    assert after.bytes == product + (matrix + vector) + matrix + vector + matrix
    gone = removed(before, after)
    assert (gone.count, gone.of, gone.bytes) == (3, 4, 3 * matrix)
    assert after.flops == before.flops


def test_rows_name_what_stands_in_whose_place() -> None:
    """One row per kind, the most traffic first, sums equal to the model's; one by one, under the nodes' names."""
    before = counted(MLP, x=(8, 64), r=(8, 32))
    after = count(onnxfuse.optimize(parsed(MLP)), {"x": (8, 64), "r": (8, 32)})
    found = rows(pairs(before, after))
    assert sum(r.bytes_before for r in found) == before.bytes
    assert sum(r.bytes_after for r in found) == after.bytes
    assert [r.after.partition(":")[0] for r in found] == ["plain_product", "layer_norm"]
    assert found[1].after == "layer_norm: Add + Relu + Add + LayerNormalization"
    single = rows(pairs(before, after), one_by_one=True)
    assert single[0].after == "product (plain_product: Transpose + MatMul)"


def test_a_node_that_nothing_stands_for_is_a_row_with_nothing_after() -> None:
    """Folded away: its bytes are saved."""
    relu, neg = (
        NodeTraffic(name, op, op, (), counted(f"g (float[4] x) => (float[4] y) {{ y = {op}(x) }}").nodes[0].work)
        for name, op in (("a", "Relu"), ("b", "Neg"))
    )
    found = rows(pairs(ModelTraffic((relu, neg), {}), ModelTraffic((relu,), {})))
    assert [(r.after, r.before, r.bytes_before, r.bytes_after) for r in found] == [
        ("Relu", "", 32, 32), ("", "Neg", 32, 0)
    ]  # fmt: skip


def test_nothing_of_ours_is_left_uncounted() -> None:
    """A fused op's own nodes are never reported as unknown operators."""
    after = count(onnxfuse.optimize(parsed(MLP)), {"x": (8, 64), "r": (8, 32)})
    assert after.notes == ()
