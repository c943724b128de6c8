"""Run fused models: sessions on ONNX Runtime in which the fused ops are CUDA kernels."""

from onnxfuse.runtime.bridge import calls, launches, reset_counts
from onnxfuse.runtime.cuda import cuda_unusable, device_fault
from onnxfuse.runtime.inference import Provider, Session, session
from onnxfuse.runtime.placement import Placement
from onnxfuse.runtime.registration import register

__all__ = [
    "Placement",
    "Provider",
    "Session",
    "calls",
    "cuda_unusable",
    "device_fault",
    "launches",
    "register",
    "reset_counts",
    "session",
]
