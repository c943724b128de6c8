"""Template `parallel`: data movement that shares an input, such as RoPE of queries and of keys, in one launch."""
