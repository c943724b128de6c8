"""While a kernel is compiled another one of the same op serves."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bench.cases import products
from bench.cases.ops import HALF
from onnxfuse import cuda, runtime
from onnxfuse.cuda import Arch
from onnxfuse.cuda.templates.gemm.variant import GemmTile
from onnxfuse.runtime.kernels import ahead_of_time, loader
from onnxfuse.runtime.kernels.ahead_of_time import AheadOfTime
from onnxfuse.runtime.kernels.variants import Variants
from onnxfuse.support.errors import KernelError
from tests.support import fused_models as models
from tests.support import stand_in_kernels
from tests.support.scenarios import FakeCuda

CUDA = ["CUDAExecutionProvider", "CPUExecutionProvider"]
H200 = Arch("sm_90a", 132)


class Compiler:
    """Compiles in other threads, when it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there: set[cuda.KernelSource] = set()
        self.let = threading.Event()
        monkeypatch.setattr(cuda, "arch_of", lambda device: H200)
        monkeypatch.setattr(cuda, "is_compiled", lambda kernel, device: kernel in self.there)
        monkeypatch.setattr(cuda, "compile", self.compile)
        monkeypatch.setattr(cuda, "load", self.load)

    def compile(self, kernel: cuda.KernelSource, arch: Arch) -> bytes:
        if threading.current_thread().name == "onnxfuse compiles":
            self.let.wait(20)
        self.there.add(kernel)
        return b""

    def load(self, kernel: cuda.KernelSource, device: int) -> Any:
        self.compile(kernel, H200)
        return SimpleNamespace(kernel=SimpleNamespace(ptr=id(kernel)))


def no_variants(device: int) -> Any:
    return {}


def gelu(rows: int, variants: Variants = no_variants, **options: Any) -> tuple[Any, Any, Any]:
    """Return a product of so many rows with its shapes, and its planner."""
    fused, shapes = products.case(products.GELU, HALF, (rows,), 1024, 256)
    graph = "g (float[8] x) => (float[8] y) { y = Relu (x) }"
    return (
        fused,
        tuple(shapes),
        loader.planner(fused, variants, AheadOfTime(models.model(graph), {}, variants), **options),
    )


def test_a_kernel_of_the_same_bits_serves_until_the_own_one_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch)
    fused, shapes, plan = gelu(2048, waits=False)
    first = plan(shapes, True, 0, None)
    assert not first.interim  # nothing else is there: it is compiled by whoever asks
    own = cuda.plan(fused, ((200, 256), *shapes[1:]), True, H200)
    assert own.kernel not in compiler.there
    few = ((200, 256), *shapes[1:])
    serving = plan(few, True, 0, None)
    assert serving.interim
    assert (serving.output_shapes, serving.program) == (own.output_shapes, None)
    assert own.kernel not in compiler.there
    assert plan(few, True, 0, None) is serving  # as long as it takes
    compiler.let.set()
    for _ in range(400):
        if own.kernel in compiler.there:
            break
        time.sleep(0.01)
    while (last := plan(few, True, 0, None)).interim:
        time.sleep(0.01)
    assert (last.grid, last.parameters) == (own.grid, own.parameters)


