"""What a process does in Python for kernels: how often it plans, for how long, and how much it compiles."""

import time
from typing import Any

from onnxfuse import kernels
from onnxfuse.kernels.build import nvrtc
from onnxfuse.kernels.launch_plan import LaunchPlan


class Counted:
    """Counts the plans and the compilations of this process from here on."""

    def __init__(self) -> None:
        self.planned, self.planning, self.compiled = 0, 0.0, 0
        """Plans, their seconds, and kernels that NVRTC made."""
        plan, build = kernels.plan, nvrtc.build

        def planned(*facts: Any) -> LaunchPlan:
            begun = time.perf_counter()
            made = plan(*facts)
            self.planned += 1
            self.planning += time.perf_counter() - begun
            return made

        def built(*facts: Any, **more: Any) -> tuple[bytes, str]:
            self.compiled += 1
            return build(*facts, **more)

        vars(kernels).update(plan=planned)
        vars(nvrtc).update(build=built)
