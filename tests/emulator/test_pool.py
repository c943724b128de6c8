"""Pooling in the depthwise template: every window against the body, by the host's compiler."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.ops import FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.conv.convolution import MOST_TAPS
from onnxfuse.cuda.templates.conv.variant import DepthwiseVariant, Patch
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels.pools import ALONE, BIAS_RELU, OPERANDS, Pool, pools

STEM = Pool("MaxPool", BIAS_RELU, HALF, 2, 24, (13, 18), (3, 3), (2, 2), pads=(1, 1, 1, 1))


def check(case: Pool, aligned: bool = True, tuning: Variant | None = None) -> LaunchPlan:
    """Assert that the kernel gives the body within the budget, of the shape that the body has."""
    fused = case.op()
    inputs = case.inputs(np.random.default_rng(case.channels))
    plan = cuda.plan(fused, tuple(case.shapes()), aligned, H200, tuning)
    assert plan.output_shapes == (case.image(*case.output()),)
    ops.within_budget(fused, inputs, emulate.run(plan, inputs, [ops.NUMPY[t] for t in fused.outputs], aligned))
    return plan


@pytest.mark.parametrize("text", list(OPERANDS))
@pytest.mark.parametrize("kind", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(("channels", "first"), [(24, False), (6, False), (5, True)])
def test_the_kernel_gives_the_body(text: str, kind: str, channels: int, first: bool) -> None:
    check(Pool(kind, text, HALF, 2, channels, (9, 8), (3, 3), (2, 2), pads=(1, 1, 1, 1), first=first))


@settings(max_examples=12, deadline=None)
@given(case=pools(largest=11), aligned=st.booleans())
def test_any_pooling(case: Pool, aligned: bool) -> None:
    """Windows, strides, pads, dilations, rounding up, padding that counts, odd channels, any layout and type."""
    # onnx's reference (1.23) takes the mean of a window that passes the image over places that do not exist, too.
    assume(not (case.ceil and case.kind == "AveragePool"))
    check(case, aligned)


@settings(max_examples=10, deadline=None)
@given(case=pools(largest=11))
def test_onnx_runtime_gives_the_same(case: Pool) -> None:
    """Means over what the library means, as many windows as it has: onnx's reference is not the only witness."""
    batch, (height, width), channels = case.images, case.size, case.channels
    text = f'<ir_version: 8, opset_import: ["" : 19]> g (float[{batch},{channels},{height},{width}] x) => ' + (
        f"(float[a,b,c,d] y) {{ y = {case.kind} {case.attributes()} (x) }}"
    )
    session = onnxruntime.InferenceSession(
        onnx.parser.parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(case.channels).standard_normal((batch, height, width, channels), dtype=np.float32)
    (expected,) = session.run(None, {"x": x.transpose(0, 3, 1, 2)})
    plain = Pool(
        case.kind, ALONE, FLOAT, batch, channels, case.size, case.kernel, case.strides, case.dilations, case.pads,
        case.ceil, case.padded,
    )  # fmt: skip
    plan = cuda.plan(plain.op(), tuple(plain.shapes()), True, H200)
    (got,) = emulate.run(plan, [x], [np.float32], True)
    # A mean of at most 25 numbers, summed in another order.
    np.testing.assert_allclose(got, expected.transpose(0, 2, 3, 1), rtol=0, atol=25 * 2**-24 * np.abs(x).max())


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("general", [False, True])
@pytest.mark.parametrize(
    ("size", "kernel", "strides", "pads", "ceil"),
    [
        ((1, 3), (2, 2), (2, 2), (0, 0, 0, 0), False),  # larger than the image, by less than a stride
        ((3, 2), (5, 4), (3, 2), (1, 1, 0, 0), False),
        ((4, 5), (3, 3), (2, 3), (1, 0, 1, 1), True),  # a last window passes the padding
        ((7, 5), (3, 4), (3, 3), (0, 1, 1, 0), True),
        ((5, 5), (3, 3), (1, 1), (1, 1, 1, 1), False),
    ],
)
def test_a_mean_counts_padding_and_nothing_beyond_it(
    size: tuple[int, int], kernel: tuple[int, int], strides: tuple[int, int], pads: tuple[int, int, int, int],
    ceil: bool, general: bool, first: bool,
) -> None:  # fmt: skip
    """As in ONNX Runtime from operator set 19 on, in the kernel for poolings and in the general one."""
    case = Pool(
        "AveragePool", ALONE, FLOAT, 2, 5, size, kernel, strides, pads=pads, ceil=ceil, padded=True, first=first
    )
    x = np.random.default_rng(0).standard_normal(case.image(*size), dtype=np.float32)
    text = '<ir_version: 8, opset_import: ["" : 19]> g (float[a,b,c,d] x) => ' + (
        f"(float[e,f,g,h] y) {{ y = AveragePool {case.attributes()} (x) }}"
    )
    session = onnxruntime.InferenceSession(
        onnx.parser.parse_model(text).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (expected,) = session.run(None, {"x": x if first else x.transpose(0, 3, 1, 2)})
    op, shapes = case.op(), (x.shape,)
    plan = cuda.general(op, shapes, H200) if general else cuda.plan(op, shapes, True, H200)
    (got,) = emulate.run(plan, [x], [np.float32], True)
    np.testing.assert_allclose(got if first else got.transpose(0, 3, 1, 2), expected, rtol=0, atol=25 * 2**-22)


def test_padding_is_never_the_greatest() -> None:
    """All elements below zero: a window at the edge gives one of them, not the 0 of the padding."""
    inputs = [
        -1 - np.abs(x)
        for x in Pool("MaxPool", ALONE, HALF, 1, 8, (4, 4), (3, 3), pads=(1, 1, 1, 1)).inputs(np.random.default_rng(0))
    ]
    case = Pool("MaxPool", ALONE, HALF, 1, 8, (4, 4), (3, 3), pads=(1, 1, 1, 1))
    (got,) = emulate.run(cuda.plan(case.op(), tuple(case.shapes()), True, H200), inputs, [np.float16], True)
    assert (got <= -1).all()


def test_a_window_that_sees_a_nan_gives_one() -> None:
    case = Pool("MaxPool", ALONE, HALF, 1, 8, (5, 5), (3, 3))
    x = np.zeros((1, 5, 5, 8), np.float16)
    x[0, 0, 0, 3] = np.nan
    (got,) = emulate.run(cuda.plan(case.op(), tuple(case.shapes()), True, H200), [x], [np.float16], True)
    assert [tuple(place) for place in np.argwhere(np.isnan(got))] == [(0, 0, 0, 3)]


@pytest.mark.parametrize("patch", [Patch(1, 1, 8, 64), Patch(4, 2, 4, 128), Patch(2, 3, 1, 32)])
def test_any_patch_gives_the_same(patch: Patch) -> None:
    check(STEM, tuning=DepthwiseVariant(patch=patch))


def test_a_thread_moves_whole_vectors() -> None:
    """8 bytes of neighbouring channels."""
    assert "CHANNELS = 4;" in check(STEM).kernel.text
    assert "CHANNELS = 2;" in check(Pool("AveragePool", ALONE, FLOAT, 1, 8, (4, 4), (2, 2))).kernel.text


@pytest.mark.parametrize("size", [(0, 8, (5, 5)), (2, 0, (5, 5))])
def test_nothing_to_pool_launches_nothing(size: tuple[int, int, tuple[int, int]]) -> None:
    images, channels, places = size
    case = Pool("MaxPool", ALONE, HALF, images, channels, places, (3, 3))
    assert cuda.plan(case.op(), tuple(case.shapes()), True, H200).grid[0] == 0


TO, BACK = "i = Transpose <perm = [0,3,1,2]> (x)", "perm = [0,2,3,1]"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            f"(x) => (y) {{ {TO} y = MaxPool <kernel_shape = [2,2]> (i) }}",
            "between transposes by [(0, 3, 1, 2)] and []",
        ),
        (
            f'(x) => (y) {{ {TO} p = MaxPool <kernel_shape = [2,2], dilations = [2,2], auto_pad = "SAME_UPPER"> (i) '
            f"y = Transpose <{BACK}> (p) }}",
            "dilations and pads that follow from the size",
        ),
        (
            f"(x) => (y) {{ {TO} p = AveragePool <kernel_shape = [10,9]> (i) y = Transpose <{BACK}> (p) }}",
            f"a window of 90 elements, expected at most {MOST_TAPS}",
        ),
        (
            f"(x) => (y) {{ {TO} p, at = MaxPool <kernel_shape = [2,2]> (i) y = Transpose <{BACK}> (p) }}",
            "MaxPool with 2 outputs",
        ),
        (f"(x) => (y) {{ {TO} p = MaxPool (i) y = Transpose <{BACK}> (p) }}", "MaxPool without kernel_shape"),
    ],
)
def test_what_no_kernel_fits_is_refused_with_the_reason(text: str, reason: str) -> None:
    assert reason in str(cuda.supports(ops.op(text, (HALF,), (HALF,), "depthwise")))


def test_an_old_mean_over_padding_in_windows_that_pass_it_is_refused() -> None:
    """Before operator set 19 ONNX Runtime counts what lies beyond the padding in some of its versions."""
    text = f"(x) => (y) {{ {TO} p = AveragePool <kernel_shape = [2,2], ceil_mode = 1, count_include_pad = 1> (i) "
    fused = ops.op(f"{text} y = Transpose <{BACK}> (p) }}", (HALF,), (HALF,), "depthwise", opset=18)
    assert "a mean over padding in windows that pass it" in str(cuda.supports(fused))
