"""Read and write model files: external data, atomic replacement, formats, pipes."""
