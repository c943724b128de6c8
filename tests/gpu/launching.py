"""Launches of a plan by hand, through CuPy: for tests and scripts that have addresses instead of a session."""

from collections.abc import Callable, Sequence

import numpy as np

from onnxfuse import kernels
from onnxfuse.kernels import LaunchPlan
from onnxfuse.runtime.bridge import bridge

Work = Callable[[], object]


def launcher(plan: LaunchPlan, addresses: Sequence[int]) -> Work:
    """Return what launches the plan on tensors at these addresses, inputs and then outputs."""
    function = kernels.load(plan.kernel, 0)
    if plan.shared_bytes > 48 * 1024:
        function.max_dynamic_shared_size_bytes = plan.shared_bytes
    scratch = [kernels.zeros(plan.scratch_bytes, 0)] if plan.scratch_bytes else []
    pointers = [*addresses, *(s.ptr for s in scratch)]
    blobs = [bridge().encoded_tensor_maps(plan.tensor_maps, list(addresses))] if plan.tensor_maps else []
    # CuPy passes a NumPy array of one element by value, whatever its size.
    by_value = [np.frombuffer(b, np.dtype((np.void, len(b)))) for b in (*blobs, plan.parameters)]
    arguments = (*map(np.uint64, pointers), *by_value)
    # The launch keeps the scratch memory.
    return lambda keep=scratch: function(plan.grid, plan.block, arguments, shared_mem=plan.shared_bytes)
