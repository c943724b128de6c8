"""Tools of the repository that are no part of the package: the documentation site (`python -m tools.site`), and
mutation testing (`python -m tools.mutants`)."""
