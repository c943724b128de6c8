"""Parts side by side in one output, each by the template of its own."""
