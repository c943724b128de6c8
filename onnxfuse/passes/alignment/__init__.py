"""Passes that pad weights to sizes that kernels take."""
