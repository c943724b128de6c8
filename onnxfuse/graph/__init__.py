"""A graph that can be queried and changed, and what is known of its values."""
