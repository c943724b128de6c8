"""Kernels for fused ops: from a body to an expression program, CUDA C++, a cubin and a launch plan.

Pure Python up to the plan; `compile` needs NVRTC, `load` needs a GPU.
"""

from onnxfuse.kernels.arch import SUPPORTED, Arch
from onnxfuse.kernels.build.gpu import arch_of
from onnxfuse.kernels.build.nvrtc import compile, compiles_for, is_compiled, load, load_image, portable, zeros
from onnxfuse.kernels.cost import LAUNCH
from onnxfuse.kernels.dispatch import (
    TEMPLATES,
    candidates,
    estimate,
    family,
    fits,
    general,
    general_family,
    inplace,
    is_candidate,
    is_template,
    keep_family,
    kept_family,
    output_shapes,
    plan,
    reads_library_form,
    stand_ins,
    supports,
    unreadable,
    unreadable_before,
)
from onnxfuse.kernels.emit.source import KernelSource
from onnxfuse.kernels.ir.movement_ops import FREE, MOVEMENT
from onnxfuse.kernels.ir.pointwise_ops import POINTWISE
from onnxfuse.kernels.ir.reduction_ops import REDUCTIONS
from onnxfuse.kernels.ir.types import TYPES, DisagreeingError
from onnxfuse.kernels.ir.window import CENTRES, scaled_extent
from onnxfuse.kernels.launch_plan import LaunchPlan, TensorMap, Tuning
from onnxfuse.kernels.proof import Case, unplanned
from onnxfuse.kernels.templates.concat.plan import MULTIPLE as SLOT_CHANNELS
from onnxfuse.kernels.templates.conv.convolution import MOST_TAPS
from onnxfuse.kernels.templates.template import Growth, Template


def pointwise_ops(domain: str = "") -> frozenset[str]:
    """Return the elementwise ops that a body may hold."""
    return frozenset(op for where, op in POINTWISE if where == domain)


def is_pointwise(op_type: str, domain: str = "") -> bool:
    """Return whether a body may hold this op as elementwise work."""
    return (domain, op_type) in POINTWISE


def is_reduction(op_type: str, domain: str = "") -> bool:
    """Return whether a body of template row may hold this op as a reduction along the row."""
    return (domain, op_type) in REDUCTIONS


def is_movement(op_type: str, domain: str = "") -> bool:
    """Return whether a body of template pointwise may hold this op as data movement."""
    return (domain, op_type) in MOVEMENT and op_type != "Shape"


def is_free(op_type: str, domain: str = "") -> bool:
    """Return whether ONNX Runtime launches nothing for this op: the result is the operand's memory."""
    return domain == "" and op_type in FREE


def item_size(dtype: int) -> int:
    """Return the bytes of an element."""
    return TYPES[dtype].size


__all__ = [
    "CENTRES",
    "LAUNCH",
    "MOST_TAPS",
    "SLOT_CHANNELS",
    "SUPPORTED",
    "TEMPLATES",
    "Arch",
    "Case",
    "DisagreeingError",
    "Growth",
    "KernelSource",
    "LaunchPlan",
    "Template",
    "TensorMap",
    "Tuning",
    "arch_of",
    "candidates",
    "compile",
    "compiles_for",
    "estimate",
    "family",
    "fits",
    "general",
    "general_family",
    "inplace",
    "is_candidate",
    "is_compiled",
    "is_free",
    "is_movement",
    "is_pointwise",
    "is_reduction",
    "is_template",
    "item_size",
    "keep_family",
    "kept_family",
    "load",
    "load_image",
    "output_shapes",
    "plan",
    "pointwise_ops",
    "portable",
    "reads_library_form",
    "scaled_extent",
    "stand_ins",
    "supports",
    "unplanned",
    "unreadable",
    "unreadable_before",
    "zeros",
]
