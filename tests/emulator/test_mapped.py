"""Whole kernels over moved data, run by the host's compiler: families, random chains, types, wide indices."""

import os
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto

from bench.cases import moved, ops
from bench.cases.ops import BOOL, BRAIN, DOUBLE, FLOAT, HALF, INT32, INT64
from onnxfuse import cuda
from onnxfuse.cuda import Arch
from onnxfuse.model.fused import FusedOp
from tests.emulator.test_whole_kernels import H200, SMALL, check
from tests.support.kernels.chains import chains

TEMPLATES = moved.small(HALF)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("aligned", [True, False])
def test_families(name: str, aligned: bool) -> None:
    """The body's values; each output element written once, nothing read beside the inputs."""
    check(*TEMPLATES[name], aligned)


@pytest.mark.parametrize("name", ["rope", "swiglu of 33", "to nhwc, 197", "to nchw, 3", "pad + mul", "transpose + add"])
@pytest.mark.parametrize("dtype", [FLOAT, DOUBLE, BRAIN])
def test_families_in_other_types(name: str, dtype: int) -> None:
    """Vectors of 2 to 8 elements; many waves of threads."""
    fused, shapes = moved.small(dtype)[name]
    check(fused, shapes, arch=SMALL)


@pytest.mark.parametrize(
    "dtype", [BOOL, TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, INT32, INT64, TensorProto.UINT64]
)
def test_movement_knows_every_element_type(dtype: int) -> None:
    """Bits are moved, whatever they mean; the zeros around a Pad are false."""
    text = f"""(x, z) => (y) {{ {moved.ints(p=(0, 1, 0, 2))} t = Transpose (x) c = Concat <axis = 1> (t, z)
      y = Pad (c, p) }}"""
    for rows in (24, 13):
        check(ops.op(text, (dtype,) * 2, (dtype,)), [(rows, 40), (40, 3)])


def test_a_mask_beside_floats() -> None:
    """One-byte and two-byte tensors through different maps."""
    text = """(m, x) => (y) { t = Transpose <perm = [0, 2, 1]> (x) n = Neg (t) y = Where (m, n, t) }"""
    check(ops.op(text, (BOOL, HALF), (HALF,)), [(3, 41, 75), (3, 75, 41)])


@pytest.mark.parametrize(
    ("channels", "axis", "by_table"),
    [
        ((64, 32, 32, 32), 3, True),
        ((64, 32, 32, 32), 1, True),
        ((24, 3, 8, 16, 13), 1, True),
        ((24, 3, 8, 16, 13), 3, False),
    ],
)
def test_many_inputs_side_by_side(channels: tuple[int, ...], axis: int, by_table: bool) -> None:
    """A dense layer's Concat, norm and ReLU: each vector from the input it lies in, also where it is of several."""
    rest = (sum(channels), 1, 1) if axis == 1 else (sum(channels),)
    parts = [(2, n, 5, 8) if axis == 1 else (2, 5, 8, n) for n in channels]
    plan = check(moved.dense_layer(HALF, len(channels), axis), [*parts, rest, rest])
    assert any(s.file == "concat/beside.cuh" for s in plan.kernel.sections) == by_table


def test_zeros_beside_many_inputs() -> None:
    """A Pad around a Concat: behind the last input nothing is read."""
    text = f"""(a, b, c) => (y) {{ {moved.ints(p=(0, 0, 0, 8))} j = Concat <axis = 1> (a, b, c) q = Pad (j, p)
      y = Relu (q) }}"""
    check(ops.op(text, (HALF,) * 3, (HALF,)), [(6, 8), (6, 16), (6, 8)])


def test_several_outputs() -> None:
    """Values at one place, of one shape."""
    text = "(x, z) => (a, b) { t = Transpose (x) a = Add (t, z) b = Relu (a) }"
    check(ops.op(text, (HALF, HALF), (HALF, HALF)), [(75, 139), (139, 75)])


def test_a_value_beside_its_own_transpose() -> None:
    check(ops.op("(x) => (y) { t = Transpose (x) y = Sub (x, t) }", (HALF,), (HALF,)), [(72, 72)])


def test_pieces_of_a_value_around_it() -> None:
    """Pad by what it mirrors, by its edges and by its other end; Tile."""
    lists = moved.ints(p=(0, 0, 3, 0, 0, 2), q=(1, 0, 0, 0, 0, 0), w=(0, 0, 0, 0, 2, 0), t=(1, 2, 1))
    text = f"""(x, k) => (y) {{ {lists} a = Pad <mode = "reflect"> (x, p) b = Pad <mode = "edge"> (a, q)
      c = Pad <mode = "wrap"> (b, w) d = Tile (c, t) y = Mul (d, k) }}"""
    check(ops.op(text, (HALF, HALF), (HALF,)), [(2, 4, 7), (12,)])


@pytest.mark.parametrize("shapes", [[(0, 3, 4), (0, 4, 3)], [(2, 0, 3), (2, 3, 0)]])
def test_nothing_is_launched_for_an_empty_output(shapes: list[tuple[int, int, int]]) -> None:
    assert check(moved.transpose_add(HALF), shapes).grid[0] == 0


