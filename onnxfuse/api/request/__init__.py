"""Caller input: arguments, options, models."""
