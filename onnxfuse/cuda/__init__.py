"""CUDA kernels for fused ops: from a body through an expression program and CUDA C++ to a cubin and a launch plan.

Pure Python up to the plan; `compile` needs NVRTC, `load` needs a GPU.
"""

from onnxfuse import ops
from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.codegen.operators.movement_ops import FREE, MOVEMENT
from onnxfuse.codegen.operators.pointwise_ops import POINTWISE
from onnxfuse.codegen.operators.reduction_ops import REDUCTIONS
from onnxfuse.codegen.program.window import CENTRES
from onnxfuse.cuda.build.gpu import arch_of
from onnxfuse.cuda.build.nvrtc import (
    compile,
    compiles_for,
    is_compiled,
    load,
    load_image,
    loaded_bytes,
    portable,
    zeros,
)
from onnxfuse.cuda.dispatch.cost import launch_bytes
from onnxfuse.cuda.dispatch.dispatch import (
    TEMPLATES,
    cached_family,
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
    multiplies_integers,
    output_shapes,
    plan,
    plan_within,
    reads_library_form,
    stand_ins,
    supports,
    unreadable,
    unreadable_before,
)
from onnxfuse.cuda.dispatch.proof import Case, unplanned
from onnxfuse.cuda.planning.arch import SUPPORTED, Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, TensorMapSpec
from onnxfuse.cuda.planning.template import Growth, Template
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.concat.plan import MULTIPLE as SLOT_CHANNELS
from onnxfuse.cuda.templates.conv.convolution import MOST_TAPS
from onnxfuse.symbolic.element_types import TYPES, DisagreeingError


def pointwise_ops(domain: str = "") -> frozenset[str]:
    """Return the elementwise operators that a body may contain."""
    return frozenset(op for where, op in POINTWISE if where == domain)


def is_pointwise(op_type: str, domain: str = "") -> bool:
    """Return whether a body may contain this op as elementwise work."""
    return (domain, op_type) in POINTWISE


def is_reduction(op_type: str, domain: str = "") -> bool:
    """Return whether a body of template row may contain this op as a reduction along the row."""
    return (domain, op_type) in REDUCTIONS


def is_movement(op_type: str, domain: str = "") -> bool:
    """Return whether a body of template pointwise may contain this op as data movement."""
    return (domain, op_type) in MOVEMENT and op_type != ops.Shape


def is_free(op_type: str, domain: str = "") -> bool:
    """Return whether ONNX Runtime launches nothing for this op because the result is a view of the operand."""
    return domain == "" and op_type in FREE


def item_size(dtype: int) -> int:
    """Return the size of an element in bytes."""
    return TYPES[dtype].size


__all__ = [
    "CENTRES",
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
    "TensorMapSpec",
    "Variant",
    "arch_of",
    "cached_family",
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
    "launch_bytes",
    "load",
    "load_image",
    "loaded_bytes",
    "multiplies_integers",
    "output_shapes",
    "plan",
    "plan_within",
    "pointwise_ops",
    "portable",
    "reads_library_form",
    "stand_ins",
    "supports",
    "unplanned",
    "unreadable",
    "unreadable_before",
    "zeros",
]
