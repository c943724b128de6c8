"""Tensors of these tests are small; they get the plans of large ones."""

from tests.support.large_plans import plans_of_large_tensors

__all__ = ["plans_of_large_tensors"]
