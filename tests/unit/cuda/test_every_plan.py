"""The law of plans: for every body that a template takes, every size and every GPU there is one, and a GPU launches it.

The tables of the other tests give the bodies; hypothesis draws sizes that nobody would write: odd, none, huge. Nothing
is allocated. And the law of launch programs: recorded once, they answer what the planner does.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bench.cases import images, moved, ops, products, rows
from bench.cases.ops import BRAIN, FLOAT, HALF
from onnxfuse import cuda
from onnxfuse.cuda.dispatch.proof import takes
from onnxfuse.cuda.planning import launch_plan
from onnxfuse.cuda.planning.arch import A10, A100, H200, L4, RTX5090, SUPPORTED, Arch
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, SmallCosts
from onnxfuse.cuda.templates.gemm import plan as gemm
from onnxfuse.model.fused import FusedOp
from onnxfuse.support.errors import NoPlanError
from tests.support.kernels import chains, depthwise_cases, joined, pools, programs, recurrents, windows
from tests.support.kernels.pools import Pool

ARCHES = st.sampled_from(SUPPORTED)
TYPES = st.sampled_from([HALF, BRAIN, FLOAT])
FEW = st.sampled_from([0, 1, 2, 3, 7, 8, 31, 33, 64])
SIZES = st.sampled_from([0, 1, 2, 3, 5, 7, 8, 16, 31, 33, 64, 96, 197, 768, 1025, 3072, 4096, 11008, 50257])
MANY = st.sampled_from([0, 1, 7, 33, 197, 4096, 65536, 65537, 1_000_003, 2**24])
BATCHES = st.sampled_from([0, 1, 3, 33, 1024, 65537])
PROFILE = settings()


def planned(fused: FusedOp, shapes: Sequence[tuple[int, ...]], aligned: bool, arch: Arch) -> LaunchPlan | None:
    """Plan, as a session does: `kernels.plan` raises where there is no plan, or none that `arch` can launch."""
    if cuda.supports(fused, lambda: arch) is not None:
        return None
    shapes = tuple(map(tuple, shapes))
    try:
        made = cuda.plan(fused, shapes, aligned, arch)
    except NoPlanError as refused:
        # A template counts the elements of images by 32 bits: larger ones are the general kernel's.
        if "elements or more" not in str(refused):
            raise
        assert max(map(math.prod, shapes)) >= 2**31
        assert cuda.general(fused, shapes, arch).output_shapes
        return None
    programs.agrees(fused, shapes, aligned, arch)
    # And the general kernel has one, too, which is for the same outputs.
    assert cuda.general(fused, shapes, arch).output_shapes == made.output_shapes
    return made


@pytest.fixture(autouse=True)
def small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors get their own plans here, unlike in the other tests of kernels."""
    monkeypatch.setattr(launch_plan, "small_costs", lambda arch: SmallCosts(1024, 128))


@PROFILE
@given(
    st.sampled_from(
        [products.GELU, products.TRANSPOSED, products.RESIDUAL, products.SWIGLU, products.QKV, products.SEVERAL]
    ),
    TYPES, st.lists(MANY, min_size=1, max_size=2), SIZES, SIZES, st.booleans(), ARCHES, st.booleans(),
)  # fmt: skip
def test_products(
    text: str, dtype: int, rows_: list[int], n: int, k: int, aligned: bool, arch: Arch, tf32: bool
) -> None:
    """A product of any size up to 2^31 rows."""
    while len(rows_) > 1 and rows_[0] * rows_[1] >= 2**31:
        rows_ = rows_[1:]
    fused, shapes = products.case(text, dtype, tuple(rows_), n, k)
    planned(replace(fused, tf32=tf32), shapes, aligned, arch)


@PROFILE
@given(st.sampled_from(sorted(products.TABLE)), TYPES, st.booleans(), ARCHES)
def test_every_layout_and_batch(name: str, dtype: int, aligned: bool, arch: Arch) -> None:
    planned(*products.table(name, dtype), aligned, arch)


@PROFILE
@given(st.sampled_from(sorted(products.PROLOGUES)), TYPES, MANY, SIZES, SIZES, st.booleans(), ARCHES)
def test_prologues(name: str, dtype: int, m: int, n: int, k: int, aligned: bool, arch: Arch) -> None:
    planned(*products.prologue(name, dtype, m, n, k), aligned, arch)


