// Where the left factor of a product lies: in a matrix [m, k], row-major.

struct Source {};
