"""Selection of the cases of a verification."""
