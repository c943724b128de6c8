"""Bit-identical fallback kernels used while the preferred kernel compiles."""

from concurrent.futures import Future
from dataclasses import replace

from onnxfuse import cuda
from onnxfuse.cuda.planning.launch_plan import LaunchPlan
from onnxfuse.cuda.planning.variant import Variant
from onnxfuse.model.fused import FusedOp
from onnxfuse.runtime.engine.launch import LaunchArguments, Shape
from onnxfuse.runtime.kernels.ahead_of_time import AheadOfTime
from onnxfuse.runtime.kernels.loading import load

Asked = tuple[tuple[Shape, ...], bool, int]
"""Input shapes, all pointers aligned?, device."""


class FallbackKernels:
    """Fallback kernels of one op, while its preferred kernels compile."""

    def __init__(self, op: FusedOp, ahead_of_time: AheadOfTime) -> None:
        self.op, self.ahead = op, ahead_of_time
        self.serving: dict[Asked, tuple[LaunchArguments, Future[None]]] = {}
        self.compiling: dict[tuple[cuda.KernelSource, int], Future[None]] = {}

    def known(self, request: Asked) -> LaunchArguments | None:
        """Return the fallback launch in use for these shapes; None if the preferred kernel is ready or there is no
        fallback."""
        serving = self.serving.get(request)
        return None if serving is None or serving[1].done() else serving[0]

    def instead(self, plan: LaunchPlan, request: Asked, tuning: Variant | None) -> LaunchArguments | None:
        """Return a launch to use while another thread compiles the kernels of `plan`; None if no fallback exists."""
        shapes, aligned, device = request
        compiled = self.compiling.get((plan.kernel, device))
        # A kernel that is missing although it was compiled is reported by the loader.
        if _is_there(plan, device) or (compiled is not None and compiled.done()):
            return None
        for other in cuda.stand_ins(self.op, shapes, aligned, cuda.arch_of(device)):
            if _is_there(other, device):
                launch = replace(load(other, device), interim=True)
                if compiled is None:
                    compiled = self.ahead.compiled(self.op, shapes, aligned, device, tuning)
                    self.compiling[plan.kernel, device] = compiled
                self.serving = {k: one for k, one in self.serving.items() if not one[1].done()}
                self.serving[request] = launch, compiled
                return launch
        return None


def _is_there(plan: LaunchPlan, device: int) -> bool:
    return not plan.grid[0] or all(cuda.is_compiled(p.kernel, device) for p in (plan, *plan.then))
