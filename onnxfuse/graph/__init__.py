"""The mutable graph, analyses of its values, and passes on constants."""
