"""The typed program of a body, its index maps, and program transformations."""
