"""C++ emission: expressions, operands, index maps, and the translation unit around them."""
