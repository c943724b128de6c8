"""Inputs to compare models on: made up by role and size, or read from files."""
