"""From a fused op and its shapes to a launch plan; cost of a plan; proof that a plan exists."""
