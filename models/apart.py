"""What is measured in processes of their own: with which caches and GPU, and what one plans and compiles."""

import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from onnxfuse import kernels
from onnxfuse.kernels.build import nvrtc
from onnxfuse.kernels.launch_plan import LaunchPlan

ORIGINAL, PACKED, EMPTY, CACHED = "original", "fused, kernel pack", "fused, nothing on disk", "fused, caches on disk"


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


def called(command: Sequence[str], cache: Path, gpu: int) -> str:
    """Return what a command prints; the caches of this machine are in the folder `cache`."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache), "CUDA_VISIBLE_DEVICES": str(gpu)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(f"{' '.join(command[1:4])} ends with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout
