"""One small model of every family of torchvision: classification, detection, segmentation, video, optical flow."""

# mypy: disallow-untyped-calls=False
# (torchvision says nothing of its types)

import re
from collections.abc import Iterator
from typing import Any

import torch

from models.survey import Made, Subject
from models.survey.from_timm import size_of
from models.survey.modules import ROWS, Flat, of_images, stirred

KINDS = ("models", "detection", "segmentation", "video", "optical_flow")
FRAMES = 8


def subjects() -> Iterator[Subject]:
    """Yield the first by name and number of each family."""
    from torchvision import models

    for kind in KINDS:
        listed = models.list_models(module=models if kind == "models" else getattr(models, kind))
        families: dict[str, list[str]] = {}
        for name in listed:
            families.setdefault(_family(name, kind), []).append(name)
        for family, members in families.items():
            yield Subject(f"torchvision:{min(members, key=size_of)}", f"torchvision {kind} {family}")


def make(name: str, side: int) -> Made:
    """Return the model on images, videos or pairs of images."""
    from torchvision import models

    kind = next(k for k in KINDS[::-1] if k == "models" or name in models.list_models(module=getattr(models, k)))
    own: dict[str, Any] = {"weights_backbone": None} if kind in ("detection", "segmentation") else {}
    if name in ("googlenet", "inception_v3"):  # the weights of their own recipe take half a minute
        own = {"init_weights": False, "aux_logits": False}
    module = models.get_model(name, weights=None, **own)
    match kind:
        case "video":
            frames = 16 if name.startswith("mvit") else FRAMES
            size = 224 if name.startswith("mvit") else min(side, 112)
            clip = torch.randn(ROWS, 3, frames, size, size)
            return Made(Flat(stirred(module)), {"clip": clip}, {"clip": {0: "batch"}})
        case "optical_flow":
            pair = {n: torch.rand(1, 3, 128, 128) * 2 - 1 for n in ("first", "second")}
            return Made(Flat(stirred(module), num_flow_updates=2), pair, {n: {0: "batch"} for n in pair})
        case "detection":
            image = {"image": torch.rand(3, 320, 320)}
            return Made(_OneImage(stirred(module)), image, {"image": {}})
        case _:
            return of_images(module, side, 224, 299)


class _OneImage(Flat):
    """A detector on one image: it takes a list."""

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        (image,) = inputs
        (found,) = self.inner([image])
        return tuple(found.values())


def _family(name: str, kind: str) -> str:
    if kind == "detection":
        return name.split("_")[0]
    if kind == "video":
        return name.rpartition("_")[0] or name
    return re.sub(r"_(large|small|tiny|base|[tsmlbhx])$", "", re.split(r"(?<!v)\d", name)[0].strip("_"))
