"""Symbolic integers: values that record how they were computed, for planners and launch programs."""
