"""Helpers of passes that replace nodes."""