def side_by_side(
    count: int, dtype: int, residual: bool, together: bool
) -> tuple[FusedOp, Callable[[int, int, int], list[tuple[int, ...]]]]:
    """Return so many products of one input with a bias, or a residual, each: an output each, or their sum."""
    names = range(count)
    x, w, b = "x", [f"w{i}" for i in names], [f"b{i}" for i in names]
    nodes = [f"m{i} = MatMul(x, w{i}) a{i} = Add(m{i}, b{i})" for i in names]
    results = [f"a{i}" for i in names]
    if together:
        nodes += [f"s{i} = Add({f's{i - 1}' if i > 1 else 'a0'}, a{i})" for i in names if i]
        results = [f"s{count - 1}"]
    text = f"({', '.join([x, *w, *b])}) => ({', '.join(results)}) {{ {' '.join(nodes)} }}"
    fused = ops.op(text, (dtype,) * (1 + 2 * count), (dtype,) * len(results), "gemm")
    return fused, lambda m, n, k: [(m, k), *[(k, n)] * count, *[(m, n) if residual else (n,)] * count]


@PROFILE
@given(st.integers(1, 2 * gemm.MOST_BESIDE), TYPES, st.booleans(), SIZES, st.booleans(), ARCHES)
def test_any_number_of_products_of_one_input(
    count: int, dtype: int, residual: bool, m: int, aligned: bool, arch: Arch
) -> None:
    """Hopper's kernel takes as many as its arguments hold, another one any number: 12 of DeBERTa-v2 were too many."""
    fused, shapes = side_by_side(count, dtype, residual, False)
    planned(fused, shapes(m, 768, 768), aligned, arch)


@pytest.mark.parametrize(("count", "kernel"), [(gemm.MOST_BESIDE, "wgmma"), (gemm.MOST_BESIDE + 1, "mma.sync")])
def test_hoppers_kernel_takes_as_many_products_as_are_made_for_it(count: int, kernel: str) -> None:
    fused, shapes = side_by_side(count, HALF, False, False)
    plan = planned(fused, shapes(4096, 768, 768), True, H200)
    assert plan is not None
    assert kernel in plan.kernel.text
    assert len(plan.tensor_maps) == (2 * count + 1 if kernel == "wgmma" else 0)


@pytest.mark.parametrize("arch", [A100, A10, L4, H200, RTX5090], ids=lambda arch: arch.name)
@pytest.mark.parametrize("count", [2, 3, 4])
def test_up_to_four_products_of_one_output(count: int, arch: Arch) -> None:
    """On a GPU with 99 KB of shared memory three and four take smaller blocks."""
    fused, shapes = side_by_side(count, HALF, False, True)
    assert planned(fused, shapes(4096, 768, 768), True, arch) is not None


@PROFILE
@given(
    st.sampled_from(["LSTM", "GRU", "RNN"]), st.sampled_from([HALF, BRAIN]), st.sampled_from([1, 7, 32, 100, 256, 512]),
    MANY, BATCHES, SIZES.filter(bool), st.sampled_from(["forward", "bidirectional"]), st.booleans(), ARCHES,
)  # fmt: skip
def test_recurrent_layers(
    kind: str, dtype: int, hidden: int, steps: int, batch: int, terms: int, direction: str, aligned: bool, arch: Arch
) -> None:
    """Any number of positions and sequences, as far as the input is smaller than 2^31 elements."""
    assume(steps * batch * terms < 2**31)
    case = recurrents.Case(kind, hidden, steps, batch, terms, direction, states=steps % 2 == 0, dtype=dtype)
    planned(case.op(), case.shapes(), aligned, arch)


@PROFILE
@given(depthwise_cases.cases(60), BATCHES, st.booleans(), ARCHES)
def test_depthwise_convolutions(case: images.Case, batch: int, aligned: bool, arch: Arch) -> None:
    case = replace(case, images=batch)
    planned(case.op(), case.shapes(), aligned, arch)


@PROFILE
@given(pools.pools(60), BATCHES, st.booleans(), ARCHES)
def test_poolings(case: Pool, batch: int, aligned: bool, arch: Arch) -> None:
    case = replace(case, images=batch)
    planned(case.op(), case.shapes(), aligned, arch)


@PROFILE
@given(windows.cases(60), BATCHES, st.booleans(), ARCHES)
def test_convolutions_of_few_channels(case: windows.Case, batch: int, aligned: bool, arch: Arch) -> None:
    case = replace(case, images=batch)
    planned(case.op(), case.shapes(), aligned, arch)


