"""Tests of lower precision."""
