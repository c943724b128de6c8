"""The rule language: files, patterns, predicates."""
