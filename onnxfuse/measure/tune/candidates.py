"""Candidate implementations of a fused op: the kernel in its variants, what other rules make of the nodes,
plain nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import onnx

from onnxfuse import cuda, ops
from onnxfuse.cuda.dispatch import measurements
from onnxfuse.cuda.dispatch.measurements import Kind, Machine, MeasuredVariants, Timed
from onnxfuse.cuda.planning.arch import Arch
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.measure.tune.work import TuningTask
from onnxfuse.model.fused import fused_ops, write
from onnxfuse.passes import pipeline
from onnxfuse.rules.language.fuse_table import THROUGH_LIBRARY
from onnxfuse.rules.language.rule_file import Rule


@dataclass(frozen=True, eq=False)
class Candidate:
    """One candidate, as a model."""

    kind: Kind
    model: onnx.ModelProto
    """With the inputs, weights and outputs of the task; one with a variant carries it, as every tuned model does."""
    tuning: Variant | None = None

    @property
    def fused(self) -> bool:
        """Whether kernels run in it."""
        return self.kind != "alone"


def candidates(task: TuningTask, rules: Sequence[Rule], machine: Machine, arch: Arch) -> list[Candidate]:
    """Return every candidate of the task: the plan's own choice first, the plain nodes last."""
    tunings = cuda.candidates(task.op, task.shapes, arch) if cuda.is_template(task.op.template) else (None,)
    result = [Candidate("fused", _in_variant(task, t, machine), t) for t in tunings]
    if task.library:
        result.append(Candidate("library", _through_library(task)))
    split = _split(task, rules)
    return [*result, *([Candidate("split", split)] if split is not None else []), Candidate("alone", task.plain)]


def measured(task: TuningTask, timed: Sequence[Timed]) -> MeasuredVariants:
    """Return the measurements of the task."""
    names = [onnx.TensorProto.DataType.Name(t).lower() for t in task.op.inputs]
    nodes = tuple(n.op_type for n in task.op.body.node if n.op_type != ops.Constant)
    return MeasuredVariants(task.op.name, task.op.rule, nodes, tuple(names), task.shapes, tuple(timed))


def _in_variant(task: TuningTask, tuning: Variant | None, machine: Machine) -> onnx.ModelProto:
    if tuning is None:
        return task.fused
    model = onnx.ModelProto()
    model.CopyFrom(task.fused)
    measurements.attach(model, {machine: {task.key: measured(task, [Timed("fused", tuning, 0.0)])}})
    return model


def _through_library(task: TuningTask) -> onnx.ModelProto:
    """Return the op without its kernel, so that a session uses the library's op."""
    model = onnx.ModelProto()
    model.CopyFrom(task.fused)
    for function in (f for f in model.functions if f.name == task.op.name):
        function.CopyFrom(write(replace(task.op, template=THROUGH_LIBRARY)))
    return model


def _split(task: TuningTask, rules: Sequence[Rule]) -> onnx.ModelProto | None:
    """Return what the rules make of the nodes without the rule that made the op; None if that is nothing new.

    For a matrix product it is the library's node followed by one kernel, for a norm a kernel followed by the library's
    norm.
    """
    model = onnx.ModelProto()
    model.CopyFrom(task.plain)
    pipeline.run(model, [r for r in rules if r.name != task.op.rule])
    ops_made = fused_ops(model)
    return model if ops_made and task.op.name not in ops_made else None
