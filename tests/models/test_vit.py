"""ViT computes what torch's own transformer layer computes."""

import numpy as np
import pytest

from tests.models import small

IN_TORCH = {"ln_1": "norm1", "ln_2": "norm2", "self_attention": "self_attn", "mlp.0": "linear1", "mlp.3": "linear2"}


def test_torch_agrees() -> None:
    """Patches, class token and positions, pre-norm torch.nn.TransformerEncoderLayers, the head on the class token."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra `export`)")
    functional = torch.nn.functional
    model, feeds, size = small.build("vit_b_16"), small.inputs("vit_b_16"), small.SIZES["vit_b_16"]
    weights = {name: torch.from_numpy(values) for name, values in small.parameters(model).items()}

    image = torch.from_numpy(feeds["image"])
    grid = functional.conv2d(image, weights["conv_proj.weight"], weights["conv_proj.bias"], stride=16)
    tokens = [weights["class_token"].expand(3, 1, -1), grid.flatten(2).transpose(1, 2)]
    x = torch.cat(tokens, 1) + weights["encoder.pos_embedding"]
    for i in range(size["layers"]):
        layer = torch.nn.TransformerEncoderLayer(
            size["hidden"], size["heads"], size["intermediate"], 0.0, "gelu", 1e-6, batch_first=True, norm_first=True
        ).eval()
        prefix = f"encoder.layers.encoder_layer_{i}."
        own = {name.removeprefix(prefix): values for name, values in weights.items() if name.startswith(prefix)}
        for here, there in IN_TORCH.items():
            own = {name.replace(here, there): values for name, values in own.items()}
        layer.load_state_dict(own, strict=True)
        x = layer(x)
    x = functional.layer_norm(x, (size["hidden"],), weights["encoder.ln.weight"], weights["encoder.ln.bias"], 1e-6)
    expected = functional.linear(x[:, 0], weights["heads.head.weight"], weights["heads.head.bias"])
    np.testing.assert_allclose(small.run(model, feeds)[0], expected.detach().numpy(), atol=1e-5)
