"""Generate config.pbtxt for NVIDIA Triton Inference Server's ONNX Runtime backend."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import onnx
from onnx import TensorProto

from onnxfuse.model.tf32 import is_strict_fp32
from onnxfuse.shapes import inference, types
from onnxfuse.shapes.types import Dim, ValueType
from onnxfuse.symbolic.integer import Int

TYPES: Mapping[int, str] = {
    TensorProto.BOOL: "BOOL", TensorProto.UINT8: "UINT8", TensorProto.UINT16: "UINT16", TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64", TensorProto.INT8: "INT8", TensorProto.INT16: "INT16", TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64", TensorProto.FLOAT16: "FP16", TensorProto.FLOAT: "FP32", TensorProto.DOUBLE: "FP64",
    TensorProto.STRING: "STRING", TensorProto.BFLOAT16: "BF16",
}  # fmt: skip
"""Triton's names of ONNX's element types; other types are not supported."""


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs by name."""

    inputs: Mapping[str, ValueType]
    outputs: Mapping[str, ValueType]
    strict_fp32: bool

    @property
    def batch(self) -> str | None:
        """The first dimension of all inputs and outputs, along which Triton can batch requests."""
        first = {v.shape[0] if v.shape else None for v in (*self.inputs.values(), *self.outputs.values())}
        (one,) = first if len(first) == 1 else (None,)
        return str(one) if isinstance(one, Int) and not types.is_unknown(one) else None

    @property
    def refusal(self) -> str:
        """Why Triton cannot serve the model; empty if it can."""
        for kind, values in (("input", self.inputs), ("output", self.outputs)):
            for name, value in values.items():
                if value.dtype not in TYPES:
                    type_name = TensorProto.DataType.Name(value.dtype) if value.dtype else "no tensor"
                    return f"the {kind} '{name}' is of a type that Triton does not have: {type_name}"
                if value.shape is None:
                    return f"the number of dimensions of the {kind} '{name}' is not known"
        return ""


def signature(model: onnx.ModelProto) -> Signature:
    """Return the inputs and outputs of a model; the shape of an output without one is inferred from the inputs."""
    constants = {w.name for w in model.graph.initializer}
    outputs = list(model.graph.output)
    if any(not v.type.tensor_type.HasField("shape") for v in outputs):
        outputs = list(inference.infer(inference.shell(model)).graph.output)
    inputs = {v.name: types.type_of(v.type) for v in model.graph.input if v.name not in constants}
    return Signature(inputs, {v.name: types.type_of(v.type) for v in outputs}, is_strict_fp32(model))


def config(interface: Signature, library: PurePath, batch: int) -> str:
    """Return the text of config.pbtxt. `library`: the path of the library as the server sees it.

    `batch`: the maximum batch size, 0 to disable batching.
    """
    blocks = [
        'backend: "onnxruntime"',
        f"max_batch_size: {batch}",
        *(_block("input", n, v, batch > 0) for n, v in interface.inputs.items()),
        *(_block("output", n, v, batch > 0) for n, v in interface.outputs.items()),
    ]
    if batch > 1:
        blocks.append("dynamic_batching { }")
    blocks += [
        "# Each instance is a session with a stream of its own.",
        "instance_group [ { kind: KIND_GPU count: 1 } ]",
        "# Where the server sees the library, beside which the model's kernel pack lies.",
        f"model_operations {{ op_library_filename: {json.dumps(str(library), ensure_ascii=False)} }}",
    ]
    if interface.strict_fp32:
        blocks += [
            "# The model was made for products that are not rounded to TF32.",
            "optimization { execution_accelerators { gpu_execution_accelerator : [",
            '  { name: "cuda" parameters { key: "use_tf32" value: "0" } }',
            "] } }",
        ]
    return "\n".join(blocks) + "\n"


def _block(kind: str, name: str, value: ValueType, batched: bool) -> str:
    dims: Sequence[Dim] = (value.shape or ())[1 if batched else 0 :]
    lines = [f"name: {json.dumps(name, ensure_ascii=False)}", f"data_type: TYPE_{TYPES[value.dtype]}"]
    # A scalar: Triton allows no empty list of dimensions, and accepts a single 1 instead.
    lines.append(f"dims: [ {', '.join(str(d if isinstance(d, int) else -1) for d in dims) or 1} ]")
    if not dims and batched:
        lines.append("reshape { shape: [ ] }")
    return f"{kind} [\n  {{\n" + "".join(f"    {line}\n" for line in lines) + "  }\n]"