def test_a_kernel_that_does_not_compile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the next run of its shape: nothing else serves for good."""
    compiler = Compiler(monkeypatch)
    fused, shapes, plan = gelu(2048, waits=False)
    plan(shapes, True, 0, None)
    few = ((200, 256), *shapes[1:])
    own = cuda.plan(fused, few, True, H200).kernel
    compile_all = compiler.compile

    def refuses(kernel: cuda.KernelSource, arch: Arch) -> bytes:
        if kernel == own:
            raise KernelError("NVRTC does not compile it", "")
        return compile_all(kernel, arch)

    monkeypatch.setattr(cuda, "compile", refuses)
    monkeypatch.setattr(compiler, "compile", refuses)
    assert plan(few, True, 0, None).interim
    for thread in threading.enumerate():
        if thread.name == "onnxfuse compiles":
            thread.join(20)
    with pytest.raises(KernelError, match="does not compile"):
        plan(few, True, 0, None)


def test_shapes_of_one_kernel_wait_for_it_together(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch)
    _, shapes, plan = gelu(2048, waits=False)
    plan(shapes, True, 0, None)
    for rows in (200, 210):
        assert plan(((rows, 256), *shapes[1:]), True, 0, None).interim
    compiler.let.set()
    while any(plan(((rows, 256), *shapes[1:]), True, 0, None).interim for rows in (200, 210)):
        time.sleep(0.01)


def test_a_run_that_waits_has_its_own_kernel_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = Compiler(monkeypatch)
    fused, shapes, plan = gelu(2048)
    plan(shapes, True, 0, None)
    few = ((200, 256), *shapes[1:])
    assert not plan(few, True, 0, None).interim
    assert cuda.plan(fused, few, True, H200).kernel in compiler.there


@pytest.mark.parametrize("rows", [4, 300, 4096])
def test_what_serves_adds_in_the_same_order(rows: int) -> None:
    """Tiles that are not split for one that is not, blocks that share terms among as many warps; never the own one."""
    fused, shapes = products.case(products.GELU, HALF, (rows,), 1024, 256)
    own = cuda.plan(fused, tuple(shapes), True, H200)
    found = list(cuda.stand_ins(fused, tuple(shapes), True, H200))
    assert own.kernel not in {p.kernel for p in found}
    assert {p.output_shapes for p in found} <= {own.output_shapes}
    assert len(found) >= (0 if rows == 4 else 5)  # warps of the block for few rows share the terms


def test_nothing_serves_for_a_tile_that_blocks_share() -> None:
    """Its sums are added in another order."""
    fused, shapes = products.case(products.GELU, HALF, (64,), 768, 3072)
    assert isinstance(_chosen(fused, tuple(shapes)), GemmTile)
    assert _chosen(fused, tuple(shapes)).split > 1
    assert list(cuda.stand_ins(fused, tuple(shapes), True, H200)) == []


def _chosen(fused: Any, shapes: Any) -> Any:
    from onnxfuse.cuda.templates.gemm import plan as gemm

    return gemm.chosen(fused, shapes, H200)


def launches(wait: bool, scratch_bytes: int = 0) -> list[int]:
    """Return what four runs launch, 1: the other kernel. After two of them the own one is there."""
    ready = threading.Event()
    stand_in = stand_in_kernels.install(
        others=1, scratch_bytes=scratch_bytes, compiled=lambda kernel: kernel.number == 1 or ready.is_set()
    )
    stand_in.compile = lambda kernel, arch: bytes(ready.wait(20))  # type: ignore[method-assign]  # a compiler that waits
    ahead_of_time.MOST_THREADS = 1
    session = runtime.session(models.chain(), CUDA, wait_for_kernels=wait)
    given = {"x": np.ones((3, 8), np.float32), "b": np.ones(8, np.float32)}
    first = [session.run(None, given)[0] for _ in range(2)]
    ready.set()
    for thread in threading.enumerate():
        if thread.name == "onnxfuse compiles":
            thread.join(20)
    for answer in [session.run(None, given)[0] for _ in range(2)]:
        np.testing.assert_array_equal(answer, first[0])
    return [one.number for one in stand_in.launched]


def does_not_wait() -> Any:
    return launches(wait=False)


def waits() -> Any:
    return launches(wait=True)


def does_not_wait_with_scratch() -> Any:
    return launches(wait=False, scratch_bytes=64)


@pytest.mark.parametrize("asked", [does_not_wait, does_not_wait_with_scratch])
def test_a_session_goes_on_with_the_own_kernel_when_it_is_there(on_fake_cuda: FakeCuda, asked: Any) -> None:
    """Also where kernels have scratch memory: it is the stream's, not the launch's."""
    numbers = on_fake_cuda(asked)
    half = len(numbers) // 2
    assert half > 0
    assert numbers == [1] * half + [0] * half


def test_a_session_waits_where_it_is_told_to(on_fake_cuda: FakeCuda) -> None:
    numbers = on_fake_cuda(waits)
    assert numbers
    assert set(numbers) == {0}
