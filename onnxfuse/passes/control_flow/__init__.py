"""Passes that resolve If, Loop and sequences known ahead of time."""
