"""The figures of the pages: `python -m bench.figures` measures them, publishes them in docs/data, writes the tables."""
