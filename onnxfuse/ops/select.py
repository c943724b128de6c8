"""Operators whose output has as many elements as the data say."""

from onnxfuse.ops.families import moving
from onnxfuse.ops.registry import Operator

TopK = moving("TopK")
NonZero = moving("NonZero")
NonMaxSuppression = Operator("NonMaxSuppression")
Unique = moving("Unique")
