"""Small models for the laws: ONNX text in, optimized model out, and what both compute."""

import re
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.inliner
import onnxruntime as ort
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from onnxfuse.graph.graph import Graph, bodies
from onnxfuse.model.fused import DOMAIN, fused_ops
from onnxfuse.model.schema import opset_of
from onnxfuse.passes import pipeline
from onnxfuse.passes.manager import verifying
from onnxfuse.rules.language import rule_file
from onnxfuse.rules.match.report import OptimizeReport
from onnxfuse.shapes.inference import infer
from onnxfuse.verification.reference import cached_attention
from onnxfuse.verification.reference.packed import MatMulNBits

EXTENTS = {"N": 3, "S": 5, "C": 4, "H": 2, "T": 5}
"""What the dimension names of the text models stand for when they run; any other name is 3."""

HEADER = '<ir_version: 8, opset_import: ["" : {opset}]>'

Arrays = Mapping[str, np.ndarray]


def parse(text: str, opset: int = 17) -> ModelProto:
    """Return the model in `text`; a text that starts with its graph gets IR 8 and `opset`."""
    return onnx.parser.parse_model(text if text.lstrip().startswith("<") else HEADER.format(opset=opset) + text)


def graph_of(model: ModelProto) -> Graph:
    """Return the main graph, with its types inferred."""
    return Graph(model.graph, infer(model).graph, opset_of(model))


def numbers(count: int, step: int) -> str:
    """Return so many numbers of both signs, in quarters."""
    return ",".join(str((n * step % 13 - 6) / 4) for n in range(count))


@cache
def on_the_cpu() -> tuple[rule_file.Rule, ...]:
    """Return the shipped rules, with attention through the library's op for float32 too.

    The shipped one leaves float32 to its kernel and to the nodes, for speed; what the library's op computes can be
    tested in float32 alone: that is what the CPU's MultiHeadAttention knows.
    """
    return tuple(_for_float32(one) if one.name == "attention" else one for one in rule_file.shipped())


def _for_float32(attention: rule_file.Rule) -> rule_file.Rule:
    text = attention.path.read_text()
    assert text.count('"dtype(qh) in (float16') >= 4
    text = re.sub(r"dtype\(x\) == float16", "dtype(x) in (float16, float)", text)
    text = text.replace("dtype(qh) in (float16, bfloat16)", "dtype(qh) in (float16, bfloat16, float)")
    text = text.replace('where = "dtype(qh) != float"\n', "")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, attention.path.name)
        path.write_text(text)
        # As the shipped rules are read: to check hundreds of spellings of attention takes each process ten seconds.
        return rule_file.read(path, spellings=False)


def rules(*names: str) -> tuple[rule_file.Rule, ...]:
    """Return the rules of these names as `on_the_cpu` gives them, without names those that apply by default."""
    return tuple(r for r in on_the_cpu() if r.name in names) if names else rule_file.by_default(on_the_cpu())


NO_RULE = ""
"""The name of none: what `optimize` does by its passes alone."""


def optimize(model: ModelProto, *names: str) -> tuple[ModelProto, OptimizeReport]:
    """Return a copy of `model` optimized by the rules of these names (all without names), and the report."""
    copy = ModelProto()
    copy.CopyFrom(model)
    with verifying():
        return copy, pipeline.run(copy, rules(*names))


def ops(model: ModelProto, graph: onnx.GraphProto | None = None) -> list[str]:
    """Return the operators of a graph in order, a fused op as its nodes in braces: ["MatMul", "{Add Relu}"]."""
    fused = fused_ops(model)
    return [
        "{" + " ".join(n.op_type for n in fused[node.op_type].body.node if n.op_type != "Constant") + "}"
        if node.domain == DOMAIN
        else node.op_type
        for node in (graph or model.graph).node
    ]


def fuses(text: str | ModelProto, *names: str, opset: int = 17) -> list[str]:
    """Return the operators that are left of the model in `text`; what it computes must stay the same."""
    model = parse(text, opset) if isinstance(text, str) else text
    made, _ = optimize(model, *names)
    assert_same_numbers(model, made)
    return ops(made)


def reasons(text: str | ModelProto, *names: str, opset: int = 17) -> str:
    """Return why the rules did not apply to the model in `text`, which must stay as it is, one reason per line."""
    model = parse(text, opset) if isinstance(text, str) else text
    made, report = optimize(model, *names)
    assert report.applied == []
    assert made == model
    return "\n".join(f"{near.refusal.node}: {near.refusal.reason}" for near in report.near)


