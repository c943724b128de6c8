"""The convolution nets are torchvision's: its modules take the weights by name, and give the same logits."""

from typing import Any

import numpy as np
import pytest

from models.efficientnet import EXPANSIONS, KERNELS, STRIDES
from tests.models import small

torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")


def assert_agrees(name: str, module: Any) -> None:
    """`module` with the small model's weights, all of them and no other, gives its logits."""
    model, feeds = small.build(name), small.inputs(name)
    weights = {key: torch.from_numpy(values) for key, values in small.parameters(model).items()}
    kept = {key: values for key, values in module.state_dict().items() if key.endswith("num_batches_tracked")}
    module.load_state_dict({**weights, **kept}, strict=True)
    with torch.no_grad():
        expected = module.eval()(torch.from_numpy(feeds["image"])).numpy()
    np.testing.assert_allclose(small.run(model, feeds)[0], expected, atol=1e-5 * np.abs(expected).max())


def test_efficientnet_is_torchvisions() -> None:
    """Expansion, depthwise convolution, gate, projection, sum."""
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    size = small.SIZES["efficientnet_b0"]
    inputs = (size["width"], *size["channels"][:-1])
    stages = zip(EXPANSIONS, KERNELS, STRIDES, inputs, size["channels"], size["stages"], strict=False)
    settings = []
    for expansion, kernel, stride, before, after, blocks in stages:
        settings.append(MBConvConfig(expansion, kernel, stride, before, after, blocks))
        # torchvision rounds channels to multiples of 8, the small model is smaller than that.
        settings[-1].input_channels, settings[-1].out_channels = before, after
    module = EfficientNet(settings, 0.0, num_classes=size["classes"], last_channel=40 * size["width"])
    assert_agrees("efficientnet_b0", module)


def test_convnext_is_torchvisions() -> None:
    """Stem, blocks with layer scale, downsampling, head."""
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    size = small.SIZES["convnext_tiny"]
    widths = [size["width"] * 2**stage for stage in range(len(size["stages"]))]
    after = [*widths[1:], None]
    settings = [CNBlockConfig(w, a, n) for w, a, n in zip(widths, after, size["stages"], strict=True)]
    assert_agrees("convnext_tiny", ConvNeXt(settings, num_classes=size["classes"]))
