"""Convolutions between channels-last values in sessions: on CUDA the library's own ops, and nowhere else."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, helper

import onnxfuse
from onnxfuse import runtime
from onnxfuse.model.fused import fused_ops
from onnxfuse.passes import pipeline
from onnxfuse.rules.language import rule_file
from onnxfuse.runtime.sessions.ort_ops import with_library_ops
from tests.support import stand_in_kernels
from tests.support.channels_last import between, weights
from tests.support.scenarios import FakeCuda
from tests.support.small import assert_within_budget, doubled, evaluate, halved, optimize, parse, run, signed_inputs

DOMAIN = "com.ms.internal.nhwc"
PAD = ", int64[8] pads = {0,0,0,0,0,0,1,0}"

MODELS: dict[str, Callable[[], ModelProto]] = {
    "Conv": lambda: between(
        "y = Conv <pads = [1,0,0,2], strides = [1,2]> (x, k)", extra=", " + weights("k", 4, 4, 3, 2)
    ),
    "Conv in groups": lambda: between("y = Conv <group = 2> (x, k)", extra=", " + weights("k", 4, 2, 3, 3)),
    "Conv of each channel": lambda: between(
        'y = Conv <group = 4, dilations = [1,2], auto_pad = "VALID"> (x, k)', extra=", " + weights("k", 4, 1, 3, 3)
    ),
    "ConvTranspose": lambda: between(
        "y = ConvTranspose <strides = [2,1]> (x, k)", extra=", " + weights("k", 4, 4, 2, 3)
    ),
    "ConvTranspose of Keras": lambda: between(
        "y = ConvTranspose <strides = [2,2], pads = [0,0,1,1]> (x, k)", extra=", " + weights("k", 4, 4, 3, 3)
    ),
    # Windows too large for the kernels.
    "MaxPool": lambda: between("y = MaxPool <kernel_shape = [10,9], strides = [2,1], pads = [2,1,1,1]> (x)"),
    "AveragePool": lambda: between("y = AveragePool <kernel_shape = [10,9], pads = [1,1,1,1]> (x)"),
    "AveragePool of opset 20": lambda: between(
        "y = AveragePool <kernel_shape = [10,9], pads = [1,1,1,1], dilations = [1,1]> (x)", opset=20
    ),
    "LRN": lambda: between("y = LRN <size = 3, alpha = 0.5> (x)"),
    "DepthToSpace": lambda: between('y = DepthToSpace <blocksize = 2, mode = "CRD"> (x)', channels=1),
    "SpaceToDepth": lambda: between("p = Pad (x, pads) y = SpaceToDepth <blocksize = 2> (p)", channels=16, extra=PAD),
}


def of_onnx(model: ModelProto) -> ModelProto:
    """Return `model` with each op of the library's domain as what it stands for: ONNX's op between two Transposes."""
    copy = ModelProto()
    copy.CopyFrom(model)
    nodes = []
    for number, node in enumerate(copy.graph.node):
        if node.domain != DOMAIN:
            nodes.append(node)
            continue
        first, made = f"first_{number}", f"made_{number}"
        plain = helper.make_node(node.op_type, [first, *node.input[1:]], [made])
        plain.attribute.extend(node.attribute)
        nodes.append(helper.make_node("Transpose", [node.input[0]], [first], perm=[0, 3, 1, 2]))
        nodes.append(plain)
        nodes.append(helper.make_node("Transpose", [made], list(node.output), perm=[0, 2, 3, 1]))
    del copy.graph.node[:]
    copy.graph.node.extend(nodes)
    for opset in list(copy.opset_import):
        if opset.domain == DOMAIN:
            copy.opset_import.remove(opset)
    return copy


def library_nodes(model: ModelProto) -> set[str]:
    return {n.op_type for n in model.graph.node if n.domain == DOMAIN}


@pytest.mark.parametrize("name", MODELS)
def test_the_librarys_form_computes_what_the_body_does(name: str) -> None:
    """With the op of that domain read as ONNX's on images turned around; the file itself holds none of it."""
    model = MODELS[name]()
    made, _ = optimize(model)
    assert not library_nodes(made)
    opened = with_library_ops(made, onnxruntime.SessionOptions(), fused_ops(made))
    assert {"Conv", name.split()[0]} == library_nodes(opened)
    inputs = signed_inputs(model)
    (truth,) = evaluate(doubled(model), {k: a.astype(np.float64) for k, a in inputs.items()})
    assert_within_budget(name, truth, run(model, inputs)[0], run(of_onnx(opened), inputs)[0])


