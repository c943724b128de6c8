"""Where a launch comes from: pack, cache, planner, or a fallback kernel while one compiles."""
