"""Run fused models: sessions on ONNX Runtime in which the fused ops are CUDA kernels."""

from onnxfuse.runtime.engine.bridge import calls, launches, reset_counts
from onnxfuse.runtime.engine.cuda_provider import cuda_unusable, device_fault
from onnxfuse.runtime.sessions.inference import Provider, Session, session
from onnxfuse.runtime.sessions.placement import Placement
from onnxfuse.runtime.sessions.registration import register

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