def halved(model: ModelProto) -> ModelProto:
    """Return `model` with every float32 of its main graph as float16."""
    half = ModelProto()
    half.CopyFrom(model)
    for value in (*half.graph.input, *half.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    inside = (a.t for n in half.graph.node for a in n.attribute if a.HasField("t"))
    for tensor in (*half.graph.initializer, *inside):
        if tensor.data_type == TensorProto.FLOAT:
            array = numpy_helper.to_array(tensor).astype(np.float16)
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return half


# ---- what a model computes


def signed_inputs(model: ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Return one array per graph input: normal numbers of both signs, so that Relu and Identity differ."""
    random = np.random.default_rng(seed)
    weights = {t.name for t in model.graph.initializer}
    found = {}
    for value in model.graph.input:
        if value.name in weights:
            continue
        tensor = value.type.tensor_type
        shape = [d.dim_value if d.HasField("dim_value") else EXTENTS.get(d.dim_param, 3) for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        drawn = np.asarray(random.normal(size=shape) * 2)
        if np.issubdtype(dtype, np.bool_):
            found[value.name] = np.asarray(drawn > 0)
        elif np.issubdtype(dtype, np.integer):
            found[value.name] = np.asarray(np.abs(drawn * 2), dtype)
        else:
            found[value.name] = drawn.astype(dtype)
    return found


def run(model: ModelProto, inputs: Arrays) -> list[np.ndarray]:
    """Return the outputs of `model` from plain ONNX Runtime on the CPU, without its graph optimizations."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(inputs)))


class SimplifiedLayerNormalization(OpRun):
    """ONNX Runtime's operator of the default domain, which ONNX does not define: an RMS norm over the last axis."""

    op_domain = ""

    def _run(self, x: np.ndarray, scale: np.ndarray, **_: Any) -> tuple[np.ndarray]:
        return (x / np.sqrt((x * x).mean(-1, keepdims=True) + getattr(self, "epsilon", 1e-5)) * scale,)


def evaluate(model: ModelProto, inputs: Arrays) -> list[np.ndarray]:
    """Return the outputs of `model` from ONNX's reference implementation: slow, obvious, any element type."""
    evaluator = ReferenceEvaluator(
        model, new_ops=[SimplifiedLayerNormalization, MatMulNBits, *cached_attention.OPERATORS]
    )
    return [np.asarray(a) for a in evaluator.run(None, dict(inputs))]


def doubled(model: ModelProto) -> ModelProto:
    """Return `model` with every float16, bfloat16 and float32 as float64 and functions inlined: free of rounding."""
    wide = onnx.inliner.inline_local_functions(model)
    for value in (*wide.graph.input, *wide.graph.output):
        if value.type.tensor_type.elem_type in _NARROW:
            value.type.tensor_type.elem_type = TensorProto.DOUBLE
    del wide.graph.value_info[:]
    for opset in wide.opset_import:
        opset.domain = "" if opset.domain == "ai.onnx" else opset.domain
    _double_graph(wide.graph)
    _ungroup(wide.graph)
    return wide


_NARROW = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)


def _double_graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _double_tensor(tensor)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name == "value" and attribute.type == onnx.AttributeProto.TENSOR:
                _double_tensor(attribute.t)
            elif attribute.name == "value_float":
                attribute.CopyFrom(
                    helper.make_attribute("value", numpy_helper.from_array(np.array(attribute.f, np.float64)))
                )
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i in _NARROW:
                attribute.i = TensorProto.DOUBLE
        for body in bodies(node):
            _double_graph(body)


def _double_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _NARROW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _ungroup(graph: onnx.GraphProto) -> None:
    """Write a grouped ConvTranspose as a plain one with a block diagonal weight: onnx.reference has no grouped one."""
    for node in graph.node:
        group = next((a for a in node.attribute if a.name == "group" and a.i > 1), None)
        if node.op_type != "ConvTranspose" or group is None:
            continue
        tensor = next(t for t in graph.initializer if t.name == node.input[1])
        blocks = np.split(numpy_helper.to_array(tensor), group.i)
        rows, columns, *kernel = blocks[0].shape
        dense = np.zeros((rows * group.i, columns * group.i, *kernel))
        for index, block in enumerate(blocks):
            dense[index * rows : (index + 1) * rows, index * columns : (index + 1) * columns] = block
        tensor.CopyFrom(numpy_helper.from_array(dense, tensor.name))
        group.i = 1


def assert_same_numbers(
    original: ModelProto,
    changed: ModelProto,
    seed: int = 0,
    *,
    folded: bool = False,
    run: Callable[[ModelProto, Arrays], list[np.ndarray]] = run,
) -> None:
    """Both models compute the same: against float64, the changed one errs at most twice as much as the original.

    One rounding step of the output type, at the size of the output's largest number, is added: an original that is
    exact by luck allows no less. Where weights were `folded`, each was rounded once more, before sums in which larger
    numbers may have cancelled: there the step is taken at the size of the largest number on the way. `run` runs both.
    """
    inputs = signed_inputs(original, seed)
    wide = {k: a.astype(np.float64) if a.dtype.kind in "fV" else a for k, a in inputs.items()}
    truth = evaluate(doubled(original), wide)
    largest = _largest_inside(doubled(original), wide) if folded else None
    outputs = [o.name for o in original.graph.output]
    assert outputs == [o.name for o in changed.graph.output]
    for name, true, before, after in zip(outputs, truth, run(original, inputs), run(changed, inputs), strict=True):
        assert_within_budget(name, true, before, after, largest)


def _largest_inside(model: ModelProto, inputs: Arrays) -> np.float64:
    # What stands in a branch is computed beside it.
    model.graph.node.extend(n for node in model.graph.node for a in node.attribute for n in a.g.node)
    names = [o for n in model.graph.node for o in n.output if o]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return np.float64(max(np.abs(a).max(initial=0) for a in evaluate(model, inputs)))


def assert_within_budget(
    name: str, truth: np.ndarray, before: np.ndarray, after: np.ndarray, largest: np.float64 | None = None
) -> None:
    """`after` keeps type and shape of `before`, and errs at most twice as much against `truth` plus one rounding step
    at the size of `largest`, by default of the largest number in `before`."""
    assert (after.dtype, after.shape) == (before.dtype, before.shape), name
    if before.dtype.kind in "biu":
        np.testing.assert_array_equal(after, before, err_msg=name)
        return
    np.testing.assert_array_equal(np.isfinite(after), np.isfinite(before), err_msg=name)
    finite = np.isfinite(before.astype(np.float64)) & np.isfinite(truth)
    if not finite.any():
        return
    truth, before, after = truth[finite], before[finite], after[finite]
    error = np.abs(after.astype(np.float64) - truth).max()
    step = np.spacing(np.abs(before).max() if largest is None else largest.astype(before.dtype)).astype(np.float64)
    allowed = 2 * np.abs(before.astype(np.float64) - truth).max() + step
    assert error <= allowed, f"{name}: error {error:g}, allowed {allowed:g}"
