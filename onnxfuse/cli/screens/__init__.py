"""How the commands print their results."""
