"""The kernel templates, a folder each: planner and CUDA side by side."""
