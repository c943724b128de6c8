"""Where the runtime meets the kernels: the real plans, with only the GPU left out."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onnxfuse import cuda
from onnxfuse.cuda.planning import limits
from onnxfuse.runtime.engine.launch import LaunchArguments
from onnxfuse.runtime.kernels import loader
from tests.support import fused_models as models


def test_a_launch_is_the_plan_with_the_loaded_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grid, block, parameters and shapes come from the plan; the function from the device; the module stays alive."""
    arch = cuda.Arch("sm_90a", 132)
    loaded = SimpleNamespace(kernel=SimpleNamespace(ptr=0xF00))
    asked: list[Any] = []

    def load(kernel: cuda.KernelSource, device: int) -> Any:
        asked.append((kernel, device))
        return loaded

    monkeypatch.setattr(cuda, "arch_of", lambda device: arch)
    monkeypatch.setattr(cuda, "load", load)
    shapes = ((3, 8), (8,))
    launch = loader.planner(models.BIAS_RELU)(shapes, True, 1, None, None)
    assert isinstance(launch, LaunchArguments)
    plan = cuda.plan(models.BIAS_RELU, shapes, True, arch)
    assert asked == [(plan.kernel, 1)]
    assert (launch.grid, launch.block, launch.shared_bytes) == (plan.grid, plan.block, plan.shared_bytes)
    assert (launch.function, launch.parameters, launch.module) == (0xF00, plan.parameters, loaded)
    assert launch.output_shapes == ((3, 8),)
    assert launch.early


def test_the_bridge_has_room_for_the_tensor_maps_that_a_plan_may_have() -> None:
    source = (Path(__file__).parents[4] / "engine" / "launch.h").read_text(encoding="utf-8")
    assert re.findall(r"kMostTensorMaps = (\d+);", source) == [str(limits.TENSOR_MAPS)]


@pytest.mark.parametrize(("name", "early"), [("sm_80", False), ("sm_89", False), ("sm_90a", True), ("sm_120a", True)])
def test_kernels_start_early_where_the_gpu_can(name: str, early: bool) -> None:
    assert cuda.Arch(name, 1).isa.starts_early == early


def test_the_ops_of_these_tests_have_kernels() -> None:
    """The models that the session tests run are of the kind that gets kernels; a Resize is not."""
    assert loader.no_kernel(models.BIAS_RELU) is None
    assert loader.no_kernel(models.SUM_SOFTMAX) is None
    resize = models.fused_op("Resize_9 (x, s) => (y) { y = Resize (x, , s) }", inputs=2)
    assert "Resize" in (loader.no_kernel(resize) or "")


def test_what_only_tells_a_shape_stays_on_the_cpu() -> None:
    """The target of a Reshape or Expand, unless something else reads it, too."""
    repeated = "k = Expand (x, t)  y = Reshape (k, s)"
    for more, expected in (("", (1, 2)), ("  z = Cast <to = 1> (s)", (1,)), ("  z = Reshape (s, t)", (1,))):
        op = models.fused_op(f"Repeat_9 (x, t, s) => (y) {{ {repeated}{more} }}", inputs=3)
        assert loader.on_host(op) == expected
    assert loader.on_host(models.BIAS_RELU) == ()


def test_only_output_zero_takes_over_a_buffer() -> None:
    """Both operands of the sum may become its output."""
    assert loader.may_alias(models.BIAS_RELU) == (0, 1)
