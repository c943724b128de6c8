"""Helpers for passes that replace nodes."""
