"""One small model of every family of timm: the smallest, by its name, of each of timm's modules."""

# mypy: disallow-untyped-calls=False
# (timm and torch say nothing of their types)

import re
from collections.abc import Iterator
from typing import Any

from models.survey import Made, Subject
from models.survey.modules import of_images

SIZES = (
    "zepto", "atto", "femto", "pico", "nano", "micro", "xxxs", "xxs", "xxt", "xt", "xs", "mini", "tiny", "t", "n",
    "lite", "small", "s", "m", "medium", "base", "b", "l", "large", "h", "huge", "giant", "xl", "xlarge", "xxlarge",
)  # fmt: skip
"""Words of size in the names of models, smallest first; a name without one counts as small."""

MORE = ("convnextv2_atto",)
"""Besides the smallest of each module: blocks that the smallest of the module does not have."""


def subjects() -> Iterator[Subject]:
    """Yield the smallest model of each module. What timm keeps for its own tests is left out."""
    import timm

    for module in timm.list_modules():
        listed = [n for n in timm.list_models(module=module) if not n.startswith("test_")]
        for name in (*([min(listed, key=size_of)] if listed else []), *(n for n in MORE if n in listed)):
            yield Subject(f"timm:{name}", f"timm {module}")


def make(name: str, side: int) -> Made:
    """Return the model on images of `side` where it takes them, else of the size it was made for."""
    import timm

    try:
        return of_images(timm.create_model(name, pretrained=False, exportable=True, img_size=side), side)
    except (TypeError, ValueError, AssertionError, RuntimeError):
        # Nets of convolutions have no such argument; windows and patches may not divide it.
        module: Any = timm.create_model(name, pretrained=False, exportable=True)
    native = int(module.default_cfg["input_size"][-1])
    return of_images(module, native if module.default_cfg.get("fixed_input_size") else min(side, native), native)


def size_of(name: str) -> tuple[int, int, str]:
    """Return what sorts the models of a family: the word of size, the first number that is no version, the name."""
    ranks = [SIZES.index(w) for w in re.split(r"[_.]", name) if w in SIZES]
    numbers = [int(n) for n in re.findall(r"(?<![v\d])\d+", name)]
    return min(ranks, default=SIZES.index("small")), next((n for n in numbers if n), 1000), name
