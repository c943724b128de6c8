"""GPU architectures, launch plans, their limits, and measured variants."""
