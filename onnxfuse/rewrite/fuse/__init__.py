"""From matched anchors to fused ops: growth by steps, and the proof that each has a plan."""
