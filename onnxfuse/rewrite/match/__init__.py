"""Patterns found in a graph, and nodes put in the place of others."""
