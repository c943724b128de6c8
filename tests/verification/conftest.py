"""Sessions on the stand-in CUDA libraries."""

from tests.runtime.conftest import fake_cuda, on_fake_cuda

__all__ = ["fake_cuda", "on_fake_cuda"]
