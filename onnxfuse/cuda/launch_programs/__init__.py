"""Launch plans as programs over input extents, which the engine evaluates without Python."""
