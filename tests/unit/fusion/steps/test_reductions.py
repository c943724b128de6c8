"""The mean of an image that others read, too, reads what a product's kernel wrote; else it computes it on its way."""

import pytest

from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from tests.support.small import assert_same_numbers, ops, parse

RULES = [one for one in rule_file.shipped() if one.name in ("gemm", "image_mean", "gate")]
EXCITED = "e = MatMul (squeezed, w) gate = Sigmoid (e) y = Mul (h, gate)"
"""Squeeze and excite: the image is read once more."""
POOLED = "y = Neg (squeezed)"


def net(before: str, after: str, outputs: str = "") -> str:
    """Return the mean of an image of 8 channels that `before` computes as `h`."""
    weights = ", ".join(str(n % 7 - 3) for n in range(64))
    return f"""<ir_version: 8, opset_import: ["" : 18]>
g (float[N,5,6,8] x) => (float[A,B,C,8] y{outputs})
<float[8,8] w = {{{weights}}}, float[8] b = {{1,2,3,4,5,6,7,8}}, int64[2] places = {{1,2}}> {{
  {before}
  squeezed = ReduceMean (h, places)
  {after}
}}"""


PRODUCT = "m = MatMul (x, w) h = Add (m, b)"


@pytest.mark.parametrize(
    ("before", "after", "outputs", "made"),
    [
        (PRODUCT, EXCITED, "", ["{Transpose MatMul Add}", "{ReduceMean}", "{Transpose MatMul Sigmoid}", "{Mul}"]),
        (PRODUCT, POOLED, ", float[N,5,6,8] h", ["{Transpose MatMul Add}", "{ReduceMean Neg}"]),
        (PRODUCT, POOLED, "", ["MatMul", "{Add ReduceMean Neg}"]),
        (
            f"{PRODUCT.replace('h', 'a')} h = Relu (a)",
            EXCITED,
            "",
            ["{Transpose MatMul Add Relu}", "{ReduceMean}", "{Transpose MatMul Sigmoid}", "{Mul}"],
        ),
        ("a = Add (x, b) h = Relu (a)", EXCITED, "", ["{Add Relu ReduceMean}", "{Transpose MatMul Sigmoid}", "{Mul}"]),
    ],
)
def test_who_writes_an_image_that_is_read_again(before: str, after: str, outputs: str, made: list[str]) -> None:
    """Nobody's kernel stands before the last one: then the mean's computes the image, and writes it."""
    text = net(before, after, outputs)
    model = parse(text)
    report = pipeline.run(model, RULES)
    assert ops(model) == made
    assert_same_numbers(parse(text), model)
    told = [stop.reason for one in report.applied for stop in one.stops]
    assert any("which is read elsewhere, too, and which MatMul can write" in text for text in told) == (
        "{Transpose MatMul" in made[0]
    )
