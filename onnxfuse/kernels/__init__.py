"""Kernels for fused ops: from a body to an expression program, CUDA C++, a cubin and a launch plan.

Pure Python up to the plan; `compile` needs NVRTC, `load` needs a GPU.
"""

from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.language import POINTWISE, REDUCTIONS
from onnxfuse.kernels.launch import inplace, output_shapes, plan, supports, unreadable
from onnxfuse.kernels.nvrtc import arch_of, compile, load
from onnxfuse.kernels.plans import LaunchPlan, TensorMap, Tuning
from onnxfuse.kernels.source import KernelSource


def pointwise_ops(domain: str = "") -> frozenset[str]:
    """Return the elementwise ops that a body may hold."""
    return frozenset(op for where, op in POINTWISE if where == domain)


def is_pointwise(op_type: str, domain: str = "") -> bool:
    """Return whether a body may hold this op as elementwise work."""
    return (domain, op_type) in POINTWISE


def is_reduction(op_type: str, domain: str = "") -> bool:
    """Return whether a body of template row may hold this op as a reduction along the row."""
    return (domain, op_type) in REDUCTIONS


__all__ = [
    "Arch",
    "KernelSource",
    "LaunchPlan",
    "TensorMap",
    "Tuning",
    "arch_of",
    "compile",
    "inplace",
    "is_pointwise",
    "is_reduction",
    "load",
    "output_shapes",
    "plan",
    "pointwise_ops",
    "supports",
    "unreadable",
]
