"""Tools of the repository that are no part of the package: the documentation site (`python -m tools.site`), mutation
testing (`python -m tools.mutants`), measured costs of a GPU (`python -m tools.calibrate`), and how the code is spread
(`python -m tools.counts`)."""
