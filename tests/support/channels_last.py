"""Models of images whose operators stand between convolutions, and what is left of them."""

import numpy as np
from onnx import ModelProto

from tests.support.small import ops, optimize, parse


def weights(name: str, *shape: int) -> str:
    """Return a weight as text: numbers of both signs, none of them alike in a row."""
    numbers = (np.arange(np.prod(shape)) * 7 % 11 - 5) / 4
    return f"float[{','.join(map(str, shape))}] {name} = {{{','.join(map(str, numbers))}}}"


def between(middle: str, *, channels: int = 4, extra: str = "", opset: int = 17, tail: str = "C") -> ModelProto:
    """Return a model in which `middle`, from x [N,4,9,8] to y, stands between two convolutions."""
    text = f"""g (float[N,2,10,9] image) => (float[A,B,{tail},D] out)
    <{weights("w", 4, 2, 2, 2)}, {weights("b", 4)}, {weights("v", 3, channels, 1, 1)}{extra}> {{
      x = Conv (image, w, b)
      {middle}
      out = Conv (y, v)
    }}"""
    return parse(text, opset)


def nodes(model: ModelProto) -> list[str]:
    """Return the operators of a model whose convolutions are one op each, Constants left out."""
    made, _ = optimize(model, "nhwc", "nhwc_conv", "nhwc_pool")
    return [o for o in ops(made) if o != "Constant"]


CONV = "{Transpose Transpose Conv Transpose}"


def small_net(opset: int = 17) -> ModelProto:
    return between("r = Relu (x) p = GlobalAveragePool (r) s = Sigmoid (p) m = Mul (r, s) y = Add (m, x)", opset=opset)
