"""Passes on operators that only move data: Transpose, Reshape, Slice, Concat."""
