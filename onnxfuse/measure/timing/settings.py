"""ONNX Runtime settings that affect speed and are searched, with the names used in reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from onnxfuse.support.plurals import plural

ModelName = Literal["original", "fused"]

GRAPH = {"enable_cuda_graph": "1"}
NHWC = {"prefer_nhwc": "1"}
CONV_BIAS = {"fuse_conv_bias": "1"}


@dataclass(frozen=True)
class Setting:
    """How to open a session."""

    name: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of the CUDA provider."""
    threads: int = 0
    """Intra-op threads on the CPU; 0 for ONNX Runtime's default."""
    rules: tuple[str | Path, ...] = ()
    """Folders of rules with which a fused model was made, in addition to ours."""

    def with_options(self, extra: Mapping[str, str]) -> "Setting":
        """Return the setting with additional options of the CUDA provider."""
        return replace(self, options={**self.options, **extra})


@dataclass(frozen=True)
class RefusedRun:
    """A setting at which a model was not timed."""

    model: ModelName
    setting: str
    reason: str
    kind: Literal["refused", "crashed", "hangs"] = "refused"
    """ONNX Runtime rejects it; it crashed the process or the GPU; it did not respond in time."""


DEFAULT = Setting("default")
CUDA_GRAPH = Setting("CUDA graph", GRAPH)


def cuda_settings(*, convolutions: bool) -> tuple[Setting, ...]:
    """Return the settings to try on CUDA; the NHWC settings are for models with convolutions."""
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
    """Return the settings to try on a CPU with so many cores: ONNX Runtime's default, one thread, half of the cores,
    all."""
    counts = sorted({1, max(1, cores // 2), cores})
    return (DEFAULT, *(Setting(plural(n, "thread"), threads=n) for n in counts))
