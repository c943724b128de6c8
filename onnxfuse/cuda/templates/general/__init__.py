"""General kernel: any body on any extents, one thread per element, used if no other kernel supports the shapes."""
