"""What the library's attention cannot do stays with the nodes: over the forms that tests/gpu/library_forms.py runs."""

import numpy as np
import onnx
import onnxruntime
import pytest

from onnxfuse.fusion.region.realize import realize
from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.runtime.sessions.ort_ops import with_library_ops
from tests.gpu.library_forms import FORMS, KNOWN, attention
from tests.support.small import assert_same_numbers, optimize

THREADS = 1024
"""Of a block: the kernel that makes heads reads the bias of queries, keys and values unasked in any wider row."""


def op_of(name: str, element: str, size: int, heads: int, length: int) -> FusedOp | None:
    """Return what the rule makes of a form, None where the nodes stay."""
    model = attention(name, element, size, heads, length)
    pipeline.run(model, [r for r in rule_file.shipped() if r.name == "attention"])
    return next(iter(fused_ops(model).values()), None)


def reads_a_bias_that_is_not_there(op: FusedOp, element: str, size: int, length: int) -> bool:
    """Return whether ONNX Runtime 1.31 may take its unfused kernels, and those the one for rows of many vectors."""
    assert op.library is not None
    (node,) = (n for n in op.library.node if n.op_type == "MultiHeadAttention")
    heads = next(int(a.i) for a in node.attribute if a.name == "num_heads")
    if len(node.input) > 3 and node.input[3]:  # zeros
        return False
    masked = len(node.input) > 5 and bool(node.input[5])
    fused = {
        "float16": size % 8 == 0 and size <= 1024 and not (masked and (length == 0 or length % 8)),
        "bfloat16": size % 8 == 0 and size <= 256 and not masked,  # else for long sequences alone, as of float32
        "float": False,
    }[element]
    vector = next(v for v in ((2, 1) if element == "bfloat16" else (4, 2, 1)) if size % v == 0)
    return not fused and heads * size // vector > THREADS


WIDTHS = [
    (49, 24),
    (49, 6),
    (784, 6),
    (72, 24),
    (1024, 4),
    (264, 8),
    (512, 8),
    (1032, 1),
    (3136, 3),
    (128, 40),
    (64, 12),
]
"""Size and number of heads: those of attention over channels, and wide models."""


@pytest.mark.parametrize("element", ["float16", "bfloat16", "float"])
@pytest.mark.parametrize("name", FORMS)
def test_no_form_reads_a_bias_that_is_not_there(name: str, element: str) -> None:
    """Whatever the size, the number of heads and the length: the library's op runs where it can, or the nodes do."""
    lengths = (64, 77) if name in KNOWN else (0, 64)
    for size, heads in WIDTHS:
        for length in lengths:
            op = op_of(name, element, size, heads, length)
            if op is not None and op.library is not None:
                assert not reads_a_bias_that_is_not_there(op, element, size, length), (size, heads, length)


@pytest.mark.parametrize("name", [name for name in FORMS if name != "windows"])  # of few sizes alone
def test_usual_heads_are_the_librarys(name: str) -> None:
    """Of BERT and ViT, GPT-2, and LLaMA's where the type or the length allows it."""
    fixed, odd = 77 if name in KNOWN else 0, () if "op" in name.split() else ((49, 4),)
    for size, heads in ((64, 12), (64, 16), (80, 12), (128, 32), (256, 8), (24, 4), *odd):
        op = op_of(name, "float16", size, heads, fixed)
        assert op is not None, (size, heads)
        assert op.library is not None


MASKED = ("mask by key", "two masks", "finite mask", "safe mask", "chosen", "safe chosen", "op mask", "op chosen")


@pytest.mark.parametrize(
    "name", ["plain", "crossed", "past", "few heads", "op", "op causal", "flat op", "flat op causal"]
)
def test_wide_heads_of_bfloat16_are_the_librarys_up_to_256(name: str) -> None:
    """As far as its flash attention goes; wider ones as long as all heads are at most 2048 wide.

    Those of ONNX's own op stay: it does not round the scores.
    """
    own = "op" in name.split()
    for size, heads, expected in ((256, 16, True), (128, 40, True), (264, 4, not own), (264, 8, False)):
        assert (op_of(name, "bfloat16", size, heads, 0) is not None) == expected, (size, heads)


OWN = [name for name in FORMS if "op" in name.split()]
"""ONNX's own op."""


@pytest.mark.parametrize("name", OWN)
def test_what_the_library_rounds_stays_onnxs_own_op(name: str) -> None:
    """Where it has no fused kernel of its own it rounds the scores to 16 bits, and float32 to TF32."""
    masked = name.endswith(("mask", "chosen"))
    for element, size, heads in (("float16", 7, 24), ("bfloat16", 1, 24), ("float", 784, 4), ("float", 40, 24)):
        assert op_of(name, element, size, heads, 0) is None, (element, size)
    for size in (264, 1024):
        assert (op_of(name, "float16", size, 4, 0) is None) == masked, size
    model, _ = optimize(attention(name, "float", 64, 12), "attention")
    found = realize(model, fused_ops(model))
    assert bool(found) == (not name.endswith("chosen"))  # a kernel's
    assert not any(made.runs for made in found.values())


@pytest.mark.parametrize("name", MASKED)
def test_wide_heads_with_a_mask_get_zeros_to_read(name: str) -> None:
    """Only those: the other kernels of the op pay for them. As many as queries, keys and values are wide."""
    for element, size, heads, length, zeros in (
        ("float16", 128, 32, 0, False), ("float16", 128, 40, 0, True), ("float16", 128, 40, 64, False),
        ("bfloat16", 128, 16, 0, False), ("bfloat16", 128, 32, 0, True), ("bfloat16", 128, 32, 77, True),
        ("bfloat16", 128, 32, 64, True),
    ):  # fmt: skip
        op = op_of(name, element, size, heads, length)
        assert op is not None
        assert op.library is not None
        (node,) = (n for n in op.library.node if n.op_type == "MultiHeadAttention")
        assert bool(node.input[3]) == zeros, (element, heads, length)
        if zeros:
            numbers = [
                list(n.attribute[0].t.int64_data) or list(np.frombuffer(n.attribute[0].t.raw_data, np.int64))
                for n in op.library.node
                if n.op_type == "Constant" and n.attribute[0].t.data_type == 7
            ]
            assert [3 * size * heads] in numbers


@pytest.mark.parametrize("name", ["mask by key", "two masks"])
def test_zeros_change_nothing(name: str) -> None:
    """ONNX Runtime's op computes the same with them, on the CPU in float32."""
    model = attention(name, "float", 520, 4)
    made, _ = optimize(model, "attention")
    opened = with_library_ops(made, onnxruntime.SessionOptions(), fused_ops(made))
    (node,) = (n for n in opened.graph.node if n.op_type == "MultiHeadAttention")
    assert node.input[3]
    assert_same_numbers(model, opened, folded=True)


@pytest.mark.parametrize(
    ("element", "size", "heads", "told"),
    [
        ("float16", 49, 24, "H * D is 1176"),
        ("float16", 3136, 3, "D is 3136; the rule wants H * D <= 1024 or D <= 1024"),
        ("bfloat16", 1024, 4, "and dtype(qh) is bfloat16; the rule wants H * D <= 2048 or D <= 256 or"),
    ],
)
def test_the_reason_is_told(element: str, size: int, heads: int, told: str) -> None:
    """As of every refusal, with the numbers of the model."""
    model = attention("plain", element, size, heads)
    report = pipeline.run(model, [r for r in rule_file.shipped() if r.name == "attention"])
    assert any(told in near.refusal.reason for near in report.near)
    onnx.checker.check_model(model, full_check=True)
