"""Screens: how commands print their results."""
