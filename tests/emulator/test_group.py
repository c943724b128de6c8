"""Norms over places and neighbouring channels, kept by clusters or read twice: shapes, types, hard values."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from bench.cases import ops
from bench.cases.ops import BRAIN, DOUBLE, FLOAT, HALF
from bench.cases.rows import TEMPLATES, axes
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, SmallCosts
from onnxfuse.cuda.templates.reduction import group
from onnxfuse.model.fused import FusedOp
from tests.emulator import emulate
from tests.emulator.test_reduction import KINDS, values
from tests.emulator.test_whole_kernels import check
from tests.support.kernels import programs

FEW = Arch("sm_90a", 4)
"""It has room for 8 blocks of the template."""

KEPT = group._resident
NORM = TEMPLATES["group norm of NHWC + silu"]
EMBEDDED = """(x, b, t, g, h, r) => (y) { u = Add (x, b) w = Add (u, t) f = Transpose <perm = [0, 3, 1, 2]> (w)
  n = GroupNormalization <num_groups = 4, stash_type = 1> (f, g, h) l = Transpose <perm = [0, 2, 3, 1]> (n)
  s = Sigmoid (l) m = Mul (l, s) y = Add (m, r) }"""
"""As in a U-Net: bias and time embedding before, SiLU after; and a residual."""
GROUPED = """(x, i, z, g, b) => (y) { f = Transpose <perm = [0, 3, 1, 2]> (x) c = Constant <value_ints = [0, 4, -1]> ()
  o = Shape (f) r = Reshape (f, c) n = InstanceNormalization (r, i, z) t = Reshape (n, o)
  l = Transpose <perm = [0, 2, 3, 1]> (t) k = Mul (l, g) y = Add (k, b) }"""
OF_CHANNELS = f"""(x, g) => (y) {{ {axes(1, 2)} e = Constant <value = float {{1e-5}}> () f = CastLike (e, x)
  m = ReduceMean (x, a) d = Sub (x, m) s = Mul (d, d) v = ReduceMean (s, a) w = Add (v, f) r = Sqrt (w)
  n = Div (d, r) y = Mul (n, g) }}"""


@pytest.fixture(params=["kept", "read twice"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to run a norm, also where a cluster could keep it."""
    if request.param != "kept":
        monkeypatch.setattr(group, "_resident", lambda norm: None)
    return request.param


def ran(plan: LaunchPlan) -> str | None:
    """Return which way a plan of the template goes; None where it is none."""
    files = {s.file for s in plan.kernel.sections}
    if "reduction/group_held.cu" in files:
        return "kept"
    return "read twice" if "reduction/group_sums.cu" in files and len(plan.then) == 1 else None


def taken(plan: LaunchPlan) -> bool:
    """Return whether this is a plan of the template."""
    return ran(plan) is not None


def grouped(plan: LaunchPlan, way: str = "kept") -> LaunchPlan:
    """Check that the plan is one of the template, and goes this way."""
    assert ran(plan) == way
    return plan


def norm(groups: int) -> Callable[[int], FusedOp]:
    text = NORM.text.replace("num_groups = 32", f"num_groups = {groups}")
    return lambda dtype: ops.op(text, (dtype,) * 3, (dtype,), "row")


