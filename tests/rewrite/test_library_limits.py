"""What the library's attention cannot do stays with the nodes: over the forms that tests/gpu/library_forms.py runs."""

import onnx
import pytest

from onnxfuse.model.fused import FusedOp, fused_ops
from onnxfuse.rewrite import pipeline, rule
from tests.gpu.library_forms import FORMS, attention

THREADS = 1024
"""Of a block: the kernel that makes heads reads the bias of queries, keys and values unasked in any wider row."""


def op_of(name: str, element: str, size: int, heads: int, length: int) -> FusedOp | None:
    """Return what the rule makes of a form, None where the nodes stay."""
    model = attention(name, element, size, heads, length)
    pipeline.run(model, [r for r in rule.shipped() if r.name == "attention"])
    return next(iter(fused_ops(model).values()), None)


def reads_a_bias_that_is_not_there(op: FusedOp, element: str, size: int, length: int) -> bool:
    """Return whether ONNX Runtime 1.31 may take its unfused kernels, and those the one for rows of many vectors."""
    assert op.library is not None
    (node,) = (n for n in op.library.node if n.op_type == "MultiHeadAttention")
    heads = next(int(a.i) for a in node.attribute if a.name == "num_heads")
    masked = len(node.input) > 5 and bool(node.input[5])
    fused = size % 8 == 0 and size <= 1024 and not (masked and (length == 0 or length % 8))
    vector = next(v for v in ((4, 2, 1) if element == "float16" else (2, 1)) if size % v == 0)
    return not fused and heads * size // vector > THREADS


WIDTHS = [(49, 24), (49, 6), (784, 6), (72, 24), (1024, 4), (1032, 1), (3136, 3), (128, 40), (64, 12)]
"""Size and number of heads: those of attention over channels, and wide models."""


@pytest.mark.parametrize("element", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
def test_no_form_reads_a_bias_that_is_not_there(name: str, element: str) -> None:
    """Whatever the size, the number of heads and the length: the library's op runs where it can, or the nodes do."""
    lengths = (64, 77) if name == "packed" else (0, 64)
    for size, heads in WIDTHS:
        for length in lengths:
            op = op_of(name, element, size, heads, length)
            if op is not None:
                assert not reads_a_bias_that_is_not_there(op, element, size, length), (size, heads, length)


@pytest.mark.parametrize("name", FORMS)
def test_usual_heads_are_the_librarys(name: str) -> None:
    """Of BERT and ViT, GPT-2, and LLaMA's where the type or the length allows it."""
    fixed = 77 if name == "packed" else 0
    for size, heads in ((64, 12), (64, 16), (80, 12), (128, 32), (256, 8), (24, 4), (49, 4)):
        op = op_of(name, "float16", size, heads, fixed)
        assert op is not None, (size, heads)
        assert op.library is not None


@pytest.mark.parametrize(
    ("size", "heads", "told"),
    [
        (49, 24, "dim(qh, 1) * dim(qh, 3) is 1176"),
        (3136, 3, "dim(qh, 3) is 3136; the rule wants dim(qh, 3) <= 1024"),
    ],
)
def test_the_reason_is_told(size: int, heads: int, told: str) -> None:
    """As of every refusal, with the numbers of the model."""
    model = attention("plain", "float16", size, heads)
    report = pipeline.run(model, [r for r in rule.shipped() if r.name == "attention"])
    assert any(told in near.refusal.reason for near in report.near)
    onnx.checker.check_model(model, full_check=True)
