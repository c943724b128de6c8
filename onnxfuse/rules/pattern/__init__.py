"""Patterns and their expressions."""
