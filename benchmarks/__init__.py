"""Times of kernels on a GPU, each module a script: `python -m benchmarks.NAME --help`.

Whole models are timed by `python -m models.speed`.
"""
