"""What the tests of kernels share; pytest-xdist's workers take the machine's cards in turns."""

import os
import shutil
import subprocess

from onnxfuse.cuda.planning import launch_plan
from tests.support.large_plans import plans_of_large_tensors

__all__ = ["plans_of_large_tensors"]

MEASURED = launch_plan.small_costs


def card(worker: str, listed: str) -> str | None:
    """Return the card of a worker, gw0 and so on, of those that nvidia-smi lists; None where nothing is to choose."""
    count = len(listed.splitlines())
    return str(int(worker.removeprefix("gw")) % count) if worker.startswith("gw") and count else None


def take_card() -> None:
    """Let this process see one card alone, before anything has asked for CUDA."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    if not worker or "CUDA_VISIBLE_DEVICES" in os.environ or shutil.which("nvidia-smi") is None:
        return
    listed = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=False)
    chosen = card(worker, listed.stdout if listed.returncode == 0 else "")
    if chosen is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = chosen


take_card()
