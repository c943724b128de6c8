"""The stand-in CUDA of the runtime's tests, for times on a GPU that is none."""

from tests.runtime.conftest import fake_cuda, on_fake_cuda

__all__ = ["fake_cuda", "on_fake_cuda"]