def opened_on_cuda() -> Any:
    stand_in_kernels.install()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, build in MODELS.items():
            for dtype in ("float32", "float16"):
                model = build() if dtype == "float32" else halved(build())
                options = onnxruntime.SessionOptions()
                options.optimized_model_filepath = str(Path(folder) / "seen.onnx")
                options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
                made = ModelProto.FromString(model.SerializeToString())
                # Without the rule whose kernels take convolutions of so few channels.
                pipeline.run(made, [r for r in rule_file.by_default(rule_file.shipped()) if r.name != "direct"])
                session = runtime.session(made, ["CUDAExecutionProvider"], options)
                nodes = onnx.load(Path(folder) / "seen.onnx").graph.node
                found[f"{name} {dtype}"] = {
                    "library": sorted({n.op_type for n in nodes if n.domain == DOMAIN}),
                    "plain": sorted({n.op_type for n in nodes if n.domain == ""} & {"Conv", *(name.split()[:1])}),
                    "turned": sum(n.op_type == "Transpose" for n in nodes),
                    "bodies": [p.rule for p in session.fused if p.runs_as == "body"],
                }
    return found


def test_a_session_on_cuda_turns_nothing_inside(on_fake_cuda: FakeCuda) -> None:
    """The library's op has a kernel for each type: nothing is on the CPU, and two Transposes are left, at the ends."""
    for name, facts in on_fake_cuda(opened_on_cuda).items():
        assert facts["library"] == sorted({"Conv", name.split()[0]}), name
        assert (facts["plain"], facts["turned"], facts["bodies"]) == ([], 2, []), name


def residual_block() -> ModelProto:
    """A convolution that the tensor-core kernel takes, with its bias, residual and activation."""
    return halved(
        parse(f"""g (float[N,48,6,5] x) => (float[N,48,6,5] out) <{weights("k", 48, 48, 3, 3)}, {weights("b", 48)}> {{
          c = Conv <pads = [1,1,1,1]> (x, k, b)
          r = Relu (c)
          d = Conv <pads = [1,1,1,1]> (r, k, b)
          s = Add (d, r)
          out = Relu (s)
        }}""")
    )


def test_what_grew_after_a_convolution_follows_the_librarys_op() -> None:
    """The library's form of a kernel's op computes all that the kernel does."""
    model = residual_block()
    made, _ = optimize(model)
    products = {op.name: op for op in fused_ops(made).values() if op.rule == "implicit_gemm"}
    assert len(products) == 2
    opened = with_library_ops(made, onnxruntime.SessionOptions(), products)
    assert library_nodes(opened) == {"Conv"}
    inputs = signed_inputs(model)
    (truth,) = evaluate(doubled(model), {k: a.astype(np.float64) for k, a in inputs.items()})
    assert_within_budget("residual", truth, run(model, inputs)[0], run(of_onnx(opened), inputs)[0])


def on_two_gpus() -> Any:
    kernels, found = stand_in_kernels.install(), {}
    made = onnxfuse.optimize(residual_block())
    products = {op.name for op in fused_ops(made).values() if op.rule == "implicit_gemm"}
    with tempfile.TemporaryDirectory() as folder:
        for gpu, reason in (("Hopper", None), ("older", "made for sm_80 and later")):
            kernels.unsupported = {} if reason is None else dict.fromkeys(products, reason)
            options = onnxruntime.SessionOptions()
            options.optimized_model_filepath = str(Path(folder) / "seen.onnx")
            session = runtime.session(made, ["CUDAExecutionProvider"], options)
            nodes = onnx.load(Path(folder) / "seen.onnx").graph.node
            found[gpu] = [
                *sorted({p.runs_as for p in session.fused if p.op in products}),
                sum(n.domain == DOMAIN for n in nodes),
                sum(n.op_type in products for n in nodes),
            ]
    return found


def test_the_librarys_op_stands_in_where_the_gpu_runs_no_kernel(on_fake_cuda: FakeCuda) -> None:
    """On Hopper the kernel, elsewhere ONNX Runtime's channels-last convolution; never the body with its Transposes."""
    assert on_fake_cuda(on_two_gpus) == {"Hopper": ["kernel", 0, 2], "older": ["onnxruntime", 2, 0]}
