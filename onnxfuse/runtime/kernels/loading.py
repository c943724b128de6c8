"""Turn a launch plan into a launch by compiling and loading its kernels."""

from typing import Any

from onnxfuse import cuda
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.runtime.engine.launch import LaunchArguments
from onnxfuse.runtime.kernels.programs import rooms


def load(plan: LaunchPlan, device: int, function: Any = None) -> LaunchArguments:
    """Compile and load the kernels of a plan, except the function shared by all of its launches if that is
    passed in."""
    packed, function = function, function or cuda.load(plan.kernel, device)
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
        scratch=rooms(plan.scratch_bytes, device).scratch,
        module=function,
        passing=plan.passing,
        then=tuple(load(after, device, packed) for after in plan.then),
    )
