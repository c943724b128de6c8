"""The documentation site: `python -m tools.site` makes it of the pages, the rules, the commands and the docstrings."""
