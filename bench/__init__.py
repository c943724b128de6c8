"""Measurements: each module is a script, `python -m bench.NAME --help`.

Whole models (`bench.speed`), their starts, new shapes and threads, kernels (`bench.kernels`), and the figures of the
pages (`bench.figures`). All time with `onnxfuse.measure`.
"""
