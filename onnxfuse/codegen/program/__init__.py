"""The typed program of a body, its index maps, and the transformations of it."""
