"""Sources of a launch: kernel pack, cache, planner, and fallback kernels during compilation."""
