"""Nodes that ONNX Runtime's own optimizers fused before the file came here."""

from collections import Counter

from onnxfuse import ops
from onnxfuse.support.plurals import listed

LAYOUTS = ("com.microsoft.nchwc", "com.ms.internal.nhwc")
"""Domains of its operators on other layouts, which its optimizer writes."""


def left(before: Counter[str], after: Counter[str]) -> str:
    """Return a note on fused nodes of ONNX Runtime's that the file had and no rule took; empty if there are none.

    `before` and `after` count operators, such as com.microsoft:FusedMatMul. Rules match the nodes of exports: attention
    is not found where a part of it is inside such a node.
    """
    fusions = {f"{domain}:{name}" for (domain, name), op in ops.ENTRIES.items() if ops.Trait.ORT_FUSION in op.traits}
    counts = {
        op: min(before[op], n)
        for op, n in sorted(after.items())
        if before[op] and (op in fusions or op.partition(":")[0] in LAYOUTS)
    }
    if not counts:
        return ""
    names = listed([f"{n} {op.partition(':')[2]}" for op, n in counts.items()])
    return (
        "ONNX Runtime has already optimized this file, and rules match the nodes of exports; left as they are: "
        f"{names}. Optimize the original export instead"
    )
