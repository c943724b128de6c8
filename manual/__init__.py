"""The documentation site: `python -m manual` makes it of the pages, the rules, the commands and the docstrings."""
