"""The interface of a model, its inputs and outputs, and which changes of it break a caller."""

import re
from collections.abc import Iterator, Mapping

import onnx
from onnx import TensorProto, ValueInfoProto

from onnxfuse.model.overridable import required_inputs

INPUT, OUTPUT = "input ", "output "
"""Before the name of a value."""
ABSENT = "none"


def interface(model: onnx.ModelProto) -> dict[str, str]:
    """Return the type of each input and output, such as `{"input ids": "int64[batch,128]"}`."""
    named = [(INPUT, v) for v in required_inputs(model.graph)] + [(OUTPUT, v) for v in model.graph.output]
    return {f"{kind}{value.name}": _type(value) for kind, value in named}


def broken(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each input or output that a caller of the old model can no longer use, and why."""
    for name, before in old.items():
        if name not in new:
            yield name, "callers that use it fail"
        elif reason := _narrowed(before, new[name]):
            yield name, reason
    yield from ((name, "callers have to give it") for name in new if name not in old and name.startswith(INPUT))


def _narrowed(before: str, after: str) -> str:
    """Return why values of one type are not of another one; empty if all are."""
    (was, old), (now, new) = _parts(before), _parts(after)
    if was != now:
        return "it is of another type"
    if old is None or new is None:
        return ""
    if len(old) != len(new):
        return "it has another number of dimensions"
    fixed = [f"{a} -> {b}" for a, b in zip(old, new, strict=True) if b.isdigit() and a != b]
    return f"other sizes are refused now: {', '.join(fixed)}" if fixed else ""


def _parts(text: str) -> tuple[str, list[str] | None]:
    """Return the element type, and the dimensions if they are known."""
    match = re.fullmatch(r"(\w+)\[(.*)\]", text, re.DOTALL)
    return (text, None) if match is None else (match[1], match[2].split(",") if match[2] else [])


def _type(value: ValueInfoProto) -> str:
    which = value.type.WhichOneof("value") or "unknown"
    if which != "tensor_type":
        return which.removesuffix("_type")
    tensor = value.type.tensor_type
    element = "float32" if tensor.elem_type == TensorProto.FLOAT else TensorProto.DataType.Name(tensor.elem_type)
    if not tensor.HasField("shape"):
        return element.lower()
    sizes = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in tensor.shape.dim]
    return f"{element.lower()}[{','.join(sizes)}]"
