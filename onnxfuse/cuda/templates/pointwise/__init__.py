"""Elementwise work and data movement."""
