"""What the fuzz on the GPU and the one on the host share: the fused ops of a model with the inputs that they meet."""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import onnxfuse
from bench.cases import ops
from onnxfuse import cuda
from onnxfuse.cuda.planning.arch import A100, H200, SUPPORTED
from onnxfuse.model.fused import DOMAIN, FusedOp, fused_ops
from onnxfuse.support.errors import OnnxfuseError
from onnxfuse.verification.reference.windows import MaxPool
from tests.emulator import emulate
from tests.support.arches import on
from tests.support.kernels.random_models import Case

TF32 = ("gemm", "direct", "concat", "attention")
"""Templates that round factors of float32: their numbers are judged beside ONNX Runtime's own TF32, on a GPU."""

Called = tuple[FusedOp, list[np.ndarray]]


def called(case: Case) -> Iterator[Called]:
    """Yield each fused op of the optimized model that has a template, with its inputs in this run of the model."""
    model = onnxfuse.optimize(case.model)
    found = fused_ops(model)
    known = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    known.update(case.feeds)
    for node in model.graph.node:
        given = [known[i] for i in node.input if i]
        if node.domain == DOMAIN:
            op = found[node.op_type]
            if cuda.is_template(op.template):
                yield op, given
            made = ops.unfused(op, given)
        else:
            made = _alone(node, known, model.opset_import)
        known.update({name: y for name, y in zip(node.output, made, strict=False) if name})


def _alone(node: onnx.NodeProto, known: dict[str, np.ndarray], opsets: object) -> list[np.ndarray]:
    empty = onnx.helper.make_empty_tensor_value_info
    names = [i for i in dict.fromkeys(node.input) if i]
    graph = onnx.helper.make_graph([node], "one", [empty(n) for n in names], [empty(o) for o in node.output if o])
    evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets), new_ops=[MaxPool])
    with np.errstate(all="ignore"):
        return list(evaluator.run(None, {n: known[n] for n in names}))


def plans_everywhere(op: FusedOp, shapes: tuple[tuple[int, ...], ...]) -> list[str]:
    """Return the failures to plan an op on every supported GPU, both alignments, one line each."""
    failures = []
    for arch in SUPPORTED:
        if cuda.supports(op, on(arch)) is not None:
            continue
        for aligned in (True, False):
            try:
                cuda.plan(op, shapes, aligned, arch)
            except OnnxfuseError as error:
                failures.append(f"{arch.name}{'' if aligned else ' unaligned'}: {error}")
    return failures


def emulated(op: FusedOp, inputs: list[np.ndarray], aligned: bool) -> str | None:
    """Run the kernel of an op on the host: no element written twice or beside the outputs, nothing read beside the
    inputs, and the numbers in the budget. Returns why the host cannot run it, None where it did."""
    arch = A100 if op.template in TF32 else H200
    refused = cuda.supports(op, lambda: arch)
    if refused is not None:
        return refused
    plan = cuda.plan(op, tuple(x.shape for x in inputs), aligned, arch)
    got = emulate.run(plan, inputs, [ops.NUMPY[t] for t in op.outputs], aligned)
    if checks_numbers(op):
        ops.within_budget(op, inputs, got, summed(op))
    return None


def checks_numbers(op: FusedOp) -> bool:
    """Return whether the kernel's numbers are held against float64 here: all but those that are rounded to TF32."""
    return op.template not in TF32 or onnx.TensorProto.FLOAT not in op.inputs


def summed(op: FusedOp) -> int:
    """Return how often a kernel may cut a sum off (`ops.within_budget`): none where the type itself is coarser."""
    return 64 if op.template in TF32 else 0
