"""Launch plans of the concat template: convolutions, products and poolings side by side in one output.

Each part is a kernel of its own template that writes its channels of the output: no pass to put them together. What is
there already, since others read it too, is copied.
"""

from collections.abc import Mapping
from dataclasses import replace

import onnx
from onnx import FunctionProto, NodeProto

from onnxfuse.kernels import templates
from onnxfuse.kernels.arch import Arch
from onnxfuse.kernels.ir.strides import Shape
from onnxfuse.kernels.ir.types import UnsupportedError
from onnxfuse.kernels.launch_plan import DEFAULT, LaunchPlan, Tuning
from onnxfuse.kernels.templates.gemm.body import anatomy
from onnxfuse.kernels.templates.template import Planner
from onnxfuse.model.channels import FIRST, LAST
from onnxfuse.model.fused import FusedOp, Slot

MULTIPLE = 8
"""Every part has a multiple of so many channels: its vectors lie on their own boundaries."""


def parts(op: FusedOp) -> tuple[FusedOp, ...]:
    """Return an op for each part, on all inputs of `op`; raises `UnsupportedError` where a body is no such thing."""
    body = op.body
    last = body.node[-1] if body.node else NodeProto()
    joined = last.op_type == "Concat" and list(last.output) == list(body.output)
    if not joined or onnx.helper.get_node_attr_value(last, "axis") not in (-1, 3):
        raise UnsupportedError("a body that does not end in a Concat of channels")
    makers = {o: n for n in body.node for o in n.output}
    names = list(body.input)
    return tuple(_copy(op, names.index(value)) if value in names else _part(op, makers, value) for value in last.input)


def _copy(op: FusedOp, position: int) -> FusedOp:
    """Return the part that copies an input of `op`: the greatest element of a window of one."""
    if op.inputs[position] != op.outputs[0]:
        raise UnsupportedError("a copy of another element type")
    body = FunctionProto(domain=op.body.domain, name=op.body.name, input=op.body.input, output=["copied"])
    made = onnx.helper.make_node
    body.node.extend((
        made("Transpose", [op.body.input[position]], ["first"], perm=FIRST),
        made("MaxPool", ["first"], ["same"], kernel_shape=[1, 1]),
        made("Transpose", ["same"], ["copied"], perm=LAST),
    ))  # fmt: skip
    body.opset_import.extend(op.body.opset_import)
    return replace(op, template="depthwise", body=body, library=None)


def _part(op: FusedOp, makers: Mapping[str, NodeProto], value: str) -> FusedOp:
    seen, waiting = set[str](), [value]
    while waiting:
        name = waiting.pop()
        if name in makers and name not in seen:
            seen.update(makers[name].output)
            waiting.extend(makers[name].input)
    body = FunctionProto(domain=op.body.domain, name=op.body.name, input=op.body.input, output=[value])
    body.node.extend(n for n in op.body.node if set(n.output) & seen)
    body.opset_import.extend(op.body.opset_import)
    return replace(op, template=_template(op, body), outputs=op.outputs[:1], body=body, library=None)


def _writers() -> dict[str, Planner]:
    """Return the templates that write channels of a larger output, in the order in which a part is offered to them."""
    return {t.name: t.planner for t in templates.every().values() if t.writes_slots and t.planner is not None}


def _template(op: FusedOp, body: FunctionProto) -> str:
    reasons = []
    for name, planner in _writers().items():
        try:
            planner.check(replace(op, template=name, outputs=op.outputs[:1], body=body, library=None))
        except UnsupportedError as reason:
            reasons.append(f"{name}: {reason}")
        else:
            return name
    raise UnsupportedError("; ".join(reasons))


def _suited(part: FusedOp, input_shapes: tuple[Shape, ...]) -> FusedOp:
    """Return the part with the template of few channels where it is a convolution of few, as the rules have it."""
    if part.template != "gemm":
        return part
    product = anatomy(part).products[0]
    filters, *_, channels = input_shapes[product.b]
    few = product.sliding is not None and (filters % 8 or channels % 8)
    return replace(part, template="direct") if few else part


def check(op: FusedOp) -> None:
    """Raise `UnsupportedError` with the reason where some part has no kernel."""
    if any(lane.moves for p in parts(op) if p.template == "gemm" for lane in anatomy(p).lanes):
        raise UnsupportedError("a part that is stored in another order")


def _shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of each part."""
    found = tuple(_writers()[p.template].output_shapes(p, input_shapes)[0] for p in parts(op))
    if len({s[:-1] for s in found}) > 1 or any(len(s) != 4 or s[-1] % MULTIPLE for s in found):
        raise UnsupportedError(f"parts of shapes {', '.join(str(list(s)) for s in found)}")
    return found


def output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
    """Return the shape of the output of `op` for these shapes of its inputs."""
    found = _shapes(op, input_shapes)
    return ((*found[0][:-1], sum(s[-1] for s in found)),)


def plan(op: FusedOp, input_shapes: tuple[Shape, ...], aligned: bool, arch: Arch, tuning: Tuning) -> LaunchPlan:
    """Return how to run the parts one after the other; each chooses its own variant."""
    shapes, (whole,) = _shapes(op, input_shapes), output_shapes(op, input_shapes)
    first, made = 0, []
    for part, shape in zip(parts(op), shapes, strict=True):
        fitted = replace(_suited(part, input_shapes), slot=Slot(first, whole[-1]))
        made.append(_writers()[fitted.template].plan(fitted, input_shapes, aligned, arch, DEFAULT))
        first += shape[-1]
    return replace(made[0], output_shapes=(whole,), then=tuple(made[1:]))


def refuses(op: FusedOp, arch: Arch) -> str | None:
    """Return why the body is the better choice on `arch`: what one of the parts says."""
    asked = ((_writers()[p.template].refuses, p) for p in parts(op))
    return next((r for refuse, p in asked if refuse is not None and (r := refuse(p, arch)) is not None), None)
