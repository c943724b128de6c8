"""Turn a launch plan into a launch by compiling and loading its kernels."""

from collections.abc import Iterator
from typing import Any

from onnxfuse import cuda
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.runtime.engine.launch import LaunchArguments


def load(plan: LaunchPlan, device: int, functions: Iterator[Any] | None = None) -> LaunchArguments:
    """Compile and load the kernels of a plan, unless the functions of its launches are passed in, in their order."""
    function = cuda.load(plan.kernel, device) if functions is None else next(functions)
    return LaunchArguments(
        function=function.kernel.ptr,
        grid=plan.grid,
        block=plan.block,
        shared_bytes=plan.shared_bytes,
        early=cuda.arch_of(device).isa.starts_early,
        parameters=plan.parameters,
        output_shapes=plan.output_shapes,
        tensor_maps=plan.tensor_maps,
        scratch_bytes=plan.scratch_bytes,
        module=function,
        counter_bytes=plan.counter_bytes,
        then=tuple(load(after, device, functions) for after in plan.then),
    )
