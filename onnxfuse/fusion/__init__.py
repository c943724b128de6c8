"""Fusion: from matched anchors to fused ops with model-local functions as bodies."""
