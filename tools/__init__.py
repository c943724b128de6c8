"""Tools for who works on the project."""
