"""Passes on attention masks."""
