"""Passes that split, merge or reorder matrix products and their batch axes."""
