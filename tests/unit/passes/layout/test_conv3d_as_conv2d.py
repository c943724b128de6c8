"""Volumes of few channels: layers of a window become channels of images."""

import pytest

from tests.support.channels_last import weights
from tests.support.small import assert_same_numbers, ops, optimize, parse


@pytest.mark.parametrize(
    ("channels", "kernel", "how", "out"),
    [
        (3, (3, 3, 2), "pads = [1,1,0,1,1,1], strides = [1,2,1], dilations = [1,1,1]", "6,4,5"),
        (1, (2, 1, 3), "pads = [0,0,1,2,0,1], strides = [2,1,1], dilations = [3,1,2]", "3,7,3"),
        (4, (1, 3, 3), "pads = [0,1,1,0,1,1], strides = [1,1,1], dilations = [1,1,1]", "6,7,5"),
    ],
)
def test_layers_of_volumes_with_few_channels_are_channels_of_images(
    channels: int, kernel: tuple[int, int, int], how: str, out: str
) -> None:
    """One movement puts the layers that a window sees beside each other; bias and activation join the convolution."""
    model = parse(f"""g (float[N,{channels},6,7,5] x) => (float[N,8,{out}] y)
    <{weights("w", 8, channels, *kernel)}, {weights("b", 8)}, {weights("v", 8, 8, 1, 1, 1)}> {{
      c = Conv <kernel_shape = {list(kernel)}, {how}> (x, w, b)
      r = Relu (c)
      y = Conv (r, v)
    }}""")
    made, _ = optimize(model)
    found = [o for o in ops(made) if o != "Constant"]
    assert [o for o in found if "Conv" in o] == ["{Transpose Transpose Transpose Conv Transpose Add Relu}"]
    assert sum("Transpose" in o and "MatMul" not in o for o in found) == 3
    assert_same_numbers(model, made)
