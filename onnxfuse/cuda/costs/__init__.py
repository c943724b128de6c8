"""Measured costs: one TOML file per architecture, and their typed loader."""
