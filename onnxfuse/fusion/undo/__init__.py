"""Revert fused ops: on request, where the file does not prove them, and where the model became invalid."""
