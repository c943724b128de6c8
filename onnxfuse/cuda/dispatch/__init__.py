"""From a fused op and its shapes to a launch plan; what a plan costs; proof that one exists."""
