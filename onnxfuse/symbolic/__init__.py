"""Integers that remember how they were computed, for planners and launch programs."""
