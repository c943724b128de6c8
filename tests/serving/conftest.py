"""What tests of servers share with those of sessions."""

from tests.runtime.conftest import fake_cuda

__all__ = ["fake_cuda"]
