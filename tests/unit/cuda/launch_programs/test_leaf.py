"""A leaf of a launch program gives the plan back, for any values of its expressions."""

from dataclasses import fields, replace
from typing import Any

import pytest

from bench.cases import ops
from bench.cases.ops import FLOAT
from onnxfuse import cuda
from onnxfuse.codegen.emit.source import KernelSource
from onnxfuse.cuda.launch_programs import leaf
from onnxfuse.cuda.planning.arch import H200
from onnxfuse.cuda.planning.launch_plan import LaunchPlan, PackedParameters, PixelWindow, TensorMapSpec
from onnxfuse.symbolic.evaluation import evaluated
from onnxfuse.symbolic.recording import extents_of
from tests.unit.symbolic.test_recording import recording

NEGATE = ops.op("(x) => (y) { y = Neg(x) }", (FLOAT,), (FLOAT,), "pointwise")


def kernels() -> tuple[list[KernelSource], Any]:
    """Return a list of kernels, and the function that numbers them."""
    found = list[KernelSource]()

    def number(kernel: KernelSource) -> int:
        if kernel not in found:
            found.append(kernel)
        return found.index(kernel)

    return found, number


def planned(n: Any) -> LaunchPlan:
    """Return a plan in which everything that a launch may need depends on an extent."""
    plain = cuda.plan(NEGATE, ((64,),), True, H200)
    maps = (
        TensorMapSpec(0, FLOAT, (n, 8), (n * 4,), (16, 8), to_tf32=True, offset=n * 2),
        TensorMapSpec(1, FLOAT, (n, 8, 2), (n, n + 1), (4, 4), PixelWindow((0, n), (n, 1), (2, 2))),
    )
    words: Any = PackedParameters((n, n - 1, 7), 64)
    after = replace(plain, grid=(n + 1, 1, 1), output_shapes=((n,),))
    return replace(
        plain,
        grid=(n // 2, n, 1),
        block=(n % 64 + 32, 1, 1),
        shared_bytes=n * 16,
        parameters=words,
        output_shapes=((n, 8), (3,)),
        tensor_maps=maps,
        scratch_bytes=n + 8,
        counter_bytes=n,
        then=(after,),
    )


@pytest.mark.parametrize("size", [2, 17, 640])
def test_a_recorded_plan_is_the_plan_for_every_extent(size: int) -> None:
    """Grid, block, memory, parameters, shapes, tensor maps with and without a window, and the launch after it."""
    known, number = kernels()
    made = leaf.of(planned(recording(100)[1][0]), number)
    values = extents_of((size,))
    got = leaf.launch(made, known, lambda e: evaluated(e, values))
    expected = planned(size)
    expected = replace(expected, parameters=PackedParameters((size, size - 1, 7), 64).data())
    for field in fields(LaunchPlan):
        assert getattr(got, field.name) == getattr(expected, field.name), field.name


def test_a_leaf_lists_all_that_a_launch_needs() -> None:
    """Each of them is replaced by `mapped`, and none is left: the tape computes what is listed."""
    known, number = kernels()
    made = leaf.of(planned(recording(100)[1][0]), number)
    seen = list[Any]()

    def noted(expression: Any) -> Any:
        seen.append(expression)
        return expression

    assert leaf.mapped(made, noted) == made
    assert sorted(map(str, seen)) == sorted(map(str, made.expressions()))
    assert len(known) == 1, "equal kernels are one"


def test_bytes_of_parameters_are_words_of_32_bits() -> None:
    """Of a plan that was not recorded, as the empty one."""
    known, number = kernels()
    plain = cuda.plan(NEGATE, ((64,),), True, H200)
    made = leaf.of(plain, number)
    assert made.bits == 32
    assert leaf.launch(made, known, lambda e: e) == plain
