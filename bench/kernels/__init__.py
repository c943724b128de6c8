"""Times of kernels on a GPU, each module a script: `python -m bench.kernels.NAME --help`."""