@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
@pytest.mark.parametrize(
    ("shape", "groups"),
    [
        ((2, 9, 13, 40), 4),  # vectors across the boundaries of groups
        ((1, 31, 33, 40), 8),
        ((3, 17, 11, 24), 2),
        ((2, 41, 3, 64), 64),  # groups of one channel
        ((2, 3, 5, 320), 32),
        ((2, 5, 7, 512), 2),
        ((1, 60, 41, 3), 3),  # vectors of one element
        ((1, 19, 7, 100), 5),
        ((7, 2, 3, 200), 2),
        ((33, 1, 2, 96), 3),  # fewer places than rows of threads
    ],
    ids=str,
)
def test_any_image(shape: tuple[int, int, int, int], groups: int, dtype: int, way: str) -> None:
    """Each element written once, nothing read beside the inputs, whatever the parts of an image and its groups."""
    channels = shape[-1]
    plan = check(norm(groups)(dtype), [shape, (channels,), (channels,)], arch=FEW)
    assert ran(plan) == (way if groups < channels else None)


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_parts_of_an_image_are_joined(dtype: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A last part of fewer places, and a row of threads that has none in it."""
    monkeypatch.setattr(group, "_resident", lambda norm: None)
    plan = grouped(check(norm(4)(dtype), [(1, 23, 29, 200), (200,), (200,)], arch=FEW), "read twice")
    assert plan.grid[0] == plan.then[0].grid[0] == 8
    rows = 12 if dtype == HALF else 6
    assert f"ROWS = {rows};" in plan.kernel.text
    each = -(-23 * 29 // 8)
    assert 0 < 23 * 29 - 7 * each < each


@pytest.mark.parametrize("dtype", [HALF, FLOAT])
@pytest.mark.parametrize("residual", [(2, 9, 13, 40), (2, 1, 1, 40), (9, 13, 1), (2, 1, 13, 1)], ids=str)
def test_what_stands_before_and_after(residual: tuple[int, ...], dtype: int, way: str) -> None:
    shapes = [(2, 9, 13, 40), (40,), (2, 1, 1, 40), (40,), (40,), residual]
    grouped(check(ops.op(EMBEDDED, (dtype,) * 6, (dtype,), "row"), shapes, arch=FEW), way)


def test_the_sum_before_the_norm_is_an_output_too(way: str) -> None:
    text = EMBEDDED.replace("=> (y)", "=> (w, y)")
    shapes = [(2, 9, 13, 40), (40,), (2, 1, 1, 40), (40,), (40,), (2, 9, 13, 40)]
    grouped(check(ops.op(text, (HALF,) * 6, (HALF,) * 2, "row"), shapes, arch=FEW), way)


def test_weights_by_group(way: str) -> None:
    """An element for several neighbours is read once for all places."""
    shapes = [(2, 9, 13, 40), (4,), (4,), (40,), (40,)]
    grouped(check(ops.op(GROUPED, (HALF,) * 5, (HALF,), "row"), shapes, arch=FEW), way)


def test_images_of_other_ranks(way: str) -> None:
    text = NORM.text.replace("num_groups = 32", "num_groups = 4")
    line = text.replace("[0, 3, 1, 2]", "[0, 2, 1]").replace("[0, 2, 3, 1]", "[0, 2, 1]")
    grouped(check(ops.op(line, (HALF,) * 3, (HALF,), "row"), [(2, 77, 40), (40,), (40,)], arch=FEW), way)
    solid = text.replace("[0, 3, 1, 2]", "[0, 4, 1, 2, 3]").replace("[0, 2, 3, 1]", "[0, 2, 3, 4, 1]")
    grouped(check(ops.op(solid, (HALF,) * 3, (HALF,), "row"), [(2, 3, 7, 5, 40), (40,), (40,)], arch=FEW), way)


@pytest.mark.parametrize("over", [None, 0])
def test_norms_of_channels_by_themselves(over: int | None, way: str) -> None:
    """Where no cluster holds their places in registers, also over the input itself."""
    fused = ops.op(OF_CHANNELS, (HALF,) * 2, (HALF,), "row")
    before_clusters = Arch("sm_80", 4)
    grouped(check(fused, [(1, 35, 33, 24), (24,)], arch=before_clusters, over=over), way)
    assert not taken(check(fused, [(1, 31, 33, 24), (24,)], arch=before_clusters, over=over))


def test_off_the_boundaries_of_memory(way: str) -> None:
    grouped(check(norm(4)(HALF), [(2, 9, 13, 40), (40,), (40,)], aligned=False, arch=FEW), way)


def test_wide_index(monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr("onnxfuse.cuda.planning.launch_plan.index_bits", lambda elements: 64)
    plan = grouped(check(norm(4)(HALF), [(2, 9, 13, 40), (40,), (40,)], arch=FEW), way)
    assert "using Index = unsigned long long" in plan.kernel.text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [HALF, BRAIN, FLOAT])
def test_hard_values_stay_in_the_budget(kind: str, dtype: int, way: str) -> None:
    """At most twice the unfused error against float64."""
    if kind == "large and constant" and dtype != HALF:
        pytest.skip("onnx's function body subtracts squares of 1e30, and takes the root of what is below 0")
    fused, shapes = norm(4)(dtype), [(2, 9, 13, 40), (40,), (40,)]
    rng = np.random.default_rng(1)
    x = values(kind, shapes[0], dtype)
    inputs = [x, *(ops.random(rng, dtype, s) for s in shapes[1:])]
    plan = grouped(cuda.plan(fused, tuple(shapes), True, FEW), way)
    ops.within_budget(fused, inputs, emulate.run(plan, inputs, [ops.NUMPY[dtype]]))


@pytest.mark.parametrize("place", [(0, 0, 0, 0), (0, 4, 7, 13), (1, 8, 12, 39)], ids=str)
def test_one_value_far_from_all_others(place: tuple[int, int, int, int], way: str) -> None:
    """Also where it is the one from which differences are taken."""
    fused = norm(4)(FLOAT)
    x = np.random.default_rng(2).standard_normal((2, 9, 13, 40)).astype(np.float32)
    x[place] = 1e6
    weights = [ops.random(np.random.default_rng(1), FLOAT, (40,)) for _ in range(2)]
    plan = grouped(cuda.plan(fused, (x.shape, (40,), (40,)), True, FEW), way)
    ops.within_budget(fused, [x, *weights], emulate.run(plan, [x, *weights], [np.float32]))


@pytest.mark.parametrize("of", [np.nan, np.inf])
def test_what_is_not_a_number_stays_in_its_group(of: float, way: str) -> None:
    fused = norm(4)(HALF)
    x = np.random.default_rng(2).standard_normal((2, 9, 13, 40)).astype(np.float16)
    x[1, 3, 5, 12] = of
    ones = [np.ones(40, np.float16)] * 2
    (got,) = emulate.run(cuda.plan(fused, (x.shape, (40,), (40,)), True, FEW), [x, *ones], [np.float16])
    assert np.isnan(got[1, :, :, 10:20]).all()
    got[1, :, :, 10:20] = 0
    assert np.isfinite(got).all()


def clusters(plan: LaunchPlan) -> int:
    """Return the blocks of a cluster."""
    (found,) = re.findall(r"int CLUSTER = (\d+);", plan.kernel.text)
    return int(found)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_clusters_of_any_size(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where their last blocks have no places."""
    ways = []

    def kept(norm: Any) -> Any:
        usual = KEPT(norm)
        assert usual is not None
        found = replace(usual, cluster=size)
        ways.append(found)
        return found

    monkeypatch.setattr(group, "_resident", kept)
    for pixels in ((9, 13), (3, 3), (1, 67)):
        plan = grouped(check(norm(4)(HALF), [(2, *pixels, 80), (80,), (80,)], arch=FEW))
        assert clusters(plan) == size
        assert plan.grid[0] == 2 * 80 // ways[-1].columns * size


def test_what_no_cluster_keeps_is_read_twice() -> None:
    """Neither does one whose blocks would not all run at once; blocks by themselves may."""
    many = Arch("sm_90a", 132)

    def way_of(*shape: int, arch: Arch = many) -> str | None:
        return ran(cuda.plan(norm(4)(HALF), (shape, shape[-1:], shape[-1:]), True, arch))

    places = 8 * 78 * 1024 // (40 * 2)
    assert way_of(1, 1, places, 40) == "kept"
    assert way_of(1, 1, 2 * places, 40) == "read twice"
    assert way_of(16, 1, places, 40) == "kept"
    assert way_of(17, 1, places, 40) == "read twice"
    assert way_of(300, 8, 64, 40) == "kept"
    assert way_of(1, 1, places, 40, arch=Arch("sm_80", 108)) == "read twice"
    plan = cuda.plan(norm(4)(HALF), ((1, 1, places, 40), (40,), (40,)), True, many)
    assert clusters(plan) == 8
    assert way_of(132, 1, 2 * 1024, 40) == "kept"
    assert plan.shared_bytes <= many.shared_bytes


@pytest.mark.parametrize("arch", [FEW, Arch("sm_90a", 132), Arch("sm_80", 108)], ids=["few", "hopper", "many"])
@pytest.mark.parametrize("shape", [(2, 9, 13, 40), (8, 64, 64, 320), (1, 32, 32, 1280), (1, 512, 512, 40)], ids=str)
def test_a_program_answers_as_the_planner_plans(shape: tuple[int, int, int, int], arch: Arch) -> None:
    """Images of any number and size; the channels are a program's own."""
    channels = shape[-1]
    shapes = (shape, (channels,), (shape[0], 1, 1, channels), (channels,), (channels,), shape)
    programs.agrees(ops.op(EMBEDDED, (HALF,) * 6, (HALF,), "row"), shapes, True, arch, 4)


def test_what_other_templates_do_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors, double, sums, greatest values, images whose channels stand first, more vectors than threads."""
    shapes = ((2, 9, 13, 40), (40,), (40,))
    assert not taken(cuda.plan(norm(4)(DOUBLE), shapes, True, FEW))
    assert taken(cuda.plan(norm(4)(HALF), shapes, True, FEW))
    wide = ((2, 9, 13, 1200), (1200,), (1200,))
    assert taken(cuda.plan(norm(4)(HALF), wide, True, FEW))
    assert not taken(cuda.plan(norm(4)(HALF), wide, False, FEW))
    first = TEMPLATES["group norm + silu"]
    assert not taken(cuda.plan(first.op(HALF), ((2, 12, 19, 19), (12,), (12,)), True, FEW))
    softmax = TEMPLATES["softmax over channels"]
    assert not taken(cuda.plan(softmax.op(HALF), ((2, 21, 40, 8),), True, FEW))
    assert not taken(cuda.plan(TEMPLATES["pool NHWC"].op(HALF), ((2, 70, 70, 24),), True, FEW))
    assert not taken(cuda.plan(TEMPLATES["batch statistics"].op(HALF), ((9, 5, 70, 70),), True, FEW))
    means = ops.op(OF_CHANNELS.replace("=> (y)", "=> (m, y)"), (HALF,) * 2, (HALF,) * 2, "row")
    assert not taken(cuda.plan(means, ((1, 70, 33, 24), (24,)), True, Arch("sm_80", 4)))
    monkeypatch.setattr(launch_plan, "small_costs", lambda arch: SmallCosts(1024, 128))
    assert not taken(cuda.plan(norm(4)(HALF), shapes, True, Arch("sm_90a", 132)))
    assert taken(cuda.plan(norm(4)(HALF), shapes, True, FEW))
