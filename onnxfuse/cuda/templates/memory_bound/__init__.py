"""Templates bound by memory bandwidth, with a common planner."""
