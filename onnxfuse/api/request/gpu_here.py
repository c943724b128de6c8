"""The GPU of this machine, for which kernels are planned where none is named."""

from onnxfuse.cuda.planning.arch import Arch


def arch_here() -> Arch | None:
    """Return the architecture of the first GPU here; None if CUDA cannot be used."""
    from onnxfuse.runtime.engine.cuda_provider import cuda_unusable  # asks the driver

    if cuda_unusable() is not None:
        return None
    from onnxfuse.cuda import arch_of

    return arch_of(0)
