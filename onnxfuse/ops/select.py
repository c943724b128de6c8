"""Operators whose output has as many elements as the data say."""

from onnxfuse.ops.registry import Operator

TopK = Operator("TopK")
NonZero = Operator("NonZero")
NonMaxSuppression = Operator("NonMaxSuppression")
Unique = Operator("Unique")
