"""The optimization pipeline, and its built-in passes (those that need no rule file)."""
