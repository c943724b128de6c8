"""The contract of a repository's models: requirements in `onnxfuse.toml`, last results in `onnxfuse.lock`."""
