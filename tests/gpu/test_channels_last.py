"""Regions channels last on a real GPU: the library's own ops for them, and whole small nets, against float64."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto

import onnxfuse
from onnxfuse import runtime
from tests.support.channels_last import weights
from tests.support.small import assert_within_budget, doubled, evaluate, halved, parse, signed_inputs
from tests.unit.passes.layout import test_subpixel
from tests.unit.runtime.sessions.test_channels_last import MODELS

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(runtime.cuda_unusable() is not None, reason=f"no GPU: {runtime.cuda_unusable()}"),
]

# Without TF32: which of the library's kernels use it is its own choice, and not the same for a Conv and a MatMul.
CUDA: Sequence[Any] = [("CUDAExecutionProvider", {"use_tf32": "0"}), "CPUExecutionProvider"]


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_librarys_ops_compute_what_the_model_says(name: str, half: bool) -> None:
    """Each as often as the file says, none through its body; errors stay within twice the original's."""
    model: ModelProto = halved(MODELS[name]()) if half else MODELS[name]()
    inputs = signed_inputs(model)
    (truth,) = evaluate(doubled(model), {k: a.astype(np.float64) for k, a in inputs.items()})
    before = onnxruntime.InferenceSession(model.SerializeToString(), providers=CUDA).run(None, inputs)[0]
    session = runtime.session(onnxfuse.optimize(model), CUDA)
    assert "body" not in {p.runs_as for p in session.fused}
    assert {p.rule for p in session.fused if p.runs_as == "onnxruntime"} <= {"direct", "nhwc_conv", "nhwc_pool"}
    assert_within_budget(name, truth, before, session.run(None, inputs)[0])


@pytest.mark.parametrize("half", [False, True], ids=["float32", "float16"])
@pytest.mark.parametrize("channels", [8, 48, 64])
@pytest.mark.parametrize("name", test_subpixel.TAKEN)
def test_transposed_convolutions_over_blocks(name: str, channels: int, half: bool) -> None:
    """The layers of real nets, whichever kernels take them: both outputs within the budget."""
    rank, kernel, size, told = test_subpixel.TAKEN[name]
    made = test_subpixel.model(rank, kernel, size, channels=channels, filters=24, **told)
    model = halved(made) if half else made
    x = test_subpixel.image(model, [3, 2, *(n if isinstance(n, int) else 37 for n in size)])
    inputs = {"image": x / x.dtype.type(64)}  # so that float16 holds the results
    truths = evaluate(doubled(model), {k: a.astype(np.float64) for k, a in inputs.items()})
    befores = onnxruntime.InferenceSession(model.SerializeToString(), providers=CUDA).run(None, inputs)
    fused = onnxfuse.optimize(model)
    assert not any("ConvTranspose" in node.op_type for node in fused.graph.node)
    session = runtime.session(fused, CUDA)
    for truth, before, after in zip(truths, befores, session.run(None, inputs), strict=True):
        assert_within_budget(name, truth, before, after)


PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=12, deadline=None)
@given(
    half=st.booleans(),
    groups=st.integers(1, 4),
    channels=st.integers(1, 20),
    filters=st.integers(1, 20),
    kernel=PAIRS,
    strides=PAIRS,
    dilations=PAIRS,
    pads=st.one_of(st.tuples(*[st.integers(0, 3)] * 4), st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"])),
    size=st.tuples(st.integers(7, 19), st.integers(7, 19)),
)
def test_any_convolution_of_a_model(
    half: bool,
    groups: int,
    channels: int,
    filters: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int] | str,
    size: tuple[int, int],
) -> None:
    """From ONNX's Conv to the session, between two others: whichever kernel or op takes it, the numbers hold."""
    if str(pads).startswith("SAME"):
        dilations = (1, 1)  # ONNX Runtime refuses others beside pads that follow from the size
    ins, outs = groups * channels, groups * filters
    padding = f'auto_pad = "{pads}"' if isinstance(pads, str) else f"pads = {list(pads)}"
    how = f"group = {groups}, strides = {list(strides)}, dilations = {list(dilations)}, {padding}"
    stored = [
        weights("a", ins, 3, 3, 3), weights("k", outs, channels, *kernel), weights("c", 8, outs, 1, 1),
        f"float[{outs}] b = {{{','.join(str(n % 5 - 2) for n in range(outs))}}}",
    ]  # fmt: skip
    model = parse(f"""g (float[2,3,{size[0]},{size[1]}] x) => (float[2,8,P,Q] y) <{", ".join(stored)}> {{
      f = Conv <pads = [1,1,1,1]> (x, a)
      r = Relu (f)
      m = Conv <{how}> (r, k, b)
      s = Sigmoid (m)
      y = Conv (s, c)
    }}""")
    model = halved(model) if half else model
    inputs = signed_inputs(model)
    (truth,) = evaluate(doubled(model), {k: a.astype(np.float64) for k, a in inputs.items()})
    if not math.prod(truth.shape):
        return
    before = onnxruntime.InferenceSession(model.SerializeToString(), providers=CUDA).run(None, inputs)[0]
    session = runtime.session(onnxfuse.optimize(model), CUDA)
    assert_within_budget("any", truth, before, session.run(None, inputs)[0])


@pytest.mark.parametrize(
    ("size", "kernel", "how"),
    [
        ("9,11", (3, 3), "group = 2, pads = [1,1,1,1]"), ("50", (16,), "group = 2, pads = [8,7]"),
        ("4,7,6", (3, 2, 3), "pads = [1,0,1,1,1,1], strides = [1,2,1]"),
    ],
)  # fmt: skip
def test_groups_signals_and_volumes_of_a_model_run_by_our_kernel(size: str, kernel: tuple[int, ...], how: str) -> None:
    ones, channels = [1] * len(kernel), 96 // (2 if "group" in how else 1)
    stored = [
        weights("a", 96, 3, *ones),
        weights("k", 80, channels, *kernel),
        weights("b", 80),
        weights("c", 8, 80, *ones),
    ]
    open_ended = ",".join("PQR"[: len(kernel)])
    whole = parse(f"""g (float[2,3,{size}] x) => (float[2,8,{open_ended}] y) <{", ".join(stored)}> {{
      f = Conv (x, a)
      m = Conv <kernel_shape = {list(kernel)}, {how}> (f, k, b)
      s = Sigmoid (m)
      y = Conv (s, c)
    }}""")
    model = halved(whole)
    inputs = signed_inputs(model)
    (truth,) = evaluate(doubled(model), {k: a.astype(np.float64) for k, a in inputs.items()})
    before = onnxruntime.InferenceSession(model.SerializeToString(), providers=CUDA).run(None, inputs)[0]
    session = runtime.session(onnxfuse.optimize(model), CUDA)
    (taken,) = [p for p in session.fused if p.rule == "implicit_gemm"]
    assert taken.runs_as == "kernel"
    assert_within_budget("groups", truth, before, session.run(None, inputs)[0])
