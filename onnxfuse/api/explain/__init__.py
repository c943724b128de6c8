"""Explain what fuses, what does not, and why."""
