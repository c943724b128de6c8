"""Template `cached_attention`: attention of new tokens behind a KV cache of fixed capacity, which they join."""
