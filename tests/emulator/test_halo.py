"""The direct template's kernel for slices of channels: windows that slide by one pixel, images side by side."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cases import ops
from bench.cases.images import PLAIN, RESIDUAL, SEVERAL, SILU
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.build import nvrtc
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.cuda.templates.conv.variant import DirectVariant, Halo
from onnxfuse.support.errors import KernelError
from tests.emulator import emulate
from tests.emulator.test_whole_kernels import H200
from tests.support.kernels import programs
from tests.support.kernels.windows import TEXTS, Case

A100 = Arch("sm_80", 108)
CASE = Case(SILU, HALF, True, 1, 40, 32, (9, 10), (3, 3), pads=(1, 1, 1, 1))
DENSE = replace(CASE, channels=96, beside=(32, 24), size=(5, 18))
LARGE = replace(CASE, images=8, size=(128, 128))


def planned(case: Case, tuning: Variant | None = None, aligned: bool = True, arch: Arch = H200) -> LaunchPlan:
    plan = cuda.plan(case.op(), tuple(case.shapes()), aligned, arch, tuning)
    assert any(s.file == "conv/halo.cu" for s in plan.kernel.sections)
    return plan


def check(case: Case, tuning: Variant | None = None, aligned: bool = True) -> None:
    """Assert that the kernel gives the body within the budget: where each warp multiplies by itself."""
    fused = case.op()
    inputs = case.inputs(np.random.default_rng(case.channels))
    arch = A100 if tuning is None else H200
    got = emulate.run(planned(case, tuning, aligned, arch), inputs, [ops.NUMPY[t] for t in fused.outputs], aligned)
    ops.within_budget(fused, inputs, got, case.cuts)


# ---- numbers


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("case", [CASE, DENSE], ids=["one", "several"])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_the_kernel_gives_the_body(text: str, case: Case, dtype: int) -> None:
    check(replace(case, text=text, dtype=dtype))


@pytest.mark.parametrize(
    "case",
    [
        replace(CASE, channels=33, filters=9), replace(CASE, channels=50, filters=20), replace(CASE, filters=24),
        replace(DENSE, beside=(2, 31)), replace(CASE, kernel=(2, 5), pads=(0, 3, 2, 1)),
        replace(DENSE, kernel=(1, 1), pads=(0, 0, 0, 0)), replace(CASE, filters=96, text=RESIDUAL),
        replace(CASE, auto_pad="SAME_UPPER", kernel=(3, 4)), replace(CASE, channels=18, filters=18, dtype=FLOAT),
        replace(CASE, channels=36, filters=36, dtype=FLOAT, images=3), replace(CASE, size=(1, 1)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("aligned", [True, False])
def test_odd_sizes_and_pointers(case: Case, aligned: bool) -> None:
    """Channels that are no whole pieces of 16 bytes, or no whole slices; filters that are no whole products."""
    check(case, aligned=aligned)


@pytest.mark.parametrize(
    "halo",
    [
        Halo(4, 16, 32, 1, 1, 2), Halo(8, 16, 64, 2, 1, 3), Halo(16, 16, 64, 4, 2, 2), Halo(8, 32, 32, 2, 1, 2),
        Halo(32, 16, 32, 8, 1, 3), Halo(4, 32, 64, 2, 2, 3),
    ],
)  # fmt: skip
@pytest.mark.parametrize("channels", [32, 96])
def test_any_tile_gives_the_same(halo: Halo, channels: int) -> None:
    """One slice, as many as there are stages, and more."""
    check(replace(CASE, channels=channels, filters=64), DirectVariant(halo=halo))


@settings(max_examples=8, deadline=None)
@given(
    data=st.data(), dtype=st.sampled_from([HALF, BRAIN, FLOAT]), kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)),
    size=st.tuples(st.integers(5, 20), st.integers(5, 40)), pads=st.tuples(*[st.integers(0, 3)] * 4),
    parts=st.lists(st.integers(1, 40), min_size=2, max_size=4), filters=st.integers(1, 70), aligned=st.booleans(),
)  # fmt: skip
def test_any_images_side_by_side(
    data: st.DataObject,
    dtype: int,
    kernel: tuple[int, int],
    size: tuple[int, int],
    pads: tuple[int, int, int, int],
    parts: list[int],
    filters: int,
    aligned: bool,
) -> None:
    text = data.draw(st.sampled_from(TEXTS))
    check(
        Case(text, dtype, True, 2, sum(parts), filters, size, kernel, pads=pads, beside=tuple(parts[1:])),
        aligned=aligned,
    )


def test_an_input_beside_itself_and_as_the_residual() -> None:
    """As in a dense block, whose last sum adds the first part."""
    op = ops.op(
        "(x, z, w) => (y) { j = Concat <axis = -1> (x, z, x) i = Transpose <perm = [0,3,1,2]> (j) "
        "v = Transpose <perm = [0,3,1,2]> (w) d = Conv (i, v) c = Transpose <perm = [0,2,3,1]> (d) y = Add(c, x) }",
        (HALF,) * 3, (HALF,), "direct",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    inputs = [ops.random(rng, HALF, s) for s in ((1, 4, 5, 16), (1, 4, 5, 8), (16, 1, 1, 40))]
    plan = cuda.plan(op, tuple(i.shape for i in inputs), True, A100)
    ops.within_budget(op, inputs, emulate.run(plan, inputs, [np.dtype(np.float16)]), 0)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_infinities_stay_where_they_are_seen(dtype: int) -> None:
    """An infinity reaches the outputs whose windows hold it, and makes no neighbour NaN."""
    made = replace(DENSE, text=PLAIN, dtype=dtype)
    inputs = made.inputs(np.random.default_rng(0))
    inputs[0].reshape(-1)[[5, 77, 301]] = np.inf
    inputs[1] = np.abs(inputs[1]) + np.array(0.25, inputs[1].dtype)
    got = emulate.run(planned(made, arch=A100), inputs, [ops.NUMPY[dtype]])
    exact = ops.truth(made.op(), inputs)
    assert np.isinf(got[0]).any()
    np.testing.assert_array_equal(np.isinf(got[0]), np.isinf(exact[0]))
    assert not np.isnan(got[0]).any()


# ---- plans


def test_nothing_to_compute_launches_nothing() -> None:
    """Windows that fit nowhere."""
    assert planned(replace(DENSE, size=(1, 9), pads=(0, 0, 0, 0))).grid[0] == 0


@pytest.mark.parametrize(("images", "share"), [(1, 1), (16, 1), (17, 2), (33, 2), (34, 3), (500, 100)])
def test_blocks_come_apart(images: int, share: int) -> None:
    """As few share a multiprocessor as can, however many fit: else the first ones that are free would have all."""
    tile = DirectVariant(halo=Halo(8, 16, 32, 2, 1, 2))
    plan = planned(replace(LARGE, images=images, channels=64, size=(32, 32)), tile)
    assert plan.grid[0] == 8 * images
    room = (H200.shared_bytes + 1024) // (plan.shared_bytes + 1024)
    most = (H200.shared_bytes + 1024) // (2 * 8 * 1024)
    assert room == share if share < 3 else 3 <= room <= most


def test_another_size_is_the_same_kernel() -> None:
    """What depends on batch and extents is passed by value."""
    few, many = (planned(replace(LARGE, images=n, size=(n * 16, 128))) for n in (8, 16))
    assert few.kernel == many.kernel
    assert few.parameters != many.parameters


@pytest.mark.parametrize("case", [CASE, DENSE, replace(LARGE, channels=160, beside=(32, 32, 32))])
@pytest.mark.parametrize("aligned", [True, False])
def test_launch_programs_answer_as_the_planner_does(case: Case, aligned: bool) -> None:
    programs.agrees(case.op(), tuple(case.shapes()), aligned, H200)


def test_the_general_kernel_takes_images_side_by_side() -> None:
    inputs = DENSE.inputs(np.random.default_rng(0))
    plan = cuda.general(DENSE.op(), tuple(DENSE.shapes()), H200)
    ops.within_budget(DENSE.op(), inputs, emulate.run(plan, inputs, [np.dtype(np.float16)]), 0)


def test_candidates_are_different_and_have_plans() -> None:
    """The plan's own choice is among them; of images side by side tiles alone."""
    for case in (replace(LARGE, channels=160), replace(LARGE, channels=160, beside=(64,))):
        shapes = tuple(case.shapes())
        found = cuda.candidates(case.op(), shapes, H200)
        plans = [cuda.plan(case.op(), shapes, True, H200, t) for t in found]
        assert len(found) == len({(p.kernel, p.grid) for p in plans}) > 3
        assert not case.beside or all(getattr(t, "area", t) is None for t in found[1:])


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        (replace(DENSE, strides=(2, 2)), "side by side, but not for windows that slide by one pixel"),
        (replace(DENSE, packed=False), "side by side, but not for"),
        (replace(DENSE, images_last=False), "values that the body computes"),
    ],
)
def test_what_no_kernel_fits_is_refused_with_the_reason(case: Case, reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        planned(case)


def test_images_of_different_sizes_are_refused() -> None:
    shapes = [*DENSE.shapes()[:-1], (1, 5, 19, 24)]
    with pytest.raises(KernelError, match="side by side"):
        cuda.plan(DENSE.op(), tuple(shapes), True, H200)


def test_a_tile_that_does_not_fit_is_refused_with_the_reason() -> None:
    with pytest.raises(KernelError, match="bytes of shared memory, expected at most"):
        planned(replace(LARGE, channels=160), DirectVariant(halo=Halo(32, 32, 64, 8, 1, 3)))
    with pytest.raises(KernelError, match="a tile of"):
        planned(LARGE, DirectVariant(halo=Halo(6, 16, 32, 4, 1, 2)))


# ---- the compiler


@pytest.mark.parametrize("arch", [H200, A100], ids=lambda a: a.name)
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_warps_multiply_together_where_they_can(arch: Arch, dtype: int) -> None:
    """Of 16 bits, on Hopper."""
    together = Halo(8, 16, 32, 2, 1, 2, 1)
    if arch == H200 and dtype == HALF:
        plan = planned(LARGE, DirectVariant(halo=together))
        assert any(s.file == "conv/halo_warpgroup.cuh" for s in plan.kernel.sections)
    else:
        with pytest.raises(KernelError, match="together of elements of"):
            planned(replace(LARGE, dtype=dtype), DirectVariant(halo=together), arch=arch)


@pytest.mark.parametrize(("stack", "filters"), [(1, 32), (2, 64), (4, 64), (7, 32), (8, 24)])
@pytest.mark.parametrize("channels", [40, 160])
def test_products_of_warps_together_wait_for_nothing_else(stack: int, filters: int, channels: int) -> None:
    """Their registers are theirs: the compiler would tell that it has them go one after the other."""
    case = replace(LARGE, channels=channels, filters=filters, text=RESIDUAL)
    plan = planned(case, DirectVariant(halo=Halo(4 * stack, 16, filters, stack, 1, 2, 1)))
    _, log = nvrtc.build(plan.kernel, H200, ("-Xptxas=-v",))
    assert "0 bytes spill stores" in log
    assert "serialized" not in log


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize("arch", [H200, A100], ids=lambda a: a.name)
@pytest.mark.parametrize(
    "case",
    [
        replace(LARGE, channels=160, beside=(32, 32, 32)), replace(LARGE, channels=192, filters=64, text=RESIDUAL),
        replace(LARGE, channels=36, filters=36, text=SEVERAL),
    ],
)  # fmt: skip
def test_kernels_compile_without_spills(dtype: int, arch: Arch, case: Case) -> None:
    cubin, log = nvrtc.build(planned(replace(case, dtype=dtype), arch=arch).kernel, arch, ("-Xptxas=-v",))
    assert cubin.startswith(b"\x7fELF")
    assert "0 bytes spill stores" in log
