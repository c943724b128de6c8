"""Which cases a verification runs."""
