"""The figures of the pages: `python -m bench.figures` measures them into docs/figures.json and writes the tables."""
