"""Passes that resolve If, Loop and sequences that are static."""
