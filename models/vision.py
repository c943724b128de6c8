"""Image models of torchvision and timm by name, and a U-Net, through torch.onnx, with weights that are drawn.

>>> export("torchvision:vgg16", "vgg16.onnx", dtype="float16", batch=32)

Needs torch (extra `export`) and the package that a name begins with.
"""

# mypy: disallow-subclassing-any=False
# (where torch is not installed, torch.nn.Module is Any)

import importlib
from pathlib import Path
from typing import Any

from onnxfuse.support.errors import DeviceError, UsageError

SOURCES = ("torchvision", "timm")
UNET = "unet"
TEMPLATES = (
    "torchvision:vgg16", "torchvision:resnext50_32x4d", "torchvision:regnet_y_400mf", "torchvision:inception_v3",
    "torchvision:googlenet", "torchvision:densenet121", "torchvision:squeezenet1_1", "torchvision:shufflenet_v2_x1_0",
    "torchvision:mobilenet_v2", "torchvision:mobilenet_v3_large", "torchvision:mnasnet0_5", UNET,
)  # fmt: skip
"""One model of each common family of convolution nets."""
SIDES = {"torchvision:inception_v3": 299, UNET: 256}
"""Height and width of the images, where they are not 224."""


def is_vision(name: str) -> bool:
    """Return whether a name is one of a model of this module."""
    return name == UNET or name.partition(":")[0] in SOURCES


def side(name: str) -> int:
    """Return height and width of the model's images."""
    return SIDES.get(name, 224)


def torch_model(name: str, seed: int = 0) -> Any:
    """Return the model as a torch module in evaluation mode; raises UsageError, DeviceError."""
    torch = _imported("torch")
    torch.manual_seed(seed)
    package, _, inner = name.partition(":")
    try:
        match package:
            case "torchvision":
                # Weights as the layers draw them: those of Inception's own recipe take half a minute.
                own = {"init_weights": False, "aux_logits": False} if inner in ("googlenet", "inception_v3") else {}
                module = _imported("torchvision").models.get_model(inner, weights=None, **own)
            case "timm":
                module = _imported("timm").create_model(inner, pretrained=False, exportable=True)
            case _:
                module = _unet(torch.nn)
    except (ValueError, RuntimeError) as error:  # what torchvision and timm raise for a name that they do not have
        raise UsageError(f"{name}: {error}", hint=f"{package}'s own list of models has the names.") from error
    for values in module.state_dict().values():
        # Biases, scales and running statistics off 0 and 1: a model that loses one gives other numbers.
        if values.is_floating_point() and values.ndim == 1:
            values.add_(0.1 * torch.randn_like(values))
    return module.eval()


def export(name: str, path: Path | str, *, dtype: str, batch: int, opset: int = 17) -> None:
    """Write a model to `path` for images of a fixed size, by tracing; on the GPU where there is one."""
    torch = _imported("torch")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = torch_model(name).to(device, getattr(torch, dtype))
    images = torch.randn(batch, 3, side(name), side(name), device=device, dtype=getattr(torch, dtype))
    torch.onnx.export(
        module, (images,), str(path), dynamo=False, opset_version=opset, input_names=["image"], output_names=["y"]
    )
    del module, images
    torch.cuda.empty_cache()  # torch keeps what the run took, and does nothing more; without a GPU it has nothing


def _imported(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as missing:
        raise DeviceError(
            f"Image models by name need {package}, not installed here.", hint=f"pip install {package}"
        ) from missing


def _unet(nn: Any, width: int = 32, depth: int = 4) -> Any:
    """Return U-Net (Ronneberger et al., 2015) with padded convolutions, batch norms and bilinear upsampling."""

    def twice(before: int, after: int) -> Any:
        layers = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            widths = [width * 2**level for level in range(depth + 1)]
            self.down = nn.ModuleList(twice(a, b) for a, b in zip([3, *widths], widths, strict=False))
            pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
            self.narrow = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in pairs)
            self.up = nn.ModuleList(twice(2 * b, b) for _, b in pairs)
            self.pool = nn.MaxPool2d(2)
            self.wider = nn.Upsample(scale_factor=2, mode="bilinear")
            self.head = nn.Conv2d(width, 8, 1)

        def forward(self, images: Any) -> Any:
            kept: list[Any] = []
            x = images
            for level in self.down:
                x = level(self.pool(x) if kept else x)
                kept.append(x)
            kept.pop()
            for narrow, level in zip(self.narrow, self.up, strict=True):
                x = level(_joined(kept.pop(), self.wider(narrow(x))))
            return self.head(x)

    return UNet()


def _joined(*values: Any) -> Any:
    return importlib.import_module("torch").cat(values, 1)