@PROFILE
@given(TYPES, BATCHES, FEW, FEW, st.integers(1, 9).map(lambda n: n * 8), st.booleans(), ARCHES)
def test_parts_side_by_side(
    dtype: int, batch: int, height: int, width: int, channels: int, aligned: bool, arch: Arch
) -> None:
    planned(*joined.case(dtype, batch, (height, width), channels), aligned, arch)


@PROFILE
@given(
    TYPES, st.sampled_from([(1, 1), (3, 5)]), st.sampled_from(["", "strides = [2, 2]", "strides = [9, 9]",
    "pads = [2, 2, 2, 2]", "pads = [200, 200, 200, 200]", "dilations = [3, 100]", 'auto_pad = "SAME_UPPER"']),
    BATCHES, FEW, FEW, SIZES.filter(bool), SIZES.filter(bool), st.booleans(), ARCHES,
)  # fmt: skip
def test_convolutions(
    dtype: int,
    kernel: tuple[int, int],
    attributes: str,
    batch: int,
    height: int,
    width: int,
    channels: int,
    filters: int,
    aligned: bool,
    arch: Arch,
) -> None:
    fused, shapes = products.window(dtype, (batch, height, width, channels), filters, kernel, attributes)
    assume(max(batch * height * width * channels, math.prod(shapes[3][:3])) < 2**31)
    planned(fused, shapes, aligned, arch)


@PROFILE
@given(
    TYPES, st.sampled_from(["strides = [1, 1, 1]", "strides = [1, 2, 9]", "pads = [1, 2, 0, 1, 1, 20]",
    "dilations = [1, 3, 16]"]), BATCHES, FEW, FEW, st.sampled_from([1, 2, 16]), st.integers(1, 200),
    st.integers(1, 200), st.booleans(), ARCHES,
)  # fmt: skip
def test_convolutions_of_volumes_and_in_groups(
    dtype: int,
    attributes: str,
    batch: int,
    depth: int,
    width: int,
    groups: int,
    channels: int,
    filters: int,
    aligned: bool,
    arch: Arch,
) -> None:
    images = (batch, depth + 5, depth + 1, width + 47, groups * channels)
    fused, shapes = products.window(dtype, images, groups * filters, (3, 2, 3), f"group = {groups}, {attributes}")
    assume(max(math.prod(images), math.prod(shapes[3][:4])) < 2**31)
    planned(fused, shapes, aligned, arch)


@PROFILE
@given(st.sampled_from(sorted(rows.TEMPLATES)), TYPES, st.integers(0, 36), st.booleans(), ARCHES)
def test_reductions(name: str, dtype: int, bits: int, aligned: bool, arch: Arch) -> None:
    """From no element over none of the last rows to 2^36 of them."""
    family = rows.TEMPLATES[name]
    for shapes in (family.small, family.large(2**bits)):
        # Of no images at all ONNX defines no Reshape to [0, 32, -1].
        if takes(family.op(dtype), tuple(map(tuple, shapes))):
            planned(family.op(dtype), shapes, aligned, arch)


@PROFILE
@given(st.sampled_from([1, 5, 32]), TYPES, MANY, SIZES, st.booleans(), ARCHES)
def test_the_first_of_rows(k: int, dtype: int, count: int, columns: int, aligned: bool, arch: Arch) -> None:
    assume(columns >= k)
    planned(rows.topk(k, dtype), ((count, columns),), aligned, arch)


@PROFILE
@given(st.sampled_from([HALF, FLOAT]), st.sampled_from([0, 1, 64, 2**15, 2**17]), st.booleans(), ARCHES, st.data())
def test_moved_data(dtype: int, megabytes: int, aligned: bool, arch: Arch, data: st.DataObject) -> None:
    tables = (moved.small(dtype), moved.large(dtype, megabytes))
    for table in tables:
        fused, shapes = table[data.draw(st.sampled_from(sorted(table)))]
        planned(fused, shapes, aligned, arch)


@PROFILE
@given(chains.chains(HALF), st.booleans(), ARCHES)
def test_chains_of_movements(chain: tuple[FusedOp, tuple[tuple[int, ...], ...]], aligned: bool, arch: Arch) -> None:
    planned(*chain, aligned, arch)
