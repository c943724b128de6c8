"""ResNet: folding changes the graph and not the numbers, and torch computes the same."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

import models
from tests.models import small


def test_folding_leaves_only_the_convolutions() -> None:
    """`folded` computes the same without any BatchNormalization."""
    plain, feeds = small.build("resnet50"), small.inputs("resnet50")
    folded = models.build("resnet50", folded=True, **small.SIZES["resnet50"])
    ops = Counter(node.op_type for node in plain.graph.node)
    assert ops["BatchNormalization"] == ops["Conv"] > 0
    assert Counter(node.op_type for node in folded.graph.node) == ops - Counter(BatchNormalization=ops["Conv"])
    expected = small.run(plain, feeds)[0]
    # Ten rounded layers, each 6e-8 of the largest value, some of them summed over hundreds of terms.
    np.testing.assert_allclose(small.run(folded, feeds)[0], expected, atol=1e-5 * np.abs(expected).max())


def test_torch_agrees() -> None:
    """The same weights through torch's conv2d and batch_norm, block by block, give the same logits."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    functional = torch.nn.functional
    model, feeds = small.build("resnet50"), small.inputs("resnet50")
    weights = {name: torch.from_numpy(values) for name, values in small.parameters(model).items()}

    def conv_norm(conv: str, norm: str, x: Any, stride: int = 1) -> Any:
        kernel = weights[f"{conv}.weight"]
        y = functional.conv2d(x, kernel, stride=stride, padding=kernel.shape[-1] // 2)
        parts = ("running_mean", "running_var", "weight", "bias")
        return functional.batch_norm(y, *(weights[f"{norm}.{part}"] for part in parts))

    x = conv_norm("conv1", "bn1", torch.from_numpy(feeds["image"]), stride=2).relu()
    x = functional.max_pool2d(x, 3, 2, 1)
    for stage, blocks in enumerate(small.SIZES["resnet50"]["stages"], start=1):
        for i in range(blocks):
            block, stride = f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1
            y = conv_norm(f"{block}.conv1", f"{block}.bn1", x).relu()
            y = conv_norm(f"{block}.conv2", f"{block}.bn2", y, stride).relu()
            y = conv_norm(f"{block}.conv3", f"{block}.bn3", y)
            if i == 0:
                x = conv_norm(f"{block}.downsample.0", f"{block}.downsample.1", x, stride)
            x = (x + y).relu()
    expected = functional.linear(x.mean((2, 3)), weights["fc.weight"], weights["fc.bias"]).numpy()
    np.testing.assert_allclose(small.run(model, feeds)[0], expected, atol=1e-5 * np.abs(expected).max())
