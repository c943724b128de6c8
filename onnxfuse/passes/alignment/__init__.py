"""Passes that pad weights to sizes that kernels require."""
