"""Channels-last layout: which regions, and how each operator is written there."""
