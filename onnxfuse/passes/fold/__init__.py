"""Common subexpressions and constant patterns."""
