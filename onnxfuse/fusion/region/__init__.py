"""One attempt to fuse: the region, the op made of it, and the proof that a kernel exists."""
