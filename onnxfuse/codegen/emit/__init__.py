"""C++ text of programs: expressions, operands, index maps, and the translation unit around them."""
