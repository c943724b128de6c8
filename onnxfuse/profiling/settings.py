"""The settings of ONNX Runtime that make a difference to speed, and are searched; and what both models are called."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from onnxfuse.support.plurals import plural

ModelName = Literal["original", "fused"]

WARM_UP = 10
"""Runs before anything is timed: ONNX Runtime captures CUDA graphs and cuDNN searches its algorithms in the first."""

GRAPH = {"enable_cuda_graph": "1"}
NHWC = {"prefer_nhwc": "1"}
CONV_BIAS = {"fuse_conv_bias": "1"}


@dataclass(frozen=True)
class Setting:
    """How a session is opened."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the CUDA provider."""
    threads: int = 0
    """Threads within one op on the CPU; 0 leaves the number to ONNX Runtime."""
    rules: tuple[str | Path, ...] = ()
    """Folders of rules that a fused model was made with beside ours."""

    def with_options(self, more: Mapping[str, str]) -> "Setting":
        """Return the setting with more options of the CUDA provider."""
        return replace(self, options={**self.options, **more})


DEFAULT = Setting("default")
CUDA_GRAPH = Setting("CUDA graph", GRAPH)


def cuda_settings(*, convolutions: bool) -> tuple[Setting, ...]:
    """Return what is tried on CUDA; the NHWC settings are for models with convolutions."""
    if not convolutions:
        return (DEFAULT, CUDA_GRAPH)
    return (
        DEFAULT,
        CUDA_GRAPH,
        Setting("NHWC", NHWC),
        Setting("NHWC, CUDA graph", NHWC | GRAPH),
        Setting("NHWC, conv bias", NHWC | CONV_BIAS),
        Setting("NHWC, conv bias, CUDA graph", NHWC | CONV_BIAS | GRAPH),
    )


def cpu_settings(cores: int) -> tuple[Setting, ...]:
    """Return what is tried on a CPU of so many cores: ONNX Runtime's choice, one thread, half of the cores, all."""
    counts = sorted({1, max(1, cores // 2), cores})
    return (DEFAULT, *(Setting(plural(n, "thread"), threads=n) for n in counts))
