"""A torch module under torch.compile, ready to be timed."""

# mypy: disallow-untyped-calls=False
# (torch says little of its types)

from collections.abc import Callable, Sequence
from typing import Any


def by_layout(
    make: Callable[[], Any], inputs: Sequence[Any], device: str, *, images: bool, **options: Any
) -> dict[str, Callable[[], None]]:
    """Return what runs a module under torch.compile to its end, by setting: with `images` in both layouts.

    Each has a module of its own, which `make` gives: what is compiled goes by the strides that its weights have then.
    `options` go to torch.compile, by default CUDA graphs.
    """
    import torch

    layouts = {"compile": torch.contiguous_format}
    if images:
        layouts["compile, channels_last"] = torch.channels_last
    calls = {}
    for setting, memory_format in layouts.items():
        made = torch.compile(make().to(memory_format=memory_format), **(options or {"mode": "reduce-overhead"}))
        turned = [x.to(memory_format=memory_format) if x.ndim == 4 else x for x in inputs]
        calls[setting] = _call(made, turned, device)
    return calls


def _call(module: Any, inputs: list[Any], device: str) -> Callable[[], None]:
    import torch

    def call() -> None:
        module(*inputs)
        if device == "cuda":
            torch.cuda.synchronize()

    return call
