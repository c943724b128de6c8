"""The stand-in CUDA of the runtime's tests, for profiles on CUDA."""

from tests.runtime.conftest import fake_cuda, on_fake_cuda

__all__ = ["fake_cuda", "on_fake_cuda"]