def test_an_empty_operand_of_a_concat_is_nowhere() -> None:
    check(moved.concat_act(HALF), [(2, 0, 4, 8), (2, 5, 4, 8)])
    check(ops.op(f"(x) => (y) {{ {moved.ints(p=(2, 3))} y = Pad (x, p) }}", (FLOAT,), (FLOAT,)), [(0,)])


def test_what_is_wanted_nowhere_is_not_read() -> None:
    """Registers put between the class token and the patches of an image: the token is a part that has no patch."""
    cut = moved.ints(z=(0,), o=(1,), e=(2**62,))
    text = f"""(t, x, p, r) => (y) {{ {cut} j = Concat <axis = 1> (t, x) a = Add (j, p) f = Slice (a, z, o, o)
      l = Slice (a, o, e, o) y = Concat <axis = 1> (f, r, l) }}"""
    check(ops.op(text, (HALF,) * 4, (HALF,)), [(2, 1, 64), (2, 16, 64), (1, 17, 64), (2, 1, 64)])


@pytest.mark.parametrize("name", ["rope", "window reverse", "to nhwc, 64", "to nchw, 197", "swiglu of 33"])
def test_wide_indices(name: str) -> None:
    """Above 2^31 elements the same text runs on 64-bit indices; forced here on small tensors."""
    fused, shapes = TEMPLATES[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnxfuse.cuda.planning.launch_plan.index_bits", lambda elements: 64)
        plan = check(fused, shapes)
    assert "using Index = unsigned long long" in plan.kernel.text


def test_more_than_2_to_the_31_elements_of_an_input_use_64_bit_indices() -> None:
    """Though the output is small."""
    plan = cuda.plan(moved.slice_mul(HALF, 0, 64), ((2**20, 2**13), (64,)), True, H200)
    assert "using Index = unsigned long long" in plan.kernel.text


def test_a_new_batch_is_the_same_kernel() -> None:
    """The outermost extent stands in no map."""
    fused = moved.rope(HALF, 64)
    texts = {cuda.plan(fused, ((n, 3, 5, 64), (5, 64), (5, 64)), True, H200).kernel.text for n in (1, 2, 7)}
    assert len(texts) == 1
    fused = moved.to_nhwc(HALF)
    texts = {cuda.plan(fused, ((n, 64, 56, 56), (64,), (64,)), True, H200).kernel.text for n in (2, 7, 32)}
    assert len(texts) == 1


@settings(max_examples=18, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.sampled_from((HALF, FLOAT, INT64)).flatmap(lambda t: chains(t, 5)), st.booleans())
def test_random_chains(drawn: tuple[FusedOp, tuple[tuple[int, ...], ...]], aligned: bool) -> None:
    """What hypothesis finds: maps, guards, vectors and tails at once. Without sums of many roundings: exact."""
    fused, shapes = drawn
    if cuda.supports(fused) is None:
        check(fused, shapes, aligned, Arch("sm_90a", 1, 32))


def test_the_same_op_gives_the_same_text() -> None:
    """Conditions are sets inside; the order in which they are written does not depend on hashes."""
    script = (
        "from onnxfuse import cuda; from bench.cases import moved\n"
        "from tests.emulator.test_whole_kernels import H200, HALF\n"
        "fused, shapes = moved.small(HALF)['window reverse']\n"
        "print(cuda.plan(fused, tuple(shapes), True, H200).kernel.text)"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", script], env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in "12"
    }
    assert len(texts) == 1


@pytest.mark.parametrize("shape", [(70, 130), (9, 200), (200, 9), (64, 64), (257, 16), (2, 640)])
@pytest.mark.parametrize("dtype", [HALF, FLOAT, BOOL])
def test_tiles(shape: tuple[int, int], dtype: int) -> None:
    """What runs across goes through shared memory: whole tiles, cut ones, thin ones; both orders of the batch."""
    for perm in ((0, 2, 1), (2, 0, 1)):
        text = f"(x) => (y) {{ y = Transpose <perm = [{', '.join(map(str, perm))}]> (x) }}"
        plan = check(ops.op(text, (dtype,), (dtype,)), [(3, *shape)])
        assert "tiled(" in plan.kernel.text or min(shape) < 9


def test_a_tile_of_what_is_cut_and_joined() -> None:
    """A Slice, a Concat and a Pad around a transpose: the tile holds zeros and both pieces."""
    text = f"""(x, z) => (y) {{ {moved.ints(s=(1,), e=(60,), a=(2,), p=(0, 1, 3, 0, 2, 0))}
      c = Slice (x, s, e, a) j = Concat <axis = 1> (c, z) t = Transpose <perm = [0, 2, 1]> (j) q = Pad (t, p)
      y = Relu (q) }}"""
    plan = check(ops.op(text, (HALF, HALF), (HALF,)), [(2, 40, 64), (2, 9, 59)])
    assert "tiled(" in plan.kernel.text


def test_a_new_sequence_length_is_the_same_kernel() -> None:
    """Numbers are parameters: what the text holds is the structure of the maps."""
    fused = moved.rope(HALF, 64)
    texts = {cuda.plan(fused, ((2, 3, n, 64), (n, 64), (n, 64)), True, H200).kernel.text for n in (5, 80, 131)}
    assert len(texts) == 1
    fused = moved.keys(HALF, 2, 64)
    texts = {cuda.plan(fused, ((2, n, 128), (128,), ()), True, H200).kernel.text for n in (512, 1024, 2048)}
    assert len(texts) == 1
