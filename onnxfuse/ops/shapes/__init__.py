"""Shape functions of operators: the extents of results from those of operands, plain, symbolic or traced."""
