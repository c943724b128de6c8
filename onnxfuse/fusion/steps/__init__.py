"""The growth steps: how a region takes in neighbouring nodes."""
