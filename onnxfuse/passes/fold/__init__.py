"""Common subexpression elimination and folding of constant patterns."""
