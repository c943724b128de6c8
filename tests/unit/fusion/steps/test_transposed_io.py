"""The Transpose before or after a product or rows, and the Reshape beside it, are how the kernel reads or writes."""

import pytest

from onnxfuse.fusion.region.choices import Choices
from onnxfuse.passes import pipeline
from tests.support.small import assert_same_numbers, ops, parse

WEIGHTS = (
    "float16[8,8] w = {WEIGHT}, float16[8,8] v = {WEIGHT}, float16[8] b = {BIAS}, int64[4] s = {0, 0, 2, 4}".replace(
        "WEIGHT", ",".join(str(15360 + i % 13) for i in range(64))
    ).replace("BIAS", ",".join(["15360"] * 8))
)  # the bits of float16; 15360 is 1


def graph(outputs: str, nodes: str, weights: str = WEIGHTS) -> str:
    return f'<ir_version: 8, opset_import: ["" : 20]> g (float16[N,3,8] x) => ({outputs}) <{weights}> {{ {nodes} }}'


HEADS = graph(
    "float16[N,2,3,4] y",
    "m = MatMul (x, w) a = Add (m, b) r = Reshape (a, s) y = Transpose <perm = [0, 2, 1, 3]> (r)",
)


def fused(text: str, choices: Choices | None = None) -> list[str]:
    """Return the operators that are left of a model whose numbers stay the same."""
    model, before = parse(text), parse(text)
    pipeline.run(model, choices=choices)
    assert_same_numbers(before, model)
    return ops(model)


def test_heads_are_written_apart() -> None:
    assert fused(HEADS) == ["{MatMul Add Reshape Transpose}"]


def test_each_product_of_one_input_is_written_in_its_way() -> None:
    """Queries by head; keys by head and turned over; values as they are."""
    nodes = """m = MatMul (x, w) a = Add (m, b) r = Reshape (a, s) y = Transpose <perm = [0, 2, 1, 3]> (r)
      n = MatMul (x, v) c = Add (n, b) q = Reshape (c, s) z = Transpose <perm = [0, 2, 3, 1]> (q)
      o = MatMul (x, w) t = Add (o, b)"""
    outputs = "float16[N,2,3,4] y, float16[N,2,4,3] z, float16[N,3,8] t"
    (one,) = fused(graph(outputs, nodes), Choices())
    assert one.count("Transpose") == one.count("Reshape") == 2


def test_what_moves_the_last_axis_stays_unless_measuring_decides() -> None:
    text = HEADS.replace("[0, 2, 1, 3]", "[0, 2, 3, 1]").replace("N,2,3,4", "N,2,4,3")
    assert fused(text)[0] == "{MatMul Add}"
    assert fused(text, Choices()) == ["{MatMul Add Reshape Transpose}"]


def test_a_transpose_needs_no_reshape() -> None:
    nodes = "m = MatMul (x, w) y = Transpose <perm = [1, 0, 2]> (m)"
    assert fused(graph("float16[3,N,8] y", nodes)) == ["{MatMul Transpose}"]


def test_what_a_product_reads_as_it_stands_is_left_to_it() -> None:
    """ONNX Runtime's product takes a matrix turned over: a Transpose for it alone costs nothing."""
    nodes = "m = MatMul (x, w) a = Add (m, b) t = Transpose <perm = [0, 2, 1]> (a) y = MatMul (t, x)"
    assert fused(graph("float16[N,8,8] y", nodes)) == ["{MatMul Add}", "Transpose", "MatMul"]


BIASED = "m = MatMul (x, w) a = Add (m, b)"


@pytest.mark.parametrize(
    "text",
    [
        # The sum is read as it is, too.
        HEADS.replace("[N,2,3,4] y", "[N,2,3,4] y, float16[N,3,8] a"),
        # A Reshape alone launches nothing.
        graph("float16[N,3,2,4] y", f"{BIASED} y = Reshape (a, s)"),
        # It cuts across rows and columns.
        HEADS.replace("{0, 0, 2, 4}", "{0, 4, 2, 3}").replace("N,2,3,4", "N,2,4,3"),
    ],
)
def test_what_the_kernel_cannot_write_or_need_not_stays_behind_it(text: str) -> None:
    assert fused(text)[0] == "{MatMul Add}"


# ---- rows

NORM = ", ".join(["1"] * 16)
ROWS = (
    '<ir_version: 8, opset_import: ["" : 20]> g (float[N,6,4,CHANNELS] x) => (OUTPUTS) '
    f"<float[16] w = {{{NORM}}}> {{ NODES }}"
)


def rows(nodes: str, outputs: str = "float[N,4,6,16] y", channels: int = 16) -> list[str]:
    text = ROWS.replace("CHANNELS", str(channels)).replace("OUTPUTS", outputs).replace("NODES", nodes)
    return fused(text)


def test_rows_are_read_and_written_in_runs() -> None:
    turned = "t = Transpose <perm = [0, 2, 1, 3]> (x) y = LayerNormalization (t, w)"
    assert rows(turned) == ["{Transpose LayerNormalization}"]
    nodes = "n = LayerNormalization (x, w) y = Transpose <perm = [0, 2, 1, 3]> (n)"
    assert rows(nodes) == ["{LayerNormalization Transpose}"]
    # With the sum before the norm as it is.
    nodes = "s = Add (x, x) n = LayerNormalization (s, w) y = Transpose <perm = [0, 2, 1, 3]> (n)"
    assert rows(nodes, "float[N,6,4,16] s, float[N,4,6,16] y") == ["{Add LayerNormalization Transpose}"]


@pytest.mark.parametrize(
    ("nodes", "outputs", "channels", "left"),
    [
        # The last axis moves: neighbours would not stay neighbours.
        (
            "n = Softmax (x) y = Transpose <perm = [0, 3, 2, 1]> (n)",
            "float[N,16,4,6] y",
            16,
            ["{Softmax}", "Transpose"],
        ),
        # Runs of 4 float32 are half a sector.
        ("n = Softmax (x) y = Transpose <perm = [0, 2, 1, 3]> (n)", "float[N,4,6,4] y", 4, ["{Softmax}", "Transpose"]),
        # What is turned is an output, too.
        (
            "t = Transpose <perm = [0, 2, 1, 3]> (x) y = Softmax (t)",
            "float[N,4,6,16] t, float[N,4,6,16] y",
            16,
            ["Transpose", "{Softmax}"],
        ),
    ],
)
def test_rows_are_not_moved_in_pieces_or_twice(nodes: str, outputs: str, channels: int, left: list[str]) -> None:
    assert rows(nodes, outputs, channels) == left
