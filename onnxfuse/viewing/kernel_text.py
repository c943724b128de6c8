"""The CUDA source of a fused op at given shapes, as planned; nothing is compiled."""

from typing import Any

import onnx

from onnxfuse.cuda import Arch, is_template, plan, supports
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import KernelError
from onnxfuse.symbolic.strides import Shape

Shapes = tuple[Shape, ...]


def kernel_text(op: FusedOp, shapes: Shapes | None, arch: Arch) -> dict[str, Any]:
    """Return the launches of one run with their sources, or a note why there are none."""
    if not is_template(op.template):
        text = "" if op.library is None else onnx.printer.to_text(op.library)
        return {"note": "An op of ONNX Runtime's own runs in its place on CUDA.", "library": text, "launches": []}
    reason = supports(op, lambda: arch)
    if reason is None and shapes is None:
        reason = "the shapes of its inputs are not known"
    if reason is not None or shapes is None:
        return {"note": f"No kernel: {reason}", "launches": []}
    try:
        launch_plan = plan(op, shapes, True, arch)
    except KernelError as error:
        return {"note": f"No kernel: {error}", "launches": []}
    return {
        "note": "",
        "inputs": [list(s) for s in shapes],
        "launches": [
            {
                "entry": one.kernel.entry,
                "grid": list(one.grid),
                "block": list(one.block),
                "shared": one.shared_bytes,
                "scratch": one.scratch_bytes,
                "text": one.kernel.text,
            }
            for one in (launch_plan, *launch_plan.then)
        ],
    }
