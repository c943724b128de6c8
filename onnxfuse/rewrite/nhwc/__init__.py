"""Regions of convolutions that run channels last."""
