"""The engine's C ABI, as Python calls it."""
