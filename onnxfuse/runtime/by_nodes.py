"""A fused op by the nodes of its body, in ONNX Runtime: for shapes that no kernel of it takes.

Where a fused op is made, it has a plan for all shapes that the model's dimension names allow. ONNX Runtime holds nobody
to the names: a residual may be for one image where there are four.
"""

import math
from collections.abc import Callable, Sequence

import onnxruntime
from onnx import ModelProto, helper

from onnxfuse import kernels
from onnxfuse.model.errors import ModelError, NoPlanError
from onnxfuse.model.fused import FusedOp
from onnxfuse.model.types import infer, value_types
from onnxfuse.runtime.cuda import PROVIDER
from onnxfuse.runtime.launch import Launch, Shape
from onnxfuse.runtime.opening import ORT_ERRORS, SILENT

DEVICE = "cuda"
"""Where the pointers of an op lie, in ONNX Runtime's word."""

Run = Callable[[Sequence[int], int], None]


def providers(device: int, tf32: bool) -> list[str | tuple[str, dict[str, int]]]:
    """Return where the nodes run: as the session that the op is in."""
    return [(PROVIDER, {"device_id": device, "use_tf32": int(tf32)}), "CPUExecutionProvider"]


def by_nodes(op: FusedOp, input_shapes: tuple[Shape, ...], device: int, tf32: bool, why: NoPlanError) -> Launch:
    """Return what runs the nodes of the body of `op` in a session of their own, on the memory that the op is given.

    It waits for what was launched before it, so that it is no part of a CUDA graph. Raises `why` where the nodes do not
    take these shapes either, or what they make of them is not known before they run.
    """
    output_shapes = _output_shapes(op, input_shapes)
    if output_shapes is None:
        raise why
    return Launch(
        function=0, grid=(0, 0, 0), block=(1, 1, 1), shared_bytes=0, early=False, parameters=b"",
        output_shapes=output_shapes, tensor_maps=(), scratch_bytes=0, scratch=lambda: 0, module=None,
        nodes=_runner(op, (*input_shapes, *output_shapes), device, tf32, why),
    )  # fmt: skip


def _output_shapes(op: FusedOp, input_shapes: tuple[Shape, ...]) -> tuple[Shape, ...] | None:
    """Return the shapes that the nodes make, None where they do not take such inputs or inference does not know."""
    try:
        types = value_types(infer(_model(op, (*input_shapes, *(None for _ in op.outputs)))).graph)
    except ModelError:
        return None
    shapes = [types[name].shape for name in op.body.output]
    if any(s is None or not all(isinstance(d, int) for d in s) for s in shapes):
        return None
    return tuple(tuple(int(d or 0) for d in s or ()) for s in shapes)


def _model(op: FusedOp, shapes: Sequence[Shape | None]) -> ModelProto:
    """Return the body as a model, with these shapes of its inputs and outputs."""
    names = (*op.body.input, *op.body.output)
    typed = [helper.make_tensor_value_info(*v) for v in zip(names, (*op.inputs, *op.outputs), shapes, strict=True)]
    count = len(op.inputs)
    graph = helper.make_graph(op.body.node, op.name, typed[:count], typed[count:])
    return helper.make_model(graph, opset_imports=op.body.opset_import, ir_version=10)


def _runner(op: FusedOp, shapes: Sequence[Shape], device: int, tf32: bool, why: NoPlanError) -> Run:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = SILENT
    options.intra_op_num_threads = 1
    model = _model(op, shapes).SerializeToString()
    try:
        session = onnxruntime.InferenceSession(model, options, providers=providers(device, tf32), enable_fallback=0)
    except ORT_ERRORS:
        raise why from None
    tensors = list(zip((*op.body.input, *op.body.output), (*op.inputs, *op.outputs), shapes, strict=True))

    def run(pointers: Sequence[int], stream: int) -> None:
        if not kernels.wait(stream, device):
            raise NoPlanError(
                f"{why}; its nodes run through ONNX Runtime, which cannot be in a CUDA graph",
                "Run such shapes in a session without enable_cuda_graph.",
            )
        binding, count = session.io_binding(), len(op.inputs)
        for (name, dtype, shape), pointer in zip(tensors[:count], pointers, strict=False):
            binding.bind_input(name, DEVICE, device, dtype, shape, pointer)
        # An output may have the memory of an input, which a kernel reads before it writes there; nodes may not.
        apart = {i for i, pointer in enumerate(pointers[count:], count) if pointer in pointers[:count]}
        for i, (name, dtype, shape) in enumerate(tensors[count:], count):
            binding.bind_output(name, DEVICE, device, *(() if i in apart else (dtype, shape, pointers[i])))
        session.run_with_iobinding(binding)
        made = binding.get_outputs()
        for i in apart:
            _, dtype, shape = tensors[i]
            kernels.copy(made[i - count].data_ptr(), pointers[i], math.prod(shape) * kernels.item_size(dtype), device)

    return run
