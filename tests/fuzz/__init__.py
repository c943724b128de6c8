"""Hostile input: seeded mutants of models, rules and configuration, each run through the commands. See __main__.py."""
